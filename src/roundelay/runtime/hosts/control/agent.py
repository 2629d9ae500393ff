"""Agent: every host of several but the first. It leads its own learners and obeys the coordinator until the run ends.

A host that loses the coordinator stops its learners, comes back once they are built anew, and gives up when no host
answers within `host_patience`: nothing outlives a run.
"""

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from queue import Empty
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.learner.base import Task
from roundelay.runtime.base import Cluster, Glance, LearnerDied, SegmentPlan
from roundelay.runtime.hosts.control import bulk, messages
from roundelay.runtime.hosts.control.copies import CopyReceiver
from roundelay.runtime.hosts.control.finding import PeerState, StartWait, inquire
from roundelay.runtime.hosts.control.host_agent import HostAgent
from roundelay.runtime.hosts.control.leases import counted, task_in_common
from roundelay.runtime.hosts.control.local_host import LocalHost
from roundelay.runtime.hosts.control.succession import led_by_another
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.wire import LinkTimeout
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Dialect, Message
from roundelay.runtime.procs.coordination import activity, queue
from roundelay.runtime.procs.driver import LOOK_SECONDS

Asked = Callable[[], str]
"""Function that returns the name of the signal by which the user, or a scheduler, stops the run; "" if none came."""


class _CoordinatorLost(Exception):
    """Error: the link to the coordinator is gone; its text says why."""


class _Over(Exception):
    """Signal from the coordinator that the run has ended: well, for the reason `why`, or stopped by `signal`."""

    def __init__(self, why: str, signal: str = "") -> None:
        super().__init__(why)
        self.signal = signal


def serve(
    cluster: Cluster,
    place: HostPlace,
    terms: HostTerms,
    say: Callable[[str], None],
    asked: Asked,
    copies: CopyReceiver | None = None,
) -> str:
    """Lead the learners of this host in a run that the first host coordinates, until it ends.

    Args:
        say: called with sentences for the user.
        asked: called a few times a second; if it returns a name, the coordinator is asked to stop the run.
        copies: receiver of copies of checkpoints; None: this host keeps none.

    Returns:
        The name of the signal that has stopped the run, on whichever host it was heard; "" where it came to its end.

    Raises:
        UserError: the coordinator does not answer, refuses this host, or has ended for a reason.
        LedByAnother: the process of the first host has ended, and the next host leads.
    """
    seconds, then, again = terms.patience_seconds, None, False
    while True:
        try:
            with closing(_TrainingAgent(cluster, place, terms, asked, seconds, copies, again)) as host:
                say(f"learners {', '.join(map(str, place.ranks))} have come to the run of {place.address}")
                try:
                    host.obey()
                finally:
                    then = led_by_another(place, host.hosts)
        except _Over as over:
            if str(over):
                raise UserError(str(over)) from None
            return over.signal
        except _CoordinatorLost as lost:
            say(f"{lost}; looking for it for {terms.host_patience:g} s")
            seconds, again = terms.host_patience, True
        except UserError as error:
            if then is None or not isinstance(error.__cause__, LinkTimeout):
                raise
            if inquire((place.address, place.port), place, terms, {}) is not PeerState.ENDED:  # it may live
                raise
            raise then from None


