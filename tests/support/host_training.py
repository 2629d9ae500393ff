"""`roundelay train` on several hosts, each in a network namespace of its own, and what its run says meanwhile."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay.core.live import Live
from roundelay.core.records import Record, Results, read_events
from roundelay_lab.namespaces.hosts import Hosts
from support.preloaded import Preloaded

TESTS = Path(__file__).parents[1]
SECRET = "a secret of these tests alone"
PORT = 29500
TOO_LONG = 250.0
"""Seconds: the machine may be busy with other things."""
PAUSE = 0.05
LEARNING_RATE = 0.02
"""At the recipe's own, 0.05, the loss of learners that seldom meet rises with time, whatever else happens to them."""


def results(exp: Path) -> Results:
    """Return the results of a run that has ended."""
    return Results.from_json(read_json(exp / Results.FILE))


def loss(exp: Path) -> float:
    """Return the held-out loss (nats a frame) of a run that has ended."""
    return results(exp).frame_cross_entropy["dev"]


def undisturbed(folder: Path, strategy: str, learners: int, *options: str) -> list[float]:
    """Return the held-out losses of undisturbed trainings with three seeds, in the simulator."""
    losses = []
    with chdir(folder):
        for seed in range(3):
            exp = f"undisturbed-{strategy}-{learners}-{seed}"
            where = ["--learners", f"{learners}", "--runtime", "sim", "--seed", f"{seed}"]
            assert main(["train", "recipe.yaml", "--exp", exp, "--strategy", strategy, *where, *options]) == 0
            losses.append(loss(folder / exp))
    return losses


def bound(losses: Sequence[float]) -> float:
    """Return the largest held-out loss to accept beside `losses`, of a few seeds: the worst plus their difference."""
    return max(losses) + max(max(losses) - min(losses), 0.1 * max(losses))


@dataclass
class HostTraining:
    """A training on all of `hosts`, in `folder`, which holds a recipe and what it names.

    Args:
        learners: on each host.
        patience: seconds, for anything that is waited for.
        options: of `roundelay train`, beside --exp.
        preloaded: its processes have torch loaded when they begin; where their seconds count, they have not.
    """

    hosts: Hosts
    folder: Path
    exp: str = "exp"
    learners: int = 1
    options: Sequence[str] = ()
    number: int = 2  # of hosts
    recipe: str = "recipe.yaml"
    patience: float = TOO_LONG
    preloaded: bool = False
    running: dict[int, Preloaded | subprocess.Popen[str]] = field(default_factory=dict)

    def environment(self, host: int) -> dict[str, str]:
        """Return the variables of torchrun for a host."""
        paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        return {
            "RANK": f"{host * self.learners}",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": f"{self.number * self.learners}",
            "LOCAL_WORLD_SIZE": f"{self.learners}",
            "MASTER_ADDR": self.hosts.address(0),
            "MASTER_PORT": f"{PORT}",
            "ROUNDELAY_SECRET": SECRET,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }

    def command(self) -> list[str]:
        """Return the command, the same on all hosts."""
        exp = str(self.folder / self.exp)  # not from where we are: a host may have a disk of its own there
        return [sys.executable, "-m", "roundelay.cli", "train", self.recipe, "--exp", exp, *self.options]

    def start(self, *hosts: int, environment: Mapping[str, str] | None = None) -> None:
        """Start these hosts, or all; a host may be started again."""
        for host in hosts or range(self.number):
            with open(self.said(host), "a") as said:
                variables = {**self.environment(host), **(environment or {})}
                if self.preloaded:
                    inside, whole = self.hosts._hosts[host].process, {**os.environ, **variables}
                    streams = [said.fileno()] * 2
                    self.running[host] = Preloaded(self.command()[1:], whole, streams, self.folder, inside)
                    continue
                self.running[host] = self.hosts.start(
                    host,
                    self.command(),
                    env=variables,
                    cwd=self.folder,
                    stdout=said,
                    stderr=said,
                    stdin=subprocess.DEVNULL,
                )

    def said(self, host: int) -> Path:
        """Return the file of a host's output."""
        return self.folder / f"{Path(self.exp).name}-host{host}.txt"

    def words(self) -> str:
        """Return the output of all hosts."""
        return "\n".join(f"host {host}: {self.said(host).read_text()}" for host in sorted(self.running))

    def end(self, host: int = 0) -> int:
        """Wait until a host has ended; return its exit status."""
        try:
            return self.running[host].wait(self.patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"host {host} goes on and on\n{self.words()}") from None

    # What the run says of itself -------------------------------------------------------------------------------------

    def live(self) -> Live | None:
        """Return the run's present state; None before the first report."""
        try:
            return Live.from_json(json.loads((self.folder / self.exp / Live.FILE).read_text()))
        except FileNotFoundError:
            return None

    def until(self, condition: Callable[[Live], Any], what: str) -> Live:
        """Wait until the run's state fulfils `condition`, which is `what` in words; return the state."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            live = self.live()
            if live is not None and condition(live):
                return live
            ended = {host: process.poll() for host, process in self.running.items() if process.poll() is not None}
            assert 0 not in ended, f"the run has ended ({ended}) before {what}\n{self.words()}"
            time.sleep(PAUSE)
        raise AssertionError(f"never {what}: {self.live()}\n{self.words()}")

    def begun(self) -> Live:
        """Wait until some frames are trained; return the run's state."""
        return self.until(lambda live: live.epoch_frames > 0, "training")

    def living(self, *ranks: int) -> Live:
        """Wait until exactly the learners `ranks` live; return the run's state."""
        return self.until(lambda live: live.living == list(ranks), f"learners {ranks} alone alive")

    def events(self) -> list[Record]:
        """Return all records of the run so far."""
        return read_events(self.folder / self.exp / "events.jsonl")
