"""Coordinator: the first of several hosts. It leads its own learners, as on one host, and the others' over links.

Those links carry little: orders, leases of minibatches, what was counted, who lives; and between segments the rows. In
this host's arena the places of learners elsewhere are mirrors: counts and lives are written there as they are reported,
rows when they are asked for. So whatever is said of all learners is read in one place.

A host is lost when its link is closed or silent for `host_patience`. Its minibatches are drawn again by the others. It
may come back, or another with its ranks: it then begins with the row of a learner of this host. Only the loss of this
host itself ends the run; everything before the last checkpoint stays.

Legend: P parameters, L learners.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from torch import Tensor

from roundelay.algorithms.codecs import codec_named
from roundelay.core.errors import UserError
from roundelay.core.live import HostSeen
from roundelay.runtime.base import (
    Cluster,
    ClusterState,
    Counts,
    Glance,
    LearnerDied,
    Outcome,
    Runtime,
    SegmentPlan,
    Watch,
    keep_going,
    wall_clock,
)
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.leases import Leases, PrefetchedLeases, enter
from roundelay.runtime.hosts.control.links import PeerLinks
from roundelay.runtime.hosts.control.membership import HostMembership, PendingJoins, open_router
from roundelay.runtime.hosts.control.peers import HostAnswer, RemoteHost
from roundelay.runtime.hosts.control.progress import Progress
from roundelay.runtime.hosts.exchange.endpoint import ExchangeEndpoint
from roundelay.runtime.hosts.means import HostMeans
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.hosts.transport import checks
from roundelay.runtime.hosts.transport.traffic import Reading, TrafficCounters
from roundelay.runtime.hosts.transport.wire import LinkError, Message
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.memory.publish import prepare_publishing
from roundelay.runtime.procs.memory.views.host_mean_sequences import HostMeanSequences

OWN = 0
"""The coordinator's host."""
EVERYBODY = -1
"""All hosts together, beside the numbers of each."""


