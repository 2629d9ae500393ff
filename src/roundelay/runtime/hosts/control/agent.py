"""Agent: every host of several but the first. It leads its own learners and obeys the coordinator until the run ends.

A host that loses the coordinator stops its learners, comes back once they are built anew, and gives up when nobody
answers within `host_patience`: nothing outlives a run.
"""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Self

from roundelay.core.errors import UserError
from roundelay.learner.base import Task
from roundelay.runtime.base import Cluster, Glance, LearnerDied, SegmentPlan
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.copies import CopyReceiver
from roundelay.runtime.hosts.control.division import task_in_common
from roundelay.runtime.hosts.control.inquiry import PeerState, inquire
from roundelay.runtime.hosts.control.joining import find_coordinator
from roundelay.runtime.hosts.control.leases import counted
from roundelay.runtime.hosts.control.local_host import LocalHost
from roundelay.runtime.hosts.control.next_place import LedByAnother, led_by_another
from roundelay.runtime.hosts.terms import HostTerms, fingerprint
from roundelay.runtime.hosts.transport import checks
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.traffic import Reading, TrafficCounters
from roundelay.runtime.hosts.transport.wire import Address, LinkError, LinkTimeout, Message
from roundelay.runtime.launch.world import HostPlace
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
        self._hosts: list[tuple[int, ...]] = []
        self._addresses: list[Address] = []
        self._traffic = TrafficCounters(0, self._readings)
        self._local = LocalHost(cluster, place, terms, self._ask)
        try:
            self._monitored = self._find(seconds)
            self._monitored.beat()
            self._monitored.listen(self._heard, self._gone)
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
            return find_coordinator(
                self._place, self._terms, self._local.router.listener, seconds, stop=self._stop_looking
            )
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
        facts = {"parameters": self._runtime.parameters, "shards": self._runtime.shards}
        self._send("built", initial=initial, **facts)
        if self._copies is not None:
            self._send("keeps")

    # What is said -----------------------------------------------------------------------------------------------------

    def _send(self, kind: str, **header: Any) -> None:
        try:
            self._monitored.send(kind, header)
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
        header = message.header
        match message.kind:
            case "leases":
                prefetch = self._local.prefetch
                if prefetch is not None and header["part"] == self._part:
                    prefetch.fill([int(index) for index in header["indices"]], bool(header["more"]))
            case "piece":
                bulk.take_piece(self._arena, message, self._place.ranks)
            case "living":
                self._hear_who_lives(header)
            case "file" if self._copies is not None:
                self._copies.take(message)
            case "hold":
                self._monitored.send("replied", {"reached": self._local.hold()})
            case "stop":
                self._local.let_go(int(header["round"]))
            case "end" | "refused":
                said = str(header["why"])
                ended, refused = "the run has ended on the first host", "the first host refuses this one"
                why = said and f"{ended if message.kind == 'end' else refused}: {said}"
                self._over = _Over(why, str(header.get("signal", "")))
            case _:
                self._orders.put(message)

    def _hear_who_lives(self, header: dict[str, Any]) -> None:
        if int(header["generation"]) <= self._generation:
            return
        self._generation = int(header["generation"])
        for rank, lives in enumerate(header["alive"]):
            if rank not in self._place.ranks:
                self._arena.liveness.mark([rank], lives)
        self._addresses = [(str(host), int(port)) for host, port in header["addresses"]]
        self._local.peers(self._addresses, header["hosts"])

    def led_by_another(self) -> LedByAnother | None:
        """Return the place of this host in a run that goes on without the first, if it may."""
        return led_by_another(self._place, self._host, self._hosts, self._addresses)

    def _say_state(self) -> None:
        arena, ranks = self._arena, list(self._place.ranks)
        self._send(
            "state",
            said=activity.report_activity(arena, ranks),
            steps=arena.optimizer.steps[ranks].tolist(),
            alive=arena.liveness.alive[ranks].tolist(),
            ready=self._runtime.processes.ready(),
        )
        if (signal := self._asked()) and not self._told:
            self._told = True
            self._send("interrupt", signal=signal)

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
            header = order.header
            match order.kind:
                case "welcome":
                    self._host, self._hosts = int(header["host"]), [tuple(ranks) for ranks in header["hosts"]]
                    bulk.enter_integers(self._arena, self._place.ranks, header["integers"])
                    self._traffic = TrafficCounters(self._host, self._readings)
                    self._local.settle(self._host, self._hosts)
                    self._send("prepared")
                case "meet":
                    self._meet([(str(host), int(port)) for host, port in header["addresses"]])
                case "part":
                    self._train(header)
                case "give":
                    laid_out = checks.mapping(header["laid_out"])
                    for name in header["names"]:
                        self._give(str(name), laid_out)
                    self._send("replied", integers=bulk.integers(self._arena, self._place.ranks))
                case "load":
                    bulk.enter_integers(self._arena, range(self._place.learners), header["integers"])
                    self._send("replied")

    def _readings(self) -> Iterator[Reading]:
        yield 0, self._monitored.link.sent_bytes, self._monitored.link.received_bytes, 0.0
        yield from self._local.readings()

    def _meet(self, addresses: list[Address]) -> None:
        try:
            self._local.meet(addresses)
        except (LinkError, TimeoutError) as error:
            raise UserError(f"rank {self._place.ranks[0]}: {error}. Can all hosts reach each other?") from error
        self._send("replied")

    def _give(self, name: str, laid_out: Mapping[str, str]) -> None:
        try:
            bulk.give(self._monitored, self._arena, name, self._place.ranks, laid_out)
        except LinkError as error:
            self._gone(str(error))

    def _train(self, header: dict[str, Any]) -> None:
        """A part of a segment; afterwards the coordinator is told how it went."""
        plan = dataclasses.replace(SegmentPlan.from_json(header["plan"]), last_round=int(header["last_round"]))
        self._part = int(header["part"])
        if header["segment"] != self._segment:
            self._segment = header["segment"]
            self._runtime.begin(plan)
        problem: dict[str, Any] = {"problem": "", "text": "", "rank": -1}
        try:
            self._local.train(plan, self._part, [int(rank) for rank in header["living"]], self._look)
        except (_Over, _CoordinatorLost):
            raise
        except LearnerDied as died:
            problem = {"problem": "died", "text": died.reason, "rank": died.rank}
        except TimeoutError as error:
            problem["problem"], problem["text"] = "timeout", str(error)
        except Exception:
            problem["problem"], problem["text"] = "error", traceback.format_exc()
        report = self._report() or {"settled": [], "counts": counted(self._arena, self._place.ranks)}
        queue.clear_prefetch(self._arena)  # the coordinator knows: it is what was not settled
        self._local.prefetch = None
        happened = self._runtime.outcome(plan, 0, 0.0)
        self._say_state()
        self._send(
            "done",
            part=self._part,
            **report,
            **problem,
            redrawn=happened.redrawn,
            lost=[dataclasses.asdict(lost) for lost in happened.lost],
            joined=[dataclasses.asdict(joined) for joined in happened.joined],
            traffic=[dataclasses.asdict(traffic) for traffic in self._traffic.since()],
        )

    def _ask(self, wanted: int) -> None:
        self._monitored.send("want", {"part": self._part, "wanted": wanted})

    def _look(self, _: Glance) -> bool:
        self._check()
        report = self._report()
        if report is not None:
            self._send("report", part=self._part, **report)
        self._say_state()
        self._local.check()
        return False

    def _report(self) -> dict[str, Any] | None:
        if self._local.prefetch is not None:
            return self._local.prefetch.report()
        return {"settled": [], "counts": counted(self._arena, self._place.ranks)}
