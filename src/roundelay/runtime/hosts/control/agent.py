"""Agent: every host of several but the first. It leads its own learners and obeys the coordinator until the run ends.

A host that loses the coordinator stops its learners, comes back once they are built anew, and gives up when nobody
answers within `host_patience`: nothing outlives a run.
"""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Self

from roundelay.core.errors import UserError
from roundelay.learner.base import Task
from roundelay.runtime.base import Cluster, Glance, LearnerDied, SegmentPlan
from roundelay.runtime.hosts.control import bulk, messages
from roundelay.runtime.hosts.control.copies import CopyReceiver
from roundelay.runtime.hosts.control.division import task_in_common
from roundelay.runtime.hosts.control.inquiry import PeerState, inquire
from roundelay.runtime.hosts.control.joining import find_coordinator, hello_of
from roundelay.runtime.hosts.control.leases import counted
from roundelay.runtime.hosts.control.local_host import LocalHost
from roundelay.runtime.hosts.control.next_place import LedByAnother, led_by_another
from roundelay.runtime.hosts.terms import HostTerms, fingerprint
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.traffic import Reading, TrafficCounters
from roundelay.runtime.hosts.transport.wire import LinkError, LinkTimeout
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Address, Dialect, Message
from roundelay.runtime.procs.coordination import activity, queue
from roundelay.runtime.procs.driver import LOOK_SECONDS

Asked = Callable[[], str]
"""The name of the signal by which the user, or a scheduler, wants the run to stop; "" where nobody does."""


class _CoordinatorLost(Exception):
    """The coordinator is gone; says why."""


