"""Several hosts on one machine: this process is the first, others are processes with learners of their own. They meet
on the loopback."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from roundelay.core.rates import LearnersRate
from roundelay.learner.base import Task
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, Straggler
from roundelay.runtime.hosts.control.agent import serve
from roundelay.runtime.hosts.mean_transports.messages import MeanPiece
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Message
from support.blobs import Wide
from support.clusters import OnDevice, cluster
from support.coarse import Coarse
from support.coded import Together
from support.fatal import Corrupt, Fatal
from support.in_blocks import InBlocks
from support.kept_hosts import ENDED, KeptHost, give_back
from support.kept_hosts import kept as kept_host
from support.ports import free_port
from support.preloaded import Preloaded, environment

SECRET = b"a secret of these tests alone"
TERMS = HostTerms(patience_seconds=300, host_patience=20, threads=1)
TESTS = Path(__file__).parents[1]


def place(sizes: Sequence[int], host: int, port: int, later: int = 0) -> HostPlace:
    """Return the place of host number `host`, where hosts have `sizes` learners, of which `later` may join later."""
    first = sum(sizes[:host])
    ranks = tuple(range(first, first + sizes[host]))
    listen = ("127.0.0.1", 0 if host else port)
    begin = sum(sizes) - later if later else 0
    return HostPlace(ranks, sum(sizes), 0, "127.0.0.1", port, False, listen, SECRET, begin=begin)


@dataclass
class Hosts:
    """All hosts except the first, as processes; use as a context manager."""

    name: str  # of the strategy
    sizes: tuple[int, ...]
    parameters: int = 37
    momentum: float = 0.0
    later: int = 0  # learners that may join when the others train
    examples: int = Quadratic.examples
    slow: float = 0.0  # seconds every learner sleeps for each gradient
    slow_rank: int = -1  # the only one that does
    terms: dict[str, Any] = field(default_factory=dict)
    wide: bool = False  # a module instead of a quadratic of so many parameters
    in_blocks: str = ""  # a network of the toy models instead, whose frames are drawn in blocks
    on_device: bool = False  # learners say that they compute on a device
    fatal: int = -1  # the minibatch at which a learner's host is killed
    learner_fatal: int = -1  # the one at which a learner is
    fatal_mean: tuple[int, int] = (0, 0)  # a host, and the mean that it has and does not live to hand on
    once: str = ""  # a folder: whoever draws those again lives
    codec: str = ""  # by which everything goes, under a strategy of the tests' own instead of the named one
    rate: LearnersRate = "as-is"
    trace: str = ""  # the folder of all hosts' trace
    corrupt: int = -1  # the minibatch whose gradient has another bit
    port: int = field(default_factory=free_port)
    running: dict[int, Preloaded] = field(default_factory=dict)
    kept: dict[int, KeptHost] = field(default_factory=dict)  # in their place, where hosts are kept

    @property
    def cluster(self) -> Cluster:
        learners = sum(self.sizes)
        slow = range(learners) if self.slow_rank < 0 else [self.slow_rank]
        stragglers = tuple(Straggler(rank, seconds=self.slow) for rank in slow) if self.slow else ()
        task: Task = Wide() if self.wide else Coarse(self.parameters)
        if max(self.fatal, self.learner_fatal) >= 0:
            quadratic = Coarse(self.parameters, examples=self.examples)
            task = Fatal(quadratic, self.fatal, host=True, learner_at=self.learner_fatal, once=self.once)
        if self.corrupt >= 0:
            task = Corrupt(Coarse(self.parameters), self.corrupt)
        if self.in_blocks:
            task = InBlocks(self.in_blocks)
        if self.on_device:
            task = OnDevice(task)
        made = replace(cluster(self.name, learners, task, self.momentum, stragglers=stragglers), rate=self.rate)
        return replace(made, strategy=Together(self.codec)) if self.codec else made

    @property
    def place(self) -> HostPlace:
        """Place of the first host."""
        return place(self.sizes, 0, self.port, self.later)

    @property
    def all_terms(self) -> HostTerms:
        return HostTerms(**{**vars(TERMS), "trace": Path(self.trace) if self.trace else None, **self.terms})

    def start(self, host: int) -> None:
        """Start a host, or start it again."""
        facts = {name: value for name, value in vars(self).items() if name not in ("running", "kept")}
        if (found := kept_host()) is not None:
            self.kept[host] = found
            found.lead(host, facts)
            return
        self.running[host] = Preloaded(["-m", "support.hosts", str(host), json.dumps(facts)], environment())

    def kill(self, host: int) -> None:
        """Kill a host with all of its processes."""
        self.running.pop(host).end_group()

    def end(self, host: int) -> tuple[int, str]:
        """Wait until a host has ended; return its exit status and its output."""
        if host in self.kept:
            process = self.kept.pop(host)
            found = process.end(60)
            give_back(process)
            return found
        text, _ = self.running[host].communicate(timeout=60)
        return self.running.pop(host).wait(), text

    def __enter__(self) -> "Hosts":
        for host in range(1, len(self.sizes)):
            if sum(self.sizes[: host + 1]) <= sum(self.sizes) - self.later:
                self.start(host)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for host in list(self.kept):
            if kind is None:
                self.end(host)
            else:
                self.kept.pop(host).close()
        for process in self.running.values():
            process.end_group()


def lead(host: int, facts: dict[str, Any]) -> None:
    """Be host number `host` until the run has ended."""
    hosts = Hosts(**{**facts, "sizes": tuple(facts["sizes"])})
    if host == hosts.fatal_mean[0]:
        die_with_a_mean(hosts.fatal_mean[1])
    serve(hosts.cluster, place(hosts.sizes, host, hosts.port, hosts.later), hosts.all_terms, print, lambda: "")


def die_with_a_mean(number: int) -> None:
    """Have this host killed as it hands mean `number`, of one piece each, on to the host before it in the chain."""
    say, handed = Link.say, count(1)

    def fatal(self: Link, message: Message, payload: Sequence[Any] = ()) -> None:
        if isinstance(message, MeanPiece) and next(handed) == number:
            os.killpg(0, signal.SIGKILL)
        say(self, message, payload)

    Link.say = fatal  # type: ignore[method-assign]


def main() -> None:
    """Be a host of one run, or of one run after the other, as told on standard input."""
    if len(sys.argv) > 1:
        return lead(int(sys.argv[1]), json.loads(sys.argv[2]))
    for line in sys.stdin:
        status = 1
        try:
            lead(*json.loads(line))
            status = 0
        finally:
            print(f"\n{ENDED} {status}", flush=True)


if __name__ == "__main__":
    main()
