"""torchft's DiLoCo in a storm, by the faults and the measure of `roundelay storm`.

    python benchmarks/storm_torchft.py --out DIR [--every 15] [--lasting 3] [--seconds 300] [--faults kill stop ...]

Replicas of one process train a character model on two or more hosts made of network namespaces, three times:
undisturbed for `--seconds`, as many minibatches while faults come, and once more undisturbed. With `--ours STRATEGY`
the same model on the same text goes through the same schedule by `roundelay.attach` (storm_text.py), in the folder
`ours`: numbers of two systems are compared on one model, or not at all. The lighthouse is a process of the first host
and is spared. A replica that was killed is started again after `--lasting` seconds, and takes its state from one that
lives, as torchft does. What counts are minibatches that replicas have committed together; a period that is thrown
away does not. `--every`, `--lasting`, `--seed` and `--faults` mean the same as there, so the same seed is the same
schedule. torchft needs a quorum for every outer step: `--timeout` is how long it waits for the dead.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

import numpy as np
import torch
from two_hosts_rivals import LIGHTHOUSE, Place, torchft_manager
from two_hosts_tasks import TextTask

from roundelay.core.files import write_json
from roundelay.runtime.clocks import steady_clock
from roundelay.terminal import Bar
from roundelay_lab.namespaces.hosts import Hosts, why_not
from roundelay_lab.storm.both import RunEnd, StormOptions, StormResult, run_storm
from roundelay_lab.storm.faults import Fault, checked_kinds, schedule
from roundelay_lab.storm.hosted import HostedCommand, Look, StormCommand
from roundelay_lab.storm.notes import LABEL, NOTE_NAME, Note, note_of
from roundelay_lab.storm.page import write_page
from roundelay_lab.storm.running import watch_training
from roundelay_lab.storm.story import Story

MINE = "replica-{rank}.txt"
"""Note of the minibatches of one replica, since it was started last, that were committed."""
HEARTBEAT_MS = 2000
"""Silence after which the lighthouse takes a replica for dead (torchft's default: 5000)."""


@dataclass(frozen=True)
class TorchftCommand(StormCommand):
    """The replicas, one on each host."""

    words: tuple[str, ...] = ()

    @property
    def spares_the_first(self) -> tuple[str, ...]:
        return "crash", "cut"

    @property
    def comes_back(self) -> bool:
        return True

    def told(self) -> dict[str, Any]:
        return {"words": [*self.words], "hosts": self.hosts, "link": self.link}

    def on(self, hosts: Hosts) -> HostedCommand:
        return HostedTorchft(hosts, self)


class HostedTorchft(HostedCommand):
    """Replicas while they run."""

    def __init__(self, hosts: Hosts, command: TorchftCommand) -> None:
        super().__init__(hosts, command)
        self._words, self._lighthouse, self._labelled = command.words, None, False

    def start(self, host: int) -> None:
        folder = self.command.exp.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        script = [sys.executable, str(Path(__file__).resolve()), "--out", str(folder)]
        addresses = ["--addresses", *(self.hosts.address(number) for number in range(self.command.hosts))]
        if self._lighthouse is None:
            with open(self.output(0), "a") as said:
                words = [*script, *addresses, "--role", "lighthouse"]
                self._lighthouse = self.hosts.start(0, words, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        self.processes[host] = [self._run(host, [*script, *addresses, "--role", "replica", *self._words], 0, 1)]

    def learner(self, host: int, choice: float) -> int | None:
        process = self.processes[host][0]
        return process.pid if process.poll() is None else None

    def look(self) -> Look:
        notes = {}
        for rank in range(self.command.hosts):
            path = self.command.exp / NOTE_NAME.format(rank=rank)
            if path.exists() and (note := note_of(path.read_bytes())):
                notes[rank] = note
        living = tuple(host for host in range(self.command.hosts) if self.status(host) is None)
        most = max((note.steps for note in notes.values()), default=0)
        label = self.command.exp / LABEL
        said, self._labelled = not self._labelled and label.exists(), self._labelled or label.exists()
        work = [self.command.exp / MINE.format(rank=rank) for rank in range(self.command.hosts)]
        numbers = tuple(int(path.read_text() or 0) for path in work if path.exists())
        return Look((most,) if most else (), living, label.read_text() if said else "", numbers)

    def left(self) -> list[int]:
        if self._lighthouse is not None and self._lighthouse.poll() is None:
            self._lighthouse.kill()
            self._lighthouse.wait()
        return super().left()


def lighthouse(options: argparse.Namespace) -> None:
    """The server at which replicas find each other."""
    from torchft._torchft import LighthouseServer

    bind = f"{options.addresses[0]}:{LIGHTHOUSE}"
    server = LighthouseServer(
        bind=bind, min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=HEARTBEAT_MS, quorum_tick_ms=50
    )
    while server:
        time.sleep(1.0)


def replica(options: argparse.Namespace) -> None:
    """One replica, until so many minibatches are committed, or so many seconds are over."""
    from torchft.local_sgd import DiLoCo

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    rank, folder = int(os.environ["RANK"]), Path(options.out)
    task = TextTask(Path(options.text))
    network = task.network()
    optimizer = task.optimizer(network.parameters())
    outer = torch.optim.SGD(network.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    parts = {"network": network, "optimizer": optimizer, "outer": outer}
    place = Place(rank, tuple(options.addresses), folder)
    patience = timedelta(seconds=options.timeout)
    manager, _store = torchft_manager(place, parts, least=1, timeout=patience, init_sync=True)
    (folder / LABEL).write_text(f"torchft DiLoCo, period {options.period}, {len(place.addresses)} replicas")
    mine, step = 0, manager.current_step()
    drawn, began = np.random.default_rng([17, rank, os.getpid()]), steady_clock()
    file = os.open(folder / NOTE_NAME.format(rank=rank), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with DiLoCo(manager, [network], optimizer, outer, sync_every=options.period):
        while True:
            inputs, targets = task.minibatch(drawn)
            optimizer.zero_grad()
            torch.autograd.backward(task.loss(network(*inputs), targets))
            optimizer.step()
            committed = manager.batches_committed() * options.period
            mine += options.period if manager.current_step() > step and manager.is_participating() else 0
            step = manager.current_step()
            os.pwrite(file, Note(committed, (), steady_clock()).packed(), 0)
            (folder / MINE.format(rank=rank)).write_text(f"{mine}")
            late = options.minibatches == 0 and committed and steady_clock() - began > options.seconds
            if late or committed >= options.minibatches > 0:
                os._exit(0)


def run(options: argparse.Namespace, name: str, minibatches: int, faults: Iterator[Fault]) -> Story:
    """One of the two runs."""
    words = ["--text", str(Path(options.text).resolve()), "--period", str(options.period)]
    words += ["--timeout", str(options.timeout), "--seconds", str(options.seconds), "--minibatches", str(minibatches)]
    command = TorchftCommand(Path(options.out) / name, options.hosts, 1, options.link, words=tuple(words))
    return watch_training(command, faults, options.lasting, Bar(), 5 * options.seconds)


def main() -> None:
    """Both runs, and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--text", metavar="FILE", help="the text, perhaps compressed by gzip")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--period", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the undisturbed run (default: 300)")
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--lasting", type=float, default=3.0)
    parser.add_argument("--timeout", type=float, default=60.0, help="of torchft (default: 60 s, its own)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--faults", nargs="+", default=["kill", "crash", "stop", "cut", "slow"])
    parser.add_argument("--link", default="10gbit")
    parser.add_argument("--ours", default="", metavar="STRATEGY", help="this one too, on the same model")
    parser.add_argument("--role", choices=("replica", "lighthouse"), help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--minibatches", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        return lighthouse(options) if options.role == "lighthouse" else replica(options)
    if why_not():
        sys.exit(why_not())
    calm = run(options, "undisturbed", 0, iter(()))
    drawn = schedule(
        options.seed, options.hosts, options.every, options.lasting, checked_kinds(options.faults), ("crash", "cut")
    )
    minibatches = calm.progress[-1][1]
    stormy = run(options, "storm", minibatches, islice(drawn, options.most or None))
    after = run(options, "undisturbed-after", minibatches, iter(()))
    label = (Path(options.out) / "storm" / LABEL).read_text()
    ends = RunEnd(label, minibatches), RunEnd(label, stormy.progress[-1][1])
    found = StormResult(calm, stormy, after, ends, "minibatches")
    write_json(Path(options.out) / "storm-result.json", found.to_json())
    chosen = StormOptions("", Path(options.out), hosts=options.hosts, every=options.every, lasting=options.lasting)
    print(f"torchft: {found.whole}; {found.to_json()}")
    print(write_page(found, chosen, Path(options.out) / "storm.html"))
    if options.ours:
        ours(options, minibatches)
    return None


def ours(options: argparse.Namespace, minibatches: int) -> None:
    """Train the same model on as many minibatches of the text, hosts and schedule alike, by roundelay.attach."""
    script = [Path(__file__).with_name("storm_text.py"), "--text", Path(options.text).resolve()]
    chosen = StormOptions(
        "",
        Path(options.out) / "ours",
        script=(*map(str, script), "--strategy", options.ours, "--steps", f"{minibatches}"),
        hosts=options.hosts,
        every=options.every,
        lasting=options.lasting,
        kinds=checked_kinds(options.faults),
        seed=options.seed,
        most=options.most,
        link=options.link,
    )
    found = run_storm(chosen, Bar())
    print(f"{options.ours}: {found.whole}; {found.to_json()}")
    print(write_page(found, chosen, chosen.out / "storm.html"))


if __name__ == "__main__":
    main()