@final
class _TrainingAgent(HostAgent):
    """The agent of this host, from its first message to the coordinator to the last."""

    def __init__(
        self,
        cluster: Cluster,
        place: HostPlace,
        terms: HostTerms,
        asked: Asked,
        seconds: float,
        copies: CopyReceiver | None,
        again: bool = False,
    ) -> None:
        self._again = again  # it has taken part before
        self._asked, self._copies = asked, copies
        self._part = self._segment = -1
        self._told = False  # the coordinator, that the user wants the run to stop
        self._local = local = LocalHost(cluster, place, terms, self._ask)
        dialect = Dialect(*messages.TO_ALL, *messages.TO_RUN, rank=place.learners - 1)
        super().__init__(place, terms, local.router.listener, local.links, dialect)
        try:
            self._follow(self._find_first(seconds))
            task = cluster.task
            if task.in_shards:
                task = task_in_common(task, self._orders, self._check, seconds)
            self._build(task)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close links, and end all processes and threads of this host. Safe to call twice."""
        super().close()
        self._local.close()

    # The beginning ----------------------------------------------------------------------------------------------------

    def _find_first(self, seconds: float) -> MonitoredLink:
        """Return a link to the coordinator, which is looked for during `seconds`.

        Raises:
            UserError: the coordinator does not answer, or does not accept this host.
        """
        try:
            return self._find(seconds, lasts=StartWait(self._place.ranks[0], seconds, self._stop_looking, self._again))
        except LinkTimeout as error:
            raise UserError(
                f"rank {self._place.ranks[0]}: the first host has not answered well for {seconds:g} s ({error}). If it "
                "has ended, so has the run; it goes on from its last checkpoint when all hosts are started again."
            ) from error

    def _stop_looking(self) -> None:
        """End this host's part if a signal comes while it looks for a first host that was lost.

        Raises:
            _Over: a signal has come.
        """
        if self._again and (signal := self._asked()):
            raise _Over("", signal)

    def _build(self, task: Task) -> None:
        self._local.start(task)
        self._learners = self._runtime = self._local.runtime
        self._arena = self._runtime.arena
        self._say_built()
        if self._copies is not None:
            self._send(messages.Keeps())
        self._check()

    # Messages sent ----------------------------------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        self._send(message)
        self._check()

    def _check(self) -> None:
        """Raise an error if the run has ended or the coordinator is lost."""
        match self._over:
            case messages.End(why, signal):
                raise _Over(why and f"the run has ended on the first host: {why}", signal)
            case messages.HostRefused(why):
                raise _Over(why and f"the first host refuses this one: {why}")
        if self._lost:
            raise _CoordinatorLost(f"the first host is lost: {self._lost}")

    def _heard(self, message: Message) -> bool:
        match message:
            case messages.LeasesGiven():
                prefetch = self._local.prefetch
                if prefetch is not None and message.part == self._part:
                    prefetch.fill(message.indices, message.more)
            case messages.FilePiece():
                if self._copies is not None:
                    self._copies.take(message)
            case messages.Hold():
                self._send(messages.Replied(reached=self._local.hold()))
            case messages.Stop():
                self._local.let_go(message.round)
            case _:
                return False
        return True

    def _note_lives(self, alive: Sequence[int]) -> None:
        for rank, lives in enumerate(alive):
            if rank not in self._place.ranks:
                self._arena.liveness.mark([rank], bool(lives))

    def _say_state(self) -> None:
        arena, ranks = self._arena, list(self._place.ranks)
        steps, alive = arena.optimizer.steps[ranks].tolist(), arena.liveness.alive[ranks].tolist()
        self._say(
            messages.HostState(
                activity.HostActivity.of(arena, ranks), steps, alive, tuple(self._runtime.processes.ready())
            )
        )
        if (signal := self._asked()) and not self._told:
            self._told = True
            self._say(messages.StopAsked(signal))

    # Orders -----------------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Carry out orders of the coordinator until the run ends.

        Raises:
            _Over: the coordinator says that the run has ended.
            _CoordinatorLost: the link to the coordinator is gone.
        """
        while True:
            self._check()
            try:
                order = self._orders.get(timeout=LOOK_SECONDS)
            except Empty:
                self._runtime.processes.collect_replacements()
                if self.hosts.ranks:
                    self._say_state()
                continue
            match order:
                case messages.LetIn(copied, integers):
                    if integers is not None:
                        bulk.enter_integers(self._arena, self._place.ranks, integers)
                    self._runtime.processes.let_in(copied)
                    self._say_state()  # before the reply: then all know who lives
                    self._send(messages.Replied())
                case messages.PartOrder():
                    self._train(order)
                case messages.Give():
                    self._give(order)
                    self._send(messages.Replied(bulk.integers(self._arena, self._place.ranks)))
                case messages.Load():
                    bulk.enter_integers(self._arena, range(self._place.learners), order.integers)
                    self._send(messages.Replied())
                case _:
                    self._obey(order)

    def _train(self, order: messages.PartOrder) -> None:
        """Train a part of a segment; afterwards tell the coordinator how it went."""
        plan = dataclasses.replace(SegmentPlan.from_json(order.plan), last_round=order.last_round)
        self._local.links.end_part()  # not before: another host might have needed the last mean of this one
        self._part = order.part
        if order.segment != self._segment:
            self._segment = order.segment
            self._runtime.begin(plan)
        problem: dict[str, Any] = {}
        try:
            self._local.train(plan, self._part, order.living, self._look)
        except (_Over, _CoordinatorLost):
            raise
        except LearnerDied as died:
            problem = {"problem": "died", "text": died.reason, "rank": died.rank}
        except TimeoutError as error:
            problem = {"problem": "timeout", "text": str(error)}
        except Exception:
            problem = {"problem": "error", "text": traceback.format_exc()}
        report: dict[str, Any] = self._report() or {"settled": (), "counts": counted(self._arena, self._place.ranks)}
        queue.clear_prefetch(self._arena)  # the coordinator knows: these are the leases that were not settled
        self._local.prefetch = None
        happened = self._runtime.outcome(plan, 0, 0.0)
        self._say_state()
        facts: dict[str, Any] = {"redrawn": happened.redrawn, "lost": happened.lost, "joined": happened.joined}
        self._say(messages.PartDone(self._part, **report, **problem, **facts, traffic=tuple(self._traffic.since())))

    def _ask(self, wanted: int) -> None:
        self._send(messages.Want(self._part, wanted))

    def _look(self, _: Glance) -> bool:
        self._check()
        report = self._report()
        if report is not None:
            self._say(messages.CountsReport(self._part, **report))
        self._say_state()
        self._local.links.check()
        return False

    def _report(self) -> dict[str, Any] | None:
        if self._local.prefetch is not None:
            return self._local.prefetch.report()
        return {"settled": (), "counts": counted(self._arena, self._place.ranks)}
