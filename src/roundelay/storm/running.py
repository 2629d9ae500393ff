"""One training on hosts, under a schedule of faults or none, until it ends: its story."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import final

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.records import CurvePoint, RunStarted, Segment
from roundelay.runtime.clocks import pause, steady_clock
from roundelay.runtime.namespaces.hosts import Hosts
from roundelay.storm.faults import Fault
from roundelay.storm.story import Story, Struck
from roundelay.storm.training import EventsTail, HostedTraining, TrainingCommand

LOOK_SECONDS = 0.1
"""Interval at which the run's files are looked at: the resolution of what is seen."""
GRACE_SECONDS = 60.0
"""For other hosts to end once the first has."""
LEAVING_SECONDS = 10.0
"""For helper processes to end after their host's command."""
USELESS_STARTS = 3
"""Starts in a row without new minibatches after which the storm is given up."""


def watch_training(command: TrainingCommand, faults: Iterator[Fault], again_after: float, progress: Progress) -> Story:
    """Train to the end, whatever happens.

    A host whose command has ended before its time is given it again after `again_after` seconds, all of them where the
    first has ended: under a synchronous strategy a loss ends a run, which goes on from its last checkpoint.

    Raises:
        UserError: the training ends with an error before any fault, or again and again without getting on; names the
            file of its output.
        NoNamespaces: hosts cannot be made here.
    """
    command.exp.parent.mkdir(parents=True, exist_ok=True)
    with Hosts(command.hosts) as hosts:
        hosts.rate(command.link)
        return _Watcher(HostedTraining(hosts, command), faults, again_after, progress).run()


@final
@dataclass(eq=False)
class _Watcher:
    """A training while it runs. One thread: it looks at files and processes, and does what is due."""

    training: HostedTraining
    faults: Iterator[Fault]
    again_after: float
    progress: Progress
    started: float = field(default_factory=steady_clock)
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)  # heap: seconds, number, what to do
    number: Iterator[int] = field(default_factory=count)
    down: set[int] = field(default_factory=set)  # hosts whose command will be given again
    begun: float | None = None  # when training began
    ended: float | None = None  # when the first host's command ended well
    useless: int = 0  # starts without new minibatches

    def __post_init__(self) -> None:
        command = self.training.command
        self.story = Story(command.hosts * command.learners)
        self.tail = EventsTail(command.exp)
        self.next = next(self.faults, None)
        self.shown = 0

    @property
    def now(self) -> float:
        return steady_clock() - self.started

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heappush(self.due, (self.now + seconds, next(self.number), what))

    def run(self) -> Story:
        for host in range(self.training.command.hosts):
            self.training.start(host)
        while not self._over():
            while self.due and self.due[0][0] <= self.now:
                heappop(self.due)[2]()
            self._strike()
            self._look()
            self._start_again()
            pause(LOOK_SECONDS)
        self._look()
        self.story.seconds = self.now
        deadline = self.now + LEAVING_SECONDS
        while (left := self.training.left()) and self.now < deadline:
            pause(LOOK_SECONDS)
        self.story.left = len(left)
        self.progress.finish()
        return self.story

    # What is seen ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        at = self.now
        for record in self.tail.new():
            if isinstance(record, RunStarted) and self.begun is None:
                self.progress.start(f"{self.training.command.exp.name}: {record.label}")
            if isinstance(record, CurvePoint | Segment):
                self.begun = at if self.begun is None else self.begun
                self.useless = 0
                self.story.see_frames(at, record.frames)
        live = self.training.live()
        if self.training.status(0) is not None:
            self.story.see_living(at, ())
        elif live is not None and live.living is not None:
            self.story.see_living(at, live.living)
        if self.story.progress and (new := self.story.progress[-1][1] - self.shown) > 0:
            self.progress.advance(new, f"{len(self.story.struck)} faults")
            self.shown += new

    def _over(self) -> bool:
        """True once all hosts have ended, after the first has ended well."""
        if self.training.status(0) != 0:
            return False
        if self.ended is None:
            self.ended = self.now
            self.due.clear()
            self._undo_all()
        hosts = range(self.training.command.hosts)
        running = [host for host in hosts if self.training.status(host) is None]
        if running and self.now - self.ended > GRACE_SECONDS:  # started after the first had ended: it waits in vain
            for host in running:
                self.training.end(host)
        return not running

    # What is done ----------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        """Do what the schedule says, once it is time."""
        while self.ended is None and self.begun is not None and self.next and self.begun + self.next.at <= self.now:
            fault, self.next = self.next, next(self.faults, None)
            if fault.host in self.down or self.training.status(fault.host) is not None:
                continue  # there is nothing to harm
            at = self.now
            with suppress(OSError):
                if self._do(fault):
                    until = at if fault.kind == "kill" else at + fault.seconds
                    self.story.struck.append(Struck(at, fault.kind, fault.host, until))

    def _do(self, fault: Fault) -> bool:
        """Do a fault, and arrange for its end; False if there was nothing to do it to."""
        training, host = self.training, fault.host
        if fault.kind in ("kill", "stop"):
            if (process := training.learner(host, fault.choice)) is None:
                return False
            if fault.kind == "kill":
                training.kill(process)
            else:
                training.stop(process)
                self.later(fault.seconds, lambda: training.resume(process))
        elif fault.kind == "crash":
            training.crash(host)
            self._again(host, fault.seconds)
        elif fault.kind == "cut":
            training.hosts.cut(host)
            self.later(fault.seconds, lambda: training.hosts.heal(host))
        else:
            training.slow(host)
            self.later(fault.seconds, lambda: training.swift(host))
        return True

    def _undo_all(self) -> None:
        """Nothing is stopped, cut or slow any more: the hosts are to end in peace."""
        training = self.training
        for host in range(training.command.hosts):
            training.hosts.heal(host)
            training.swift(host)
            for process in training.hosts.processes(host):
                training.resume(process)

    def _again(self, host: int, seconds: float) -> None:
        self.down.add(host)

        def start() -> None:
            self.down.discard(host)
            self.training.start(host)

        self.later(seconds, start)

    def _start_again(self) -> None:
        """Give the command again on hosts where it has ended before its time; on all, if on the first."""
        training = self.training
        hosts = range(training.command.hosts)
        if self.ended is not None or self.down >= set(hosts):
            return
        if training.status(0) not in (None, 0) and 0 not in self.down:
            if not self.story.struck or self.useless >= USELESS_STARTS:
                raise UserError(
                    f"the training ends with an error (exit status {training.status(0)}) "
                    f"{'before any fault' if not self.story.struck else 'without getting on'}: see "
                    f"{training.output(0)}, whose last line is: {_last_line(training)}"
                )
            if running := [host for host in hosts if host not in self.down and training.status(host) is None]:
                for host in running:  # they end by themselves when they notice
                    training.end(host)
                return
            self.useless += 1
            self.story.starts += 1
            for host in hosts:
                if host not in self.down:
                    self._again(host, self.again_after)
            return
        for host in hosts[1:]:
            if host not in self.down and training.status(host) not in (None, 0):
                self._again(host, self.again_after)


def _last_line(training: HostedTraining) -> str:
    lines = training.output(0).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "(nothing)")
