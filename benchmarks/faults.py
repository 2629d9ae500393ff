"""Random faults on real hosts: does every run train every frame, come to its end, say what happened, and leave nothing?

    python benchmarks/faults.py [--schedules 20] [--seed 0] [--strategies adpsgd hadpsgd ...]

Two or three hosts, made of network namespaces (Debian's iproute2; root, or a kernel that lets users make namespaces),
train a small spoken corpus by `roundelay train`. Meanwhile one to three of these happen, at random moments and in
random order: a host is killed and started again; a learner is killed; a learner is stopped for a while; a link is cut
for a moment, or for longer than hosts are patient; a link stalls; a link becomes slow; strangers send noise and a wrong
secret. The first host is spared by whatever would end the run: it leads. Under a synchronous strategy a loss ends the
run, which must go on from its last checkpoint by the same command. `asgd` has a quarter of the others' learning rate,
without which four learners may diverge.

The first thing that is not so ends the program with status 1, and shows what all hosts said.

Columns: what happened, in order; hosts lost and joined as recorded; learners lost and joined; how often the command was
given; held-out loss at the end; what it is held to: the worst of three undisturbed runs of the same strategy with as
many learners, and once more their spread, or a tenth; seconds. A loss above that ends the program with status 1, too,
but after all schedules.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

import numpy as np

from roundelay.core.records import HostJoined, HostLost, LearnerJoined, LearnerLost, Segment, of_kind
from roundelay.core.streams import stream
from roundelay_lab.namespaces.hosts import Hosts, why_no_cables, why_not
from support.beeps import prepare_beeps
from support.host_training import LEARNING_RATE, PORT, HostTraining, bound, loss, results, undisturbed

STRATEGIES = ("adpsgd", "adpsgd", "hadpsgd", "asgd", "easgd", "ssgd")
EPOCHS, PATIENCE, SLEEP = 6, 3.0, 0.05
LEAVING = 10.0
"""Seconds after the end of a run in which all its processes must be gone."""
TOO_LONG = 900.0
"""Seconds: a synchronous strategy may take six minutes over a link of 4 Mbit/s."""
STARTS = 8
"""Number of times that a command may be given until its run ends."""


class Fates:
    """Faults that may happen to a training."""

    def __init__(self, hosts: Hosts, training: HostTraining, drawn: np.random.Generator) -> None:
        self.hosts, self.training, self.drawn = hosts, training, drawn

    def other(self) -> int:
        """A host that does not lead."""
        return int(self.drawn.integers(1, self.training.number))

    def wait(self, least: float, most: float) -> None:
        time.sleep(float(self.drawn.uniform(least, most)))

    def learner(self, host: int) -> int:
        """The process of one of a host's learners."""
        parents = {}
        for process in self.hosts.processes(host):
            with suppress(OSError):
                if b"forkserver" in Path(f"/proc/{process}/cmdline").read_bytes():
                    stat = Path(f"/proc/{process}/stat").read_text()
                    parents[process] = int(stat.rpartition(")")[2].split()[1])
        found = sorted(process for process, parent in parents.items() if parent in parents)
        return found[int(self.drawn.integers(len(found)))] if found else 0

    def signal(self, process: int, number: int) -> None:
        with suppress(ProcessLookupError):
            if process:
                os.kill(process, number)

    def crash(self) -> None:
        """A host is killed, and comes back."""
        host = self.other()
        self.hosts.crash(host)
        self.training.running[host].wait()
        self.wait(0, 2 * PATIENCE)
        self.training.start(host)

    def kill(self) -> None:
        """A learner is killed, on any host."""
        self.signal(self.learner(int(self.drawn.integers(self.training.number))), signal.SIGKILL)

    def stop(self) -> None:
        """A learner is stopped, and goes on."""
        process = self.learner(int(self.drawn.integers(self.training.number)))
        self.signal(process, signal.SIGSTOP)
        self.wait(0.5, 4)
        self.signal(process, signal.SIGCONT)

    def cut(self) -> None:
        """A link is cut for a moment."""
        host = self.other()
        self.hosts.cut(host)
        self.wait(0.2, PATIENCE / 3)
        self.hosts.heal(host)

    def part(self) -> None:
        """A link is cut for longer than hosts are patient."""
        host = self.other()
        self.hosts.cut(host)
        self.wait(1.2 * PATIENCE, 1.6 * PATIENCE)
        self.hosts.heal(host)

    def stall(self) -> None:
        """Holds all that a host sends and receives for a moment; the last host's cable is ours."""
        self.hosts.stall(self.training.number - 1)
        self.wait(0.2, PATIENCE / 3)
        self.hosts.heal(self.training.number - 1)

    def slow(self) -> None:
        """From now on a link is slow."""
        self.hosts.rate("4mbit", self.other())

    def strangers(self) -> None:
        """Noise, and somebody with another secret."""
        code = f"""
import os, socket
from roundelay.runtime.hosts.transport.wire import Link, LinkError
for size in (1, 1000, 100_000):
    with socket.create_connection(({self.hosts.address(0)!r}, {PORT})) as link:
        try:
            link.sendall(os.urandom(size))
        except OSError:
            pass
try:
    Link.connect(({self.hosts.address(0)!r}, {PORT}), b"another secret altogether", {{}}, 10)
except LinkError:
    pass
"""
        command = self.hosts.command(self.other(), [sys.executable, "-c", code])
        environment = {**os.environ, **self.training.environment(0)}
        subprocess.run(command, env=environment, check=False, timeout=60, stderr=subprocess.DEVNULL)


