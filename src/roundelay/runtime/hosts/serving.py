"""Many hosts: every host but the first. It leads its own learners and does what the conductor says, until the run ends.

Who loses the conductor stops its learners, comes back once they are built anew, and gives up when nobody answers for as
long as hosts are patient: nothing outlives a run.
"""

import dataclasses
import traceback
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Self

from roundelay.core.errors import UserError
from roundelay.runtime.base import Cluster, Glance, LearnerDied, SegmentPlan, wall_clock
from roundelay.runtime.hosts import bulk
from roundelay.runtime.hosts.assembly import open_door
from roundelay.runtime.hosts.conductor import hold, let_go
from roundelay.runtime.hosts.crossing import Crossing
from roundelay.runtime.hosts.leases import Stock, counted
from roundelay.runtime.hosts.lines import Line
from roundelay.runtime.hosts.means import HostMeans, tables
from roundelay.runtime.hosts.mesh import Mesh
from roundelay.runtime.hosts.meter import Meter, Reading
from roundelay.runtime.hosts.terms import CONTROL, Terms, fingerprint, identity
from roundelay.runtime.hosts.wire import Address, Link, LinkError, LinkTimeout, Message
from roundelay.runtime.procs import queue, waiting
from roundelay.runtime.procs.driver import LOOK_SECONDS, ProcsRuntime
from roundelay.runtime.procs.rendezvous import Rendezvous
from roundelay.runtime.procs.world import Place

Asked = Callable[[], str]
"""The name of the signal by which the user, or a scheduler, wants the run to stop; "" where nobody does."""


class _Lost(Exception):
    """The conductor is gone; says why."""


class _Over(Exception):
    """The conductor says that the run has ended: well, for a reason, or stopped by a signal."""

    def __init__(self, why: str, signal: str = "") -> None:
        super().__init__(why)
        self.signal = signal


def serve(cluster: Cluster, place: Place, terms: Terms, say: Callable[[str], None], asked: Asked) -> str:
    """Lead the learners of this host in a run that the first host conducts, until it ends.

    Args:
        say: told what a user should know.
        asked: asked a few times a second; a name asks the conductor to stop the run at the next round.

    Returns:
        The name of the signal that has stopped the run, on whichever host it was heard; "" where it came to its end.

    Raises:
        UserError: the conductor does not answer, refuses this host, or has ended for a reason.
    """
    seconds = terms.patience_seconds
    while True:
        try:
            with _Host(cluster, place, terms, asked, seconds) as host:
                say(f"learners {_listed(place.ranks)} take part in the run of {place.address}")
                host.obey()
        except _Over as over:
            if str(over):
                raise UserError(f"the run has ended on the first host: {over}") from None
            return over.signal
        except _Lost as lost:
            say(f"{lost}; looking for it for {terms.host_patience:g} s")
            seconds = terms.host_patience


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