class MultiHostRuntime(Runtime):
    """Runs a cluster on the processes of several hosts, of which this is the first.

    Raises:
        UserError: not all hosts came, or it cannot be done on several.
    """

    def __init__(self, cluster: Cluster, place: HostPlace, terms: HostTerms) -> None:
        prepare_publishing()
        self.cluster, self._terms = cluster, terms
        self._synchronous = cluster.strategy.traits.synchronous
        self._at_once = cluster.strategy.traits.joins == "at once"
        self._leases: Leases | None = None
        self._bases: dict[int, Counts] = {}  # what a lost host's learners had counted in this segment
        self._past: list[RemoteHost] = []  # lost in this segment
        self._segments = self._parts = 0
        self._plan: SegmentPlan | None = None
        self._stopping = self._stopped = False
        self._trouble: tuple[float, str] | None = None  # with links between hosts, and since when
        self._progress = Progress(2 * terms.patience_seconds)
        self._leading = False  # learners of this host are under way
        self._stale: set[str] = set()  # vectors of learners elsewhere that are newer there
        self._prefetch: PrefetchedLeases | None = None
        self._why = ""
        self._router = open_router(place, terms)
        arrivals = PendingJoins(self._router, terms.host_patience)
        self._endpoint = ExchangeEndpoint(place, terms, self._router)
        try:
            self.local_runtime = ProcsRuntime(
                cluster,
                terms.patience_seconds,
                terms.threads,
                on_death=terms.on_death,
                here=place.ranks,
                views=(HostMeanSequences,),
                open_endpoint=self._endpoint.open,
            )
        except BaseException:
            self._endpoint.close()
            self._router.close()
            raise
        self.parameters, self._arena = self.local_runtime.parameters, self.local_runtime.arena
        self._hosts = HostMembership(
            self.local_runtime, self._router, arrivals, place, terms, self._heard, self._left, self._endpoint.peers
        )
        self._peer_links: PeerLinks | None = None
        self._traffic = TrafficCounters(OWN, self._readings)
        try:
            self._hosts.gather()
            self._endpoint.settle(OWN, self._hosts.hosts)
            if self._synchronous:
                self._peer_links = PeerLinks(
                    self._router, self._hosts.hosts, OWN, terms.host_patience, 4 * self.parameters, terms.encrypt
                )
                self._hosts.ask("meet", "that it has met the others", addresses=self._hosts.addresses())
                self._peer_links.dial(self._hosts.addresses(), place.secret, terms.patience_seconds)
        except BaseException as error:
            self._why = str(error) or type(error).__name__
            self.close()
            raise

    def _readings(self) -> Iterator[Reading]:
        for remote in self._hosts.all():
            yield remote.host, remote.monitored.link.sent_bytes, remote.monitored.link.received_bytes, 0.0
        yield from self._endpoint.readings()
        if self._peer_links is not None:
            yield from self._peer_links.readings()

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started = wall_clock()
        self._traffic.since()
        with self._hosts.gate:
            self._segments += 1
            self._plan, self._stopped = plan, False
            self._progress = Progress(2 * self._terms.patience_seconds)
            self._bases, self._past = {}, []
            self._leases = Leases(plan.epoch, plan.first, plan.end_round * self.cluster.learners)
            self.local_runtime.begin(plan)
            self._stale = {"row", *self.local_runtime.layout.memory}
            for remote in self._hosts.all():
                remote.begin_segment()
        self._part(plan, watch)
        while not self._synchronous and self._leases.left:
            self._part(plan, watch)  # minibatches came back from the dead after the living had finished
        learners = self.cluster.learners
        end = int(self._arena.queue.rounds[0]) * learners if self._synchronous else self._leases.next
        outcome = self.local_runtime.outcome(plan, end, wall_clock() - started)
        others = [*self._past, *self._hosts.all()]
        lost, joined = self._hosts.news()
        return dataclasses.replace(
            outcome,
            lost=(*outcome.lost, *(one for remote in others for one in remote.lost)),
            joined=(*outcome.joined, *(one for remote in others for one in remote.joined)),
            redrawn=outcome.redrawn + sum(remote.redrawn for remote in others) + sum(gone.redrawn for gone in lost),
            hosts_lost=lost,
            hosts_joined=joined,
            refused=self._router.listener.rejected.all,
            traffic=(*self._traffic.since(), *(one for remote in others for one in remote.traffic)),
        )

    def _part(self, plan: SegmentPlan, watch: Watch) -> None:
        """Let all learners of all hosts run until there is nothing more to draw."""
        look = self._look(watch)
        self._parts += 1  # before anybody is ordered into it, as who has just come is by a look
        look(self.local_runtime.glance())
        living = self._wanted()
        for remote in self._hosts.inside():
            if not remote.busy:
                self._order(remote, plan, living)
        self._own_part(plan, look, living)
        self._wait_for_others(plan, look)
        if not self.local_runtime.living():
            raise LearnerDied(0, "and so did all others", int(self._arena.counts.frames.sum()))

    def _wait_for_others(self, plan: SegmentPlan, look: Watch) -> None:
        """Learners here have ended."""
        try:
            while any(remote.busy for remote in self._hosts.inside()):
                time.sleep(0.02)
                look(self.local_runtime.glance())
                self.local_runtime.collect_replacements()
                if self._more_for(self.local_runtime.ready()):
                    self._lead(plan, look, self._wanted())
            look(self.local_runtime.glance())
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.who_waits()}\n") from error

    def _wanted(self) -> list[int]:
        """Learners that are to take part: those that live, and replacements that are ready."""
        found = {*self.local_runtime.living(), *self.local_runtime.ready()}
        return sorted(found.union(*(remote.ready for remote in self._hosts.inside())))

    def _more_for(self, ready: Iterable[int]) -> bool:
        """Is there anything to do for replacements on a host whose learners have all ended?"""
        return bool(list(ready)) and self._at_once and self._leases is not None and self._leases.left

    def _order(self, remote: RemoteHost, plan: SegmentPlan, living: list[int]) -> None:
        with self._hosts.gate:
            remote.busy, remote.began = remote.standing == "in", self._segments
        remote.tell(  # whoever does not hear it is lost, and will be noticed
            "part",
            part=self._parts,
            segment=self._segments,
            plan=plan.to_json(),
            last_round=plan.end_round,
            living=living,
        )

    def _own_part(self, plan: SegmentPlan, look: Watch, living: list[int]) -> None:
        try:
            self._lead(plan, look, living)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.who_waits()}\n") from error

    def _lead(self, plan: SegmentPlan, look: Watch, living: list[int]) -> None:
        self._leading = True
        try:
            self._train(plan, look, living)
        finally:
            self._leading = False

    def _train(self, plan: SegmentPlan, look: Watch, living: list[int]) -> None:
        if self._synchronous:
            assert self._peer_links is not None
            means = HostMeans(
                self._arena,
                self._hosts.hosts,
                OWN,
                self._parts,
                self._peer_links.chain,
                self._peer_links.mix_links,
                self._failed,
                codec_named(self._terms.wire, "--wire"),
            )
            try:
                self.local_runtime.part(plan, look, living, means.start)
            finally:
                means.stop()
            return
        self._prefetch = prefetch = PrefetchedLeases(self._arena, self.local_runtime.here, self._lease_own)
        try:
            self.local_runtime.part(plan, look, living, prefetch.start)
        finally:
            prefetch.stop()
            self._prefetch = None
        assert self._leases is not None
        self._settle_own(prefetch)
        queue.clear_prefetch(self._arena)
        self._leases.give_back(OWN)

    def _settle_own(self, prefetch: PrefetchedLeases) -> None:
        report = prefetch.report()
        if report is not None and self._leases is not None:
            self._leases.settle(OWN, report["settled"])

    def _lease_own(self, wanted: int) -> None:
        prefetch, leases = self._prefetch, self._leases
        if prefetch is not None and leases is not None:
            prefetch.fill(*leases.draw(OWN, wanted))

    def _failed(self, reason: str) -> None:
        """A link to another host is gone, which may be dead: that is for its first link to say, a little later."""
        self._trouble = self._trouble or (wall_clock(), reason)

    # What the others say ----------------------------------------------------------------------------------------------

    def _heard(self, remote: RemoteHost, message: Message) -> None:
        with self._hosts.gate:
            if remote.standing == "gone":
                return
            header, leases = message.header, self._leases
            if message.kind == "interrupt":  # it may come between segments, and ends the next one then
                self._stopping, self.stopped_by = True, str(header["signal"])
            if header.get("part") != self._parts or leases is None or not remote.busy:
                return
            if message.kind in ("report", "done"):  # read all of it before anything is done with it
                settled, counts = checks.wholes(header["settled"]), checks.mapping(header["counts"])
                answer = HostAnswer.read(header, self.local_runtime.layout.rows) if message.kind == "done" else None
                enter(self._arena.counts, remote.ranks, counts, self._bases.get(remote.host))
                leases.settle(remote.host, settled)
                if answer is not None:
                    leases.give_back(remote.host)
                    remote.note(answer)
                    remote.busy = False
                return
            if message.kind != "want":
                return
            indices, more = leases.draw(remote.host, checks.whole(header["wanted"]))
        remote.tell("leases", part=header["part"], indices=indices, more=more)

    def _left(self, remote: RemoteHost) -> int:
        """A host is lost: what it was leased is drawn again, what it has counted stays."""
        self._past.append(remote)
        if self._leases is None:
            return 0
        self._bases[remote.host] = self._arena.counts.copy()
        return self._leases.give_back(remote.host)

    def _look(self, watch: Watch) -> Watch:
        """Attend to hosts; called a few times a second while learners run."""

        def look(glance: Glance) -> bool:
            self._hosts.attend()
            if self._prefetch is not None:
                self._settle_own(self._prefetch)
            self._judge()
            self._watch_progress()
            if watch(dataclasses.replace(glance, hosts=self._seen())) or self._stopping:
                self._stop()
            plan = self._plan
            for remote in self._hosts.inside():
                late = remote.late and not remote.began
                if plan is not None and not remote.busy and self._more_for(self._late_learners(remote, late)):
                    self._order(remote, plan, self._wanted())
            return False

        return look

    def _seen(self) -> tuple[HostSeen, ...]:
        traffic: dict[int, tuple[int, int]] = {}
        for host, sent, received, _ in self._readings():
            before = traffic.get(host, (0, 0))
            traffic[host] = before[0] + sent, before[1] + received
        return self._hosts.seen(traffic)

    def _late_learners(self, remote: RemoteHost, late: bool) -> Iterable[int]:
        """Learners of a host that could begin at once: all, when it has just come, or replacements."""
        return remote.ranks if late else remote.ready

    def _judge(self) -> None:
        """Turn problems of other hosts into exceptions.

        Raises:
            LearnerDied, TimeoutError, RuntimeError.
        """
        frames = int(self._arena.counts.frames.sum())
        with self._hosts.gate:
            lost, remotes = list(self._hosts.lost), self._hosts.all()
        if lost and (self._synchronous or self._terms.on_death == "stop"):
            gone = lost[0]
            others = f" with learners {', '.join(map(str, gone.ranks[1:]))}" if len(gone.ranks) > 1 else ""
            raise LearnerDied(gone.ranks[0], f"its host {gone.host} is lost{others}: {gone.reason}", frames)
        for remote in remotes:
            problem, text = remote.answer.problem, remote.answer.text
            if problem == "died":
                raise LearnerDied(remote.answer.rank, f"{text} (on host {remote.host})", frames)
            if problem == "timeout":
                raise TimeoutError(f"{text} (on host {remote.host})")
            if problem:
                raise RuntimeError(f"host {remote.host} failed:\n{text}")
        if self._endpoint.error:
            raise RuntimeError(f"an exchange with another host failed:\n{self._endpoint.error}")
        if self._trouble is not None and wall_clock() - self._trouble[0] > 2 * self._terms.host_patience:
            raise TimeoutError(f"hosts cannot reach each other ({self._trouble[1]})")

    def _watch_progress(self) -> None:
        """Do without a host that lives and gets nothing done; end where that is no way out.

        Raises:
            TimeoutError: names hosts and learners.
        """
        busy = {remote.host for remote in self._hosts.inside() if remote.busy} | ({OWN} if self._leading else set())
        done = {host: self._done(host, ranks) for host, ranks in enumerate(self._hosts.hosts)}
        everybody = sum(done.values())  # whoever is busy anew all the time gets nothing done either
        still = self._progress.look(
            wall_clock(), {host: amount for host, amount in done.items() if host in busy} | {EVERYBODY: everybody}
        )
        if not still:
            return
        seconds, all_ = 2 * self._terms.patience_seconds, EVERYBODY in still
        if all_ or self._synchronous or self._terms.on_death == "stop" or OWN in still:
            named = "; ".join(
                f"host {host} (learners {', '.join(map(str, self._hosts.hosts[host]))})"
                for host in (sorted(busy) if all_ else still)
            )
            raise TimeoutError(
                f"{named or 'all hosts'}: alive, but nothing that was to be trained there is done for {seconds:g} s"
            )
        for remote in [remote for remote in self._hosts.inside() if remote.host in still]:
            self._hosts.evict(remote, f"it lives, but has trained nothing for {seconds:g} s")

    def _done(self, host: int, ranks: Sequence[int]) -> int:
        """Work that a host has reported: minibatches, or frames."""
        if self._leases is not None and not self._synchronous:
            return self._leases.settled(host)
        return int(self._arena.counts.frames[list(ranks)].sum())

    def who_waits(self) -> str:
        """A table of what every learner is doing, as far as it is known here."""
        return self._hosts.who_waits()

    def _stop(self) -> None:
        """End after the round the furthest learner has begun, or its block."""
        if self._stopped or self._leases is None:
            return
        self._stopped = True
        if not self._synchronous:
            self._leases.stop(self.cluster.stop_round)
            return
        reached = hold(self.local_runtime)
        for remote in self._hosts.ask("hold", "how far its learners are"):
            reached = max(reached, remote.reached)
        stop = self.cluster.stop_round(reached)
        for remote in self._hosts.inside():
            remote.tell("stop", round=stop)
        let_go(self.local_runtime, stop)

    # State ------------------------------------------------------------------------------------------------------------

    def _fetch(self, *names: str) -> None:
        """Bring the vectors `names` of learners elsewhere here, unless they are here already."""
        wanted = [name for name in names if name in self._stale]
        if wanted:
            self._hosts.ask("give", "what its learners' rows are", names=wanted)
            self._stale.difference_update(wanted)
        if self._synchronous and self._hosts.lost:
            gone = self._hosts.lost[0]
            raise UserError(
                f"host {gone.host}, with learners {', '.join(map(str, gone.ranks))}, is lost ({gone.reason}); "
                f"{self.cluster.strategy.label} cannot go on without it. The last checkpoint is complete: the same "
                "command resumes, also with fewer learners."
            )

    def state(self) -> ClusterState:
        self._fetch("row", *self.local_runtime.layout.memory)
        return self.local_runtime.state()

    def load(self, state: ClusterState) -> None:
        self.local_runtime.load(state)
        for remote in self._hosts.inside():
            try:
                for name in ("row", *self.local_runtime.layout.memory):
                    for rank in remote.ranks:
                        bulk.send_vector(remote.monitored, name, rank, self._arena.vector(name, rank))
            except LinkError:
                continue  # it is lost, as will be noticed
        numbers = bulk.integers(self._arena, range(self.cluster.learners))
        self._hosts.ask("load", "that it has loaded a state", integers=numbers)
        self._stale.clear()

    def rows(self) -> Tensor:
        self._fetch("row")
        return self.local_runtime.rows()

    def centre(self) -> Tensor:
        return self.local_runtime.centre()

    def process_ids(self) -> list[int]:
        """Of the learners of this host."""
        return self.local_runtime.process_ids()

    def close(self) -> None:
        self._hosts.close(self._why, self.stopped_by)
        self._router.close()
        if self._peer_links is not None:
            self._peer_links.close()
        self.local_runtime.close()
        self._endpoint.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._why = str(error).partition("\n")[0] or type(error).__name__
        self.close()


def hold(local_runtime: ProcsRuntime) -> int:
    """Let no learner of a synchronous segment begin a round; the round the furthest has begun."""
    local_runtime.arena.queue_lock.acquire()
    try:
        local_runtime.arena.queue.hold[0] = 1
        return max(int(local_runtime.arena.queue.rounds[rank]) for rank in local_runtime.here)
    finally:
        local_runtime.arena.queue_lock.release()


def let_go(local_runtime: ProcsRuntime, stop: int) -> None:
    """Let them go on up to round `stop`."""
    local_runtime.arena.queue_lock.acquire()
    try:
        local_runtime.arena.queue.stop_round[0] = min(int(local_runtime.arena.queue.stop_round[0]), stop)
        local_runtime.arena.queue.hold[0] = 0
    finally:
        local_runtime.arena.queue_lock.release()
