"""One training on hosts, under a schedule of faults or none, until it ends: its story."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import final

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.runtime.clocks import pause, steady_clock
from roundelay_lab.namespaces.hosts import Hosts
from roundelay_lab.storm.faults import Fault
from roundelay_lab.storm.hosted import HostedCommand, StormCommand
from roundelay_lab.storm.story import Story, Struck

LOOK_SECONDS = 0.1
"""Seconds between two looks at the run's files: the resolution of the story."""
GRACE_SECONDS = 60.0
"""Seconds within which other hosts must end once the first has."""
LEAVING_SECONDS = 10.0
"""Seconds within which helper processes must end after their host's command."""
USELESS_STARTS = 3
"""After so many starts in a row without new minibatches, faults end; without faults, starts end."""


def watch_training(
    command: StormCommand,
    faults: Iterator[Fault],
    again_after: float,
    progress: Progress,
    longest: float = math.inf,
) -> Story:
    """Train to the end, through all faults.

    A host whose command ends too early is given it again after `again_after` seconds; all hosts are, if the first
    host's ends: under a synchronous strategy a loss ends a run, which goes on from its last checkpoint. With faults
    faster than its progress a run would never end. So faults end after `longest` seconds of training, or once the run
    was started again and again in vain; then it ends undisturbed, or fails.

    Raises:
        UserError: the training ends with an error before any fault, or again and again without progress, or does not
            end although faults have ended; names the file of its output.
        NoNamespaces: hosts cannot be made on this machine.
    """
    command.exp.parent.mkdir(parents=True, exist_ok=True)
    with Hosts(command.hosts) as hosts:
        hosts.rate(command.link)
        return _Watcher(command.on(hosts), faults, again_after, progress, longest).run()


@final
@dataclass(eq=False)
class _Watcher:
    """A watcher of a running training: in one thread it looks at files and processes, and does work that is due."""

    training: HostedCommand
    faults: Iterator[Fault]
    again_after: float
    progress: Progress
    longest: float
    started: float = field(default_factory=steady_clock)
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)  # heap: seconds, number, work
    number: Iterator[int] = field(default_factory=count)
    down: set[int] = field(default_factory=set)  # hosts whose command will be given again
    begun: float | None = None  # when training began
    ended: float | None = None  # when the first host's command ended well
    useless: int = 0  # starts without new minibatches
    away: bool = False  # the first host was killed, and another leads: none comes back before that run has ended
    waiting: list[Fault] = field(default_factory=list)  # whose time has come, and which have met nothing yet

    def __post_init__(self) -> None:
        command = self.training.command
        self.story = Story(command.hosts * command.learners)
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
            self._calm_down()
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

    # Looking ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Note in the story how far the training is and which learners live."""
        at, news = self.now, self.training.look()
        if news.label and self.begun is None:
            self.progress.start(f"{self.training.command.exp.name}: {news.label}")
        self.story.work = news.work or self.story.work
        for counted in news.counted:
            self.begun = at if self.begun is None else self.begun
            if not self.story.progress or counted > self.story.progress[-1][1]:
                self.useless = 0
            self.story.see_frames(at, counted)
        if news.living is not None:
            self.story.see_living(at, news.living)
        if self.story.progress and (new := self.story.progress[-1][1] - self.shown) > 0:
            self.progress.advance(new, f"{len(self.story.struck)} faults")
            self.shown += new

    def _calm_down(self) -> None:
        """Stop the faults if the run would not end with them."""
        late = 0.0 if self.begun is None else self.now - self.begun
        if (self.next is not None or self.waiting) and self.story.calmed is None and late > self.longest:
            self.next, self.story.calmed = None, self.now
        if self.ended is None and late > 2 * self.longest:
            raise UserError(
                f"the training has not ended {late:.0f} s after its first minibatches, though there were no more "
                f"faults after {self.longest:.0f} s: see {self.training.output(0)}."
            )

    def _over(self) -> bool:
        """Return True once all hosts have ended, after one (the first, unless another may lead) has succeeded."""
        leaders = range(self.training.command.hosts if self.training.command.peers else 1)
        if self.ended is None and not any(self.training.status(host) == 0 for host in leaders):
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

    # Acting ----------------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        """Do the faults that are due. A fault without a target, as on a host that is down, waits for one, at most one
        of each kind and host: else a storm would be milder the worse a run fares."""
        while self.ended is None and self.begun is not None and self.next and self.begun + self.next.at <= self.now:
            if not any((one.kind, one.host) == (self.next.kind, self.next.host) for one in self.waiting):
                self.waiting.append(self.next)
            self.story.drawn += 1
            self.next = next(self.faults, None)
        if self.ended is not None or self.story.calmed is not None:
            return
        for fault in [*self.waiting]:
            if fault.host in self.down or self.training.status(fault.host) is not None:
                continue
            at = self.now
            with suppress(OSError):
                if self._do(fault):
                    until = at if fault.kind == "kill" else at + fault.seconds
                    self.story.struck.append(Struck(at, fault.kind, fault.host, until))
                    self.waiting.remove(fault)

    def _do(self, fault: Fault) -> bool:
        """Do a fault, and arrange for its end; return False if it had no target."""
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
            self.away = self.away or (host == 0 and not training.command.first_comes_back)
            if not self.away:
                self._again(host, fault.seconds)
        elif fault.kind == "cut":
            training.hosts.cut(host)
            self.later(fault.seconds, lambda: training.hosts.heal(host))
        else:
            training.slow(host)
            self.later(fault.seconds, lambda: training.swift(host))
        return True

    def _undo_all(self) -> None:
        """Undo all faults, since the hosts are to end undisturbed: nothing stays stopped, cut off or slow."""
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
            if not self.away:
                self.training.start(host)

        self.later(seconds, start)

    def _start_again(self) -> None:
        """Start the command again on hosts where it ended too early; on all hosts, if the run has ended."""
        training = self.training
        hosts = range(training.command.hosts)
        if self.ended is not None or self.down >= set(hosts):
            return
        running = [host for host in hosts if host not in self.down and training.status(host) is None]
        all_come_back = training.command.peers and training.command.first_comes_back
        if self.away:  # a host that was not in the run yet looks in vain for the first
            led = any(training.takes_part(host) for host in running)
        else:
            led = bool(running) if all_come_back else training.status(0) in (None, 0) or 0 in self.down
        if not led:
            self._all_again(running)
            return
        for host in () if self.away else hosts[0 if all_come_back else 1 :]:
            if host not in self.down and training.status(host) not in (None, 0):
                self._again(host, self.again_after)

    def _all_again(self, running: Sequence[int]) -> None:
        """Start the command again on all hosts after the run ended too early, once no host is `running`."""
        training = self.training
        if self.story.struck and self.useless >= USELESS_STARTS and (self.next is not None or self.waiting):
            self.next, self.story.calmed, self.useless = None, self.now, 0
            self.waiting.clear()
        if not self.story.struck or self.useless >= USELESS_STARTS:
            raise UserError(
                f"the training ends with an error (exit status {training.status(0)}) "
                f"{'before any fault' if not self.story.struck else 'without getting on'}: see "
                f"{training.output(0)}, whose last line is: {_last_line(training)}"
            )
        for host in running:  # they end by themselves when they notice
            training.end(host)
        if running:
            return
        self.useless, self.away = self.useless + 1, False
        self.story.starts += 1
        for host in range(training.command.hosts):
            if host not in self.down:
                self._again(host, self.again_after)


def _last_line(training: HostedCommand) -> str:
    lines = training.output(0).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "(nothing)")