class _Over(Exception):
    """The coordinator says that the run has ended: well, for a reason, or stopped by a signal."""

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
        say: told what a user should know.
        asked: asked a few times a second; a name asks the coordinator to stop the run at the next round.
        copies: keeps those of checkpoints; None: this host keeps none.

    Returns:
        The name of the signal that has stopped the run, on whichever host it was heard; "" where it came to its end.

    Raises:
        UserError: the coordinator does not answer, refuses this host, or has ended for a reason.
        LedByAnother: its process has ended, and the next host leads.
    """
    seconds, then, again = terms.patience_seconds, None, False
    while True:
        try:
            with _HostAgent(cluster, place, terms, asked, seconds, copies, again) as host:
                say(f"learners {_listed(place.ranks)} take part in the run of {place.address}")
                try:
                    host.obey()
                finally:
                    then = host.led_by_another()
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


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


class _HostAgent:
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
        self._place, self._terms, self._asked, self._copies = place, terms, asked, copies
        self._orders: SimpleQueue[Message] = SimpleQueue()
        self._part = self._segment = self._generation = self._host = -1
        self._lost = ""  # why the coordinator is
        self._over: _Over | None = None  # why the run is
        self._told = False  # the coordinator, that the user wants the run to stop
        self._hosts: tuple[tuple[int, ...], ...] = ()
        self._addresses: tuple[Address, ...] = ()
        self._traffic = TrafficCounters(0, self._readings)
        self._local = LocalHost(cluster, place, terms, self._ask)
        try:
            self._monitored = self._find(seconds)
            self._monitored.beat()
            dialect = Dialect(*messages.TO_EVERY_HOST, rank=place.learners - 1)
            self._monitored.listen(dialect, self._heard, self._gone)
            task = cluster.task
            if task.in_shards:
                task = task_in_common(task, self._orders, self._check, seconds)
            self._build(task)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left running here. Safe to call twice."""
        if hasattr(self, "_monitored"):
            self._monitored.close()
        self._local.close()

    # The beginning ----------------------------------------------------------------------------------------------------

    def _find(self, seconds: float) -> MonitoredLink:
        """A link to the coordinator, sought for so many seconds.

        Raises:
            UserError: it does not answer, or does not accept us.
        """
        try:
            hello = hello_of(self._place, self._terms, self._local.router.listener)
            return find_coordinator(self._place, self._terms, hello, seconds, stop=self._stop_looking)
        except LinkTimeout as error:
            raise UserError(
                f"rank {self._place.ranks[0]}: the first host has not answered well for {seconds:g} s ({error}). If it "
                "has ended, so has the run; it goes on from its last checkpoint when all hosts are started again."
            ) from error

    def _stop_looking(self) -> None:
        """End by a signal while a first host that is lost is looked for: no other part can answer it."""
        if self._again and (signal := self._asked()):
            raise _Over("", signal)

    def _build(self, task: Task) -> None:
        self._local.start(task)
        self._runtime, self._arena = self._local.runtime, self._local.runtime.arena
        initial = fingerprint(self._arena.vector("row", self._place.ranks[0]))
        self._send(messages.Built(self._runtime.parameters, initial, self._runtime.shards))
        if self._copies is not None:
            self._send(messages.Keeps())

    # What is said -----------------------------------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        try:
            self._monitored.say(message)
        except LinkError as error:
            self._gone(str(error))
        self._check()

    def _gone(self, reason: str) -> None:
        self._lost = self._lost or f"the first host is lost: {reason}"

    def _check(self) -> None:
        """Is there still a run, and a coordinator?"""
        if self._over is not None:
            raise self._over
        if self._lost:
            raise _CoordinatorLost(self._lost)

    def _heard(self, message: Message) -> None:
        """From the thread of the link: what must not wait."""
        match message:
            case messages.LeasesGiven():
                prefetch = self._local.prefetch
                if prefetch is not None and message.part == self._part:
                    prefetch.fill(message.indices, message.more)
            case messages.Piece():
                bulk.take_piece(self._arena, message, self._place.ranks)
            case messages.Living():
                self._hear_who_lives(message)
            case messages.FilePiece():
                if self._copies is not None:
                    self._copies.take(message)
            case messages.Hold():
                self._monitored.say(messages.Replied(reached=self._local.hold()))
            case messages.Stop():
                self._local.let_go(message.round)
            case messages.End(why, signal):
                self._over = _Over(why and f"the run has ended on the first host: {why}", signal)
            case messages.HostRefused(why):
                self._over = _Over(why and f"the first host refuses this one: {why}")
            case _:
                self._orders.put(message)

    def _hear_who_lives(self, living: messages.Living) -> None:
        if living.generation <= self._generation:
            return
        self._generation, self._addresses = living.generation, living.addresses
        for rank, lives in enumerate(living.alive):
            if rank not in self._place.ranks:
                self._arena.liveness.mark([rank], bool(lives))
        self._local.peers(living.addresses, living.hosts)

    def led_by_another(self) -> LedByAnother | None:
        """Return the place of this host in a run that goes on without the first, if it may."""
        return led_by_another(self._place, self._host, self._hosts, self._addresses)

    def _say_state(self) -> None:
        arena, ranks = self._arena, list(self._place.ranks)
        steps, alive = arena.optimizer.steps[ranks].tolist(), arena.liveness.alive[ranks].tolist()
        self._send(
            messages.HostState(
                activity.HostActivity.of(arena, ranks), steps, alive, tuple(self._runtime.processes.ready())
            )
        )
        if (signal := self._asked()) and not self._told:
            self._told = True
            self._send(messages.StopAsked(signal))

    # What is done -----------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Do what the coordinator says, until it says that the run has ended.

        Raises:
            _Over, _Lost.
        """
        while True:
            self._check()
            try:
                order = self._orders.get(timeout=LOOK_SECONDS)
            except Empty:
                self._runtime.processes.collect_replacements()
                if self._hosts:
                    self._say_state()
                continue
            match order:
                case messages.Welcome():
                    self._host, self._hosts = order.host, order.hosts
                    bulk.enter_integers(self._arena, self._place.ranks, order.integers)
                    self._traffic = TrafficCounters(self._host, self._readings)
                    self._local.settle(self._host, self._hosts)
                    self._send(messages.Prepared())
                case messages.Meet():
                    self._meet(order.addresses)
                case messages.PartOrder():
                    self._train(order)
                case messages.Give():
                    for name in order.names:
                        self._give(name, order.laid_out)
                    self._send(messages.Replied(bulk.integers(self._arena, self._place.ranks)))
                case messages.Load():
                    bulk.enter_integers(self._arena, range(self._place.learners), order.integers)
                    self._send(messages.Replied())

    def _readings(self) -> Iterator[Reading]:
        yield 0, self._monitored.link.sent_bytes, self._monitored.link.received_bytes, 0.0
        yield from self._local.readings()

    def _meet(self, addresses: Sequence[Address]) -> None:
        try:
            self._local.meet(addresses)
        except (LinkError, TimeoutError) as error:
            raise UserError(f"rank {self._place.ranks[0]}: {error}. Can all hosts reach each other?") from error
        self._send(messages.Replied())

    def _give(self, name: str, laid_out: Mapping[str, str]) -> None:
        try:
            bulk.give(self._monitored, self._arena, name, self._place.ranks, laid_out)
        except LinkError as error:
            self._gone(str(error))

    def _train(self, order: messages.PartOrder) -> None:
        """A part of a segment; afterwards the coordinator is told how it went."""
        plan = dataclasses.replace(SegmentPlan.from_json(order.plan), last_round=order.last_round)
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
        queue.clear_prefetch(self._arena)  # the coordinator knows: it is what was not settled
        self._local.prefetch = None
        happened = self._runtime.outcome(plan, 0, 0.0)
        self._say_state()
        facts: dict[str, Any] = {"redrawn": happened.redrawn, "lost": happened.lost, "joined": happened.joined}
        self._send(messages.PartDone(self._part, **report, **problem, **facts, traffic=tuple(self._traffic.since())))

    def _ask(self, wanted: int) -> None:
        self._monitored.say(messages.Want(self._part, wanted))

    def _look(self, _: Glance) -> bool:
        self._check()
        report = self._report()
        if report is not None:
            self._send(messages.CountsReport(self._part, **report))
        self._say_state()
        self._local.check()
        return False

    def _report(self) -> dict[str, Any] | None:
        if self._local.prefetch is not None:
            return self._local.prefetch.report()
        return {"settled": (), "counts": counted(self._arena, self._place.ranks)}