class Bounds:
    """The held-out loss that each strategy can be held to: a little above that of undisturbed runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[str, int], float] = {}

    def __call__(self, strategy: str, learners: int) -> float:
        key = strategy, learners
        if key not in self.known:
            with redirect_stdout(sys.stderr):
                self.known[key] = bound(undisturbed(self.folder, strategy, learners, *options(strategy)))
        return self.known[key]


def options(strategy: str) -> list[str]:
    """Options a strategy trains with here."""
    return [f"schedule.learning_rate={LEARNING_RATE / 4}"] if strategy == "asgd" else []


def one(folder: Path, seed: int, strategies: tuple[str, ...], bounds: Bounds) -> tuple[str, bool]:
    """One schedule: a line of the table, and whether the model is as good as others'."""
    drawn = stream(seed, "real faults")
    number, learners = int(drawn.integers(2, 4)), int(drawn.integers(1, 3))
    strategy = str(drawn.choice(strategies))
    names = ["crash", "kill", "stop", "cut", "part", "slow", "strangers"] + ["stall"] * (not why_no_cables())
    names = [str(name) for name in drawn.choice(names, int(drawn.integers(1, 4)), replace=False)]
    exp, begun, starts = f"faults-{seed}", time.monotonic(), 1
    slow = [word for rank in range(number * learners) for word in ("--straggler", f"{rank}:+{SLEEP}")]
    with Hosts(number, delays={} if why_no_cables() else {number - 1: 0.002}) as hosts:
        words = ["--strategy", strategy, *slow, *options(strategy)]
        training = HostTraining(hosts, folder, exp, learners, words, number, patience=TOO_LONG)
        training.start()
        fates = Fates(hosts, training, drawn)
        for name in names:
            with suppress(AssertionError):  # it may have ended before
                training.begun()
            fates.wait(0, 3)
            fate: Callable[[], None] = getattr(fates, name)
            fate()
        while (status := training.end(0)) != 0:
            assert status == 2, training.words()  # with a reason; and then the same command goes on
            assert starts < STARTS, training.words()
            starts += 1
            training.start(0, *(host for host in range(1, number) if ended(training.running[host])))
        for host in range(1, number):
            training.end(host)
        left, deadline = {0: ""}, time.monotonic() + LEAVING
        while left and time.monotonic() < deadline:  # the last helpers of a host may end a moment after it
            left = {process: command(process) for host in range(number) for process in hosts.processes(host)}
            time.sleep(0.05)
        assert not left, f"processes outlived the run: {left}\n{training.words()}"
    events = training.events()
    segments = of_kind(events, Segment)
    epochs = range(results(folder / exp).epochs)  # it may end early, when the held-out loss rises
    frames = [sum(sum(s.learner_frames) for s in segments if s.epoch == epoch) for epoch in epochs]
    assert len(set(frames)) == 1, f"{frames}\n{training.words()}"
    count = [len(of_kind(events, kind)) for kind in (HostLost, HostJoined, LearnerLost, LearnerJoined)]
    what = f"{number} x {learners} {strategy}: {', '.join(names)}"
    numbers = "".join(f"{n:7d}" for n in (*count, starts))
    seconds, found, most = time.monotonic() - begun, loss(folder / exp), bounds(strategy, number * learners)
    return f"{seed:4d}  {what:48s} {numbers} {found:6.3f} {most:6.3f} {seconds:8.0f}", found < most


def ended(process: "subprocess.Popen[str]") -> bool:
    """Has a host ended, whose first host has? One that was started after that waits for the next."""
    try:
        process.wait(3 * LEAVING)
    except subprocess.TimeoutExpired:
        return False
    return True


def command(process: int) -> str:
    """Command line it was started with; empty if it is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    chosen = parser.parse_args()
    if why_not():
        sys.exit(why_not())
    worse = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        schedule = {"learning_rate": LEARNING_RATE, "max_epochs": EPOCHS}
        with redirect_stdout(sys.stderr):
            prepare_beeps(folder, schedule=schedule, training={"host_patience": PATIENCE})
        bounds = Bounds(folder)
        heads = "".join(f"{head:>7s}" for head in ("hosts-", "hosts+", "lost", "joined", "starts"))
        print(f"seed  {'what happened':48s} {heads}   loss  bound  seconds", flush=True)
        for seed in range(chosen.seed, chosen.seed + chosen.schedules):
            line, good = one(folder, seed, tuple(chosen.strategies), bounds)
            print(line, flush=True)
            worse += [] if good else [seed]
    print(f"{chosen.schedules} schedules: every frame of every epoch trained, nothing left behind")
    if worse:
        sys.exit(f"held-out loss above its bound in {', '.join(map(str, worse))}")


if __name__ == "__main__":
    main()