class _Host:
    """From the first word to the conductor to the last."""

    def __init__(self, cluster: Cluster, place: Place, terms: Terms, asked: Asked, seconds: float) -> None:
        self._cluster, self._place, self._terms, self._asked = cluster, place, terms, asked
        self._orders: SimpleQueue[Message] = SimpleQueue()
        self._synchronous = cluster.strategy.traits.synchronous
        self._stock: Stock | None = None
        self._part = self._segment = self._generation = self._host = -1
        self._lost = ""  # why the conductor is
        self._over: _Over | None = None  # why the run is
        self._trouble: tuple[float, str] | None = None
        self._told = False  # the conductor, that the user wants the run to stop
        self._hosts: list[tuple[int, ...]] = []
        self._mesh: Mesh | None = None
        self._meter = Meter(0, self._readings)
        self.crew: ProcsRuntime | None = None
        self._door = open_door(place, terms)
        self._crossing = Crossing(place, terms, self._door)
        try:
            self._line = self._find(seconds)
            self._line.beat()
            self._line.listen(self._heard, self._gone)
            self._build()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left running here. Safe to call twice."""
        if hasattr(self, "_line"):
            self._line.close()
        if self._mesh is not None:
            self._mesh.close()
        self._door.close()
        if self.crew is not None:
            self.crew.close()
        self._crossing.close()

    # The beginning ----------------------------------------------------------------------------------------------------

    def _find(self, seconds: float) -> Line:
        """A link to the conductor, sought for so many seconds.

        Raises:
            UserError: it does not answer, or takes us for a stranger.
        """
        place, deadline = self._place, wall_clock() + seconds
        hello = {
            "what": CONTROL, "ranks": [place.ranks[0], len(place.ranks)], "learners": place.learners,
            "agreement": self._terms.agreement, "address": self._door.listener.address,
        }  # fmt: skip
        while True:
            left = deadline - wall_clock()
            address = _conductor(place, left)
            try:
                # It may have moved, where a store says where it is: ask again now and then.
                link = Link.connect(
                    address, place.secret, hello, min(left, 2.0) if place.hosted else left,
                    encrypts=self._terms.encrypts, expected=identity(0),
                )  # fmt: skip
            except LinkTimeout as error:
                if wall_clock() < deadline:
                    continue
                raise UserError(
                    f"rank {place.ranks[0]}: the first host has not answered well for {seconds:g} s ({error}). If it "
                    "has ended, so has the run; it goes on from its last checkpoint when all hosts are started again."
                ) from error
            except LinkError as error:
                where = f"{address[0]}:{address[1]}"
                raise UserError(f"rank {place.ranks[0]}: {error}. Is {where} the first host?") from error
            link.patience = self._terms.host_patience
            return Line(link, self._terms.host_patience)

    def _build(self) -> None:
        terms = self._terms
        self.crew = ProcsRuntime(
            self._cluster, terms.patience_seconds, terms.threads, on_death=terms.on_death, here=self._place.ranks,
            extra=tables(self._cluster.learners), cross=self._crossing.open,
        )  # fmt: skip
        self._arena = self.crew.arena
        initial = fingerprint(self._arena.vector("row", self.crew.here[0]))
        self._send("built", parameters=self.crew.parameters, initial=initial)

    # What is said -----------------------------------------------------------------------------------------------------

    def _send(self, kind: str, **header: Any) -> None:
        try:
            self._line.send(kind, header)
        except LinkError as error:
            self._gone(str(error))
        self._check()

    def _gone(self, reason: str) -> None:
        self._lost = self._lost or f"the first host is lost: {reason}"

    def _check(self) -> None:
        """Is there still a run, and a conductor?"""
        if self._over is not None:
            raise self._over
        if self._lost:
            raise _Lost(self._lost)

    def _heard(self, message: Message) -> None:
        """From the thread of the link: what must not wait."""
        header = message.header
        match message.kind:
            case "leases":
                stock = self._stock
                if stock is not None and header["part"] == self._part:
                    stock.fill([int(index) for index in header["indices"]], bool(header["more"]))
            case "piece":
                bulk.take_piece(self._arena, message, self._place.ranks)
            case "living":
                self._hear_who_lives(header)
            case "hold":
                assert self.crew is not None
                self._line.send("replied", {"reached": hold(self.crew)})
            case "stop":
                assert self.crew is not None
                let_go(self.crew, int(header["round"]))
            case "end" | "refused":
                why = str(header["why"]) if message.kind == "end" else f"this host is refused: {header['why']}"
                self._over = _Over(why, str(header.get("signal", "")))
            case _:
                self._orders.put(message)

    def _hear_who_lives(self, header: dict[str, Any]) -> None:
        if int(header["generation"]) <= self._generation:
            return
        self._generation = int(header["generation"])
        for rank, lives in enumerate(header["alive"]):
            if rank not in self._place.ranks:
                self._arena.table("alive")[rank] = lives
        self._crossing.peers([(str(host), int(port)) for host, port in header["addresses"]])

    def _say_state(self) -> None:
        assert self.crew is not None
        arena, ranks = self._arena, list(self._place.ranks)
        self._send(
            "state", said=waiting.said(arena, ranks), steps=arena.table("steps")[ranks].tolist(),
            alive=arena.table("alive")[ranks].tolist(), ready=self.crew.ready(),
        )  # fmt: skip
        if (signal := self._asked()) and not self._told:
            self._told = True
            self._send("interrupt", signal=signal)

    # What is done -----------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Do what the conductor says, until it says that the run has ended.

        Raises:
            _Over, _Lost.
        """
        assert self.crew is not None
        while True:
            self._check()
            try:
                order = self._orders.get(timeout=LOOK_SECONDS)
            except Empty:
                self.crew.hear_newcomers()
                if self._hosts:
                    self._say_state()
                continue
            header = order.header
            match order.kind:
                case "welcome":
                    self._host, self._hosts = int(header["host"]), [tuple(ranks) for ranks in header["hosts"]]
                    bulk.enter_integers(self._arena, self._place.ranks, header["integers"])
                    self._meter = Meter(self._host, self._readings)
                    self._crossing.settle(self._host, self._hosts)
                    if self._synchronous:
                        self._mesh = Mesh(
                            self._door, self._hosts, self._host, self._terms.host_patience, 4 * self.crew.parameters,
                            self._terms.encrypts,
                        )  # fmt: skip
                    self._send("prepared")
                case "meet":
                    self._meet([(str(host), int(port)) for host, port in header["addresses"]])
                case "part":
                    self._train(header)
                case "give":
                    for name in header["names"]:
                        self._give(str(name))
                    self._send("replied", integers=bulk.integers(self._arena, self._place.ranks))
                case "load":
                    bulk.enter_integers(self._arena, range(self._place.learners), header["integers"])
                    self._send("replied")

    def _readings(self) -> Iterator[Reading]:
        yield 0, self._line.link.sent_bytes, self._line.link.received_bytes, 0.0
        yield from self._crossing.readings()
        if self._mesh is not None:
            yield from self._mesh.readings()

    def _meet(self, addresses: list[Address]) -> None:
        assert self._mesh is not None
        try:
            self._mesh.dial(addresses, self._place.secret, self._terms.patience_seconds)
        except (LinkError, TimeoutError) as error:
            raise UserError(f"rank {self._place.ranks[0]}: {error}. Can all hosts reach each other?") from error
        self._send("replied")

    def _give(self, name: str) -> None:
        try:
            for rank in self._place.ranks:
                bulk.send_vector(self._line, name, rank, self._arena.vector(name, rank))
        except LinkError as error:
            self._gone(str(error))

    def _train(self, header: dict[str, Any]) -> None:
        """A part of a segment; afterwards the conductor is told how it went."""
        assert self.crew is not None
        crew = self.crew
        plan = dataclasses.replace(SegmentPlan.from_json(header["plan"]), last_round=int(header["last_round"]))
        self._part, self._trouble = int(header["part"]), None
        if header["segment"] != self._segment:
            self._segment = header["segment"]
            crew.begin(plan)
        problem: dict[str, Any] = {"problem": "", "text": "", "rank": -1}
        try:
            self._run_part(plan, [int(rank) for rank in header["living"]])
        except (_Over, _Lost):
            raise
        except LearnerDied as died:
            problem = {"problem": "died", "text": died.reason, "rank": died.rank}
        except TimeoutError as error:
            problem["problem"], problem["text"] = "timeout", str(error)
        except Exception:
            problem["problem"], problem["text"] = "error", traceback.format_exc()
        report = self._report() or {"settled": [], "counts": counted(self._arena, crew.here)}
        queue.clear_stock(self._arena)  # the conductor knows: it is what was not settled
        self._stock = None
        happened = crew.outcome(plan, 0, 0.0)
        self._say_state()
        self._send(
            "done", part=self._part, **report, **problem, redrawn=happened.redrawn,
            lost=[dataclasses.asdict(lost) for lost in happened.lost],
            joined=[dataclasses.asdict(joined) for joined in happened.joined],
            traffic=[dataclasses.asdict(traffic) for traffic in self._meter.since()],
        )  # fmt: skip

    def _run_part(self, plan: SegmentPlan, living: list[int]) -> None:
        assert self.crew is not None
        if self._synchronous:
            assert self._mesh is not None
            means = HostMeans(
                self._arena,
                self._hosts,
                self._host,
                self._part,
                self._mesh.chain,
                self._mesh.post,
                self._failed,
                self._terms.wire,
            )
            try:
                self.crew.part(plan, self._look, living, means.start)
            finally:
                means.stop()
        else:
            self._stock = stock = Stock(self._arena, self.crew.here, self._ask)
            try:
                self.crew.part(plan, self._look, living, stock.start)
            finally:
                stock.stop()

    def _ask(self, wanted: int) -> None:
        self._line.send("want", {"part": self._part, "wanted": wanted})

    def _failed(self, reason: str) -> None:
        self._trouble = self._trouble or (wall_clock(), reason)

    def _look(self, _: Glance) -> bool:
        self._check()
        report = self._report()
        if report is not None:
            self._send("report", part=self._part, **report)
        self._say_state()
        if self._crossing.error:
            raise RuntimeError(f"an exchange with another host failed:\n{self._crossing.error}")
        if self._trouble is not None and wall_clock() - self._trouble[0] > 2 * self._terms.host_patience:
            raise TimeoutError(f"hosts cannot reach each other ({self._trouble[1]})")
        return False

    def _report(self) -> dict[str, Any] | None:
        if self._stock is not None:
            return self._stock.report()
        return {"settled": [], "counts": counted(self._arena, self._place.ranks)}


def _conductor(place: Place, seconds: float) -> Address:
    if not place.hosted:
        return place.address, place.port
    return Rendezvous(place.world, max(1.0, seconds)).hear_address("conductor")
