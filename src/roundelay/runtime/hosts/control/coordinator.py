"""Coordinator: the first of several hosts. It leads its own learners, as on one host, and the others' over links.

Those links carry little: orders, leases of minibatches, counts, lives; and between segments the rows. In this host's
arena the places of learners elsewhere are mirrors: counts and lives are written there as they are reported, rows when
they are asked for. So every fact about all learners is read in one place.

A host is lost when its link is closed or silent for `host_patience`. Its minibatches are drawn again by the others. It
may come back, or another with its ranks: it then begins with the row of a learner of this host. Only the loss of this
host itself ends the run; everything before the last checkpoint stays.

Legend: P parameters, L learners.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
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
from roundelay.runtime.gathering import Gatherings
from roundelay.runtime.hosts.control import messages
from roundelay.runtime.hosts.control.copies import CopySender
from roundelay.runtime.hosts.control.finding import PendingJoins
from roundelay.runtime.hosts.control.leases import Leases, PrefetchedLeases, enter
from roundelay.runtime.hosts.control.local_host import LocalHost
from roundelay.runtime.hosts.control.membership import HostEvents, HostMembership
from roundelay.runtime.hosts.control.mirrors import Mirrors
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Message
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.trace import HOSTS, Recorder

OWN_HOST = 0
"""Number of the coordinator's host."""
EVERYBODY = -1
"""Number that stands for all hosts together, where each host has its own."""
SUSPENDED_SECONDS = 1.0
"""Most seconds that count between two looks: a process that was suspended has not idled."""


class HostProgress:
    """Seconds that each host has been busy without getting anything done: a heartbeat says that a host lives, only
    settled leases say that it moves.

    Args:
        patience: seconds after which a busy host without progress has stood still for too long.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._looked: float | None = None
        self._still: dict[int, tuple[int, float]] = {}  # by host, how much it had done, and seconds since then

    def look(self, now: float, done: Mapping[int, int]) -> list[int]:
        """Return hosts that have stood still for too long.

        Args:
            now: seconds, of any clock that does not go back.
            done: for each busy host, a number that changes when the host gets something done. A host that is not named
                is not busy; its time begins anew when it is named again.
        """
        passed = 0.0 if self._looked is None else min(max(0.0, now - self._looked), SUSPENDED_SECONDS)
        self._looked = now
        before, self._still = self._still, {}
        for host, amount in done.items():
            had, seconds = before.get(host, (None, 0.0))
            self._still[host] = amount, seconds + passed if had == amount else 0.0
        return sorted(host for host, (_, seconds) in self._still.items() if seconds > self._patience)


def standstill(hosts: Mapping[int, Sequence[int]], seconds: float) -> TimeoutError:
    """Return the error that `hosts`, each with the ranks of its learners, got nothing done for `seconds`."""
    named = "; ".join(f"host {host} (learners {', '.join(map(str, ranks))})" for host, ranks in hosts.items())
    return TimeoutError(
        f"{named or 'all hosts'}: alive, but nothing that was to be trained there is done for {seconds:g} s"
    )


class MultiHostRuntime(Runtime):
    """Runs a cluster on the processes of several hosts, of which this is the first.

    Args:
        exp: the run directory, of which other hosts may keep copies.

    Raises:
        UserError: not all hosts came, or the cluster cannot be trained on several hosts.
    """

    def __init__(self, cluster: Cluster, place: HostPlace, terms: HostTerms, exp: Path | None = None) -> None:
        self.cluster, self._terms, self._copies = cluster, terms, CopySender(exp)
        self._synchronous = cluster.strategy.traits.synchronous
        self._needs_all = terms.on_death == "stop" or (self._synchronous and terms.on_death != "go-on")
        self._at_once = cluster.strategy.traits.joins_at_once
        self._leases: Leases | None = None
        self._bases: dict[int, Counts] = {}  # counts of all learners when a host was lost in this segment
        self._past: list[RemoteHost] = []  # lost in this segment
        self._segments = self._parts = 0
        self._plan: SegmentPlan | None = None
        self._recorder: Recorder | None = None
        self._stopping = self._stopped = False
        self._progress = HostProgress(2 * terms.patience_seconds)
        self._leading = False  # learners of this host are under way
        self._why = ""
        self._row_format = RowFormat.of(terms, cluster.strategy.traits.paced_by_links)
        self._local = LocalHost(cluster, place, terms, self._lease_own)
        arrivals = PendingJoins(self._local.router, place, terms)
        try:
            self._local.start(cluster.task)
        except BaseException:
            self._local.close()
            raise
        self.local_runtime = self._local.runtime
        self.parameters, self._arena = self.local_runtime.parameters, self.local_runtime.arena
        events = HostEvents(messages.OF_RUN, self._heard, self._left, self._came, not self._needs_all)
        self._hosts = HostMembership(self.local_runtime, self._local.links, arrivals, place, terms, events)
        self._hosts.holds_back = self._synchronous
        self._mirrors = Mirrors(self._arena, self._hosts, place.ranks, cluster.strategy, self._needs_all)
        try:
            self._hosts.open()
            self._recorder = self._record()
        except BaseException as error:
            self._why = str(error) or type(error).__name__
            self.close()
            raise

    def _record(self) -> Recorder | None:
        """Begin the trace of the run, and return its recorder; None: the run is not recorded."""
        if self._terms.trace is None:
            return None
        facts = {**self.local_runtime.facts(), HOSTS: self._hosts.hosts}
        recorder = Recorder(self._terms.trace, facts, self.local_runtime.state())
        self._parts = recorder.commands  # parts have the numbers of commands
        return recorder

    @property
    def remark(self) -> str:
        return self._row_format.said()

    def divided(self, plan: EpochPlan) -> EpochPlan:
        found = self._hosts.division.divided(plan)
        if found.shares and self._recorder is not None:
            raise UserError(
                "training.record: the hosts have different shards of the corpus, and a replay is on one. Give each all "
                "shards, or leave --record out."
            )
        return found

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started = wall_clock()
        if self._synchronous and not self._needs_all:
            living = self.local_runtime.living()
            mirrored = living if set(living).isdisjoint(self.local_runtime.here) else []
            if mirrored:  # who is let in begins with the state of one of these
                self._mirrors.fetch(*self._mirrors.names)
            self.local_runtime.processes.let_in(mirrored=mirrored)
            self._hosts.let_in()
            plan = replace(plan, epoch=plan.epoch.for_living(self.local_runtime.living()))
        self._hosts.traffic.since()
        with self._hosts.gate:
            self._segments += 1
            self._plan, self._stopped = plan, False
            self._progress = HostProgress(2 * self._terms.patience_seconds)
            self._bases, self._past = {}, []
            self._leases = Leases(plan.epoch, plan.first, plan.end_round * self.cluster.learners)
            self.local_runtime.begin(plan)
            self._mirrors.begin_segment()
            for remote in self._hosts.all():
                remote.answer = messages.HostAnswer()
        self._part(plan, watch)
        while not self._synchronous and self._leases.left_for([OWN_HOST, *(r.host for r in self._hosts.inside())]):
            self._part(plan, watch)  # minibatches came back from the dead after the living had finished
        rounds = int(self._arena.queue.stop_round[0])
        end = rounds * self.cluster.learners if self._synchronous else self._leases.next
        outcome = self.local_runtime.outcome(plan, end, wall_clock() - started)
        others = [remote.answer for remote in (*self._past, *self._hosts.all())]
        lost, joined = self._hosts.news()
        return replace(
            outcome,
            lost=(*outcome.lost, *(one for other in others for one in other.lost)),
            joined=(*outcome.joined, *(one for other in others for one in other.joined)),
            redrawn=outcome.redrawn + sum(other.redrawn for other in others) + sum(gone.redrawn for gone in lost),
            hosts_lost=lost,
            hosts_joined=joined,
            refused=self._local.router.listener.rejected.all,
            traffic=(*self._hosts.traffic.since(), *(one for other in others for one in other.traffic)),
            forms=self._hosts.forms(),
        )

    def _part(self, plan: SegmentPlan, watch: Watch) -> None:
        """Let all learners of all hosts run until there is nothing more to draw."""
        look = self._look(watch)
        self.local_runtime.begin_gatherings()
        self._parts += 1  # before any host is ordered into it: a look orders late ones
        look(self.local_runtime.glance())
        living = self._wanted()
        if self._recorder is not None:
            self._recorder.command({"do": "segment", **plan.to_json(), "living": living})
        for remote in self._hosts.inside():
            if not remote.busy:
                self._order(remote, plan, living)
        try:
            self._lead(plan, look, living)
            self._wait_for_others(plan, look)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.who_waits()}\n") from error
        finally:
            self._local.links.end_part()  # not before: all here may be dead, and this host says who is in means
        if not self.local_runtime.living():
            raise LearnerDied(0, "and so did all others", int(self._arena.counts.frames.sum()), last=True)
        if self._recorder is not None:
            lost = [*self.local_runtime.processes.lost, *(one for r in self._hosts.all() for one in r.answer.lost)]
            self._mirrors.begin_segment()  # of another part, they may be here
            self._recorder.done(self.state(), tuple(self.local_runtime.living()), tuple(one.rank for one in lost))

    def _wait_for_others(self, plan: SegmentPlan, look: Watch) -> None:
        """Wait for learners elsewhere, when those here have ended."""
        while any(remote.busy for remote in self._hosts.inside()):
            time.sleep(0.02)
            look(self.local_runtime.glance())
            self.local_runtime.processes.collect_replacements()
            if self._more_for(OWN_HOST, self.local_runtime.processes.ready()):
                self._lead(plan, look, self._wanted())
        look(self.local_runtime.glance())

    def _wanted(self) -> list[int]:
        """Return the ranks that are to take part: living learners, and replacements that are ready. Where learners wait
        for each other, replacements must have been let in before."""
        if self._synchronous:
            return self.local_runtime.living()
        found = {*self.local_runtime.living(), *self.local_runtime.processes.ready()}
        return sorted(found.union(*(remote.ready for remote in self._hosts.inside())))

    def _more_for(self, host: int, ready: Iterable[int]) -> bool:
        """Return True if there is anything to do for replacements on a host whose learners have all ended."""
        return bool(list(ready)) and self._at_once and self._leases is not None and self._leases.left_for([host])

    def _order(self, remote: RemoteHost, plan: SegmentPlan, living: list[int]) -> None:
        with self._hosts.gate:
            remote.busy, remote.began = remote.standing == "in", self._segments
        # A host that does not hear it is lost, and will be noticed.
        remote.tell(messages.PartOrder(self._parts, self._segments, plan.to_json(), plan.end_round, tuple(living)))

    def _lead(self, plan: SegmentPlan, look: Watch, living: list[int]) -> None:
        self._leading = True
        try:
            self._local.train(plan, self._parts, living, look)
        finally:
            self._leading, prefetch, self._local.prefetch = False, self._local.prefetch, None
        if prefetch is not None and self._leases is not None:
            self._settle_own(prefetch)
            queue.clear_prefetch(self._arena)
            self._leases.give_back(OWN_HOST)

    def _settle_own(self, prefetch: PrefetchedLeases) -> None:
        report = prefetch.report()
        if report is not None and self._leases is not None:
            self._leases.settle(OWN_HOST, report["settled"])

    def _lease_own(self, wanted: int) -> None:
        prefetch, leases = self._local.prefetch, self._leases
        if prefetch is not None and leases is not None:
            prefetch.fill(*leases.draw(OWN_HOST, wanted))

    # Messages of the others -------------------------------------------------------------------------------------------

    def _heard(self, remote: RemoteHost, message: Message) -> None:
        with self._hosts.gate:
            if remote.standing == "gone":
                return
            if isinstance(message, messages.Keeps):
                self._copies.wanted(remote)
            if isinstance(message, messages.StopAsked):  # it may come between segments, and ends the next one then
                self._stopping, self.stopped_by = True, message.signal
            leases = self._leases
            if getattr(message, "part", None) != self._parts or leases is None or not remote.busy:
                return
            if isinstance(message, messages.CountsReport):
                enter(self._arena.counts, remote.ranks, message.counts, self._bases.get(remote.host))
                leases.settle(remote.host, message.settled)
                if isinstance(message, messages.PartDone):
                    leases.give_back(remote.host)
                    remote.answer, remote.busy = message, False
            if not isinstance(message, messages.Want):
                return
            indices, more = leases.draw(remote.host, message.wanted)
        remote.tell(messages.LeasesGiven(message.part, tuple(indices), more))

    def _came(self, remote: RemoteHost) -> None:
        """Note that a host takes part."""
        if self._recorder is not None:  # the others have begun
            self._recorder.lost(remote.ranks)
        Gatherings(self._arena.gatherings).leave(remote.ranks)  # until its learners begin
        self._arena.liveness.mark(remote.ranks, True)

    def _left(self, remote: RemoteHost, _: str) -> int:
        """Return the number of minibatches of a lost host that are drawn again; the counts that it reported stay."""
        self._past.append(remote)
        if self._recorder is not None:
            self._recorder.lost(remote.ranks)
        if self._leases is None:
            return 0
        self._bases[remote.host] = self._arena.counts.copy()
        return 0 if self._synchronous else self._leases.lose(remote.host)

    def _look(self, watch: Watch) -> Watch:
        """Return a watch that calls `watch` and attends to the other hosts, a few times a second."""

        def look(glance: Glance) -> bool:
            self._hosts.attend()
            self._copies.look()
            if self._local.prefetch is not None:
                self._settle_own(self._local.prefetch)
            self._judge()
            self._watch_progress()
            if watch(replace(glance, hosts=self._hosts.seen())) or self._stopping:
                self._stop()
            plan = self._plan
            for remote in self._hosts.inside():
                if plan is not None and not remote.busy and self._more_for(remote.host, remote.could_begin()):
                    self._order(remote, plan, self._wanted())
            return False

        return look

    def _judge(self) -> None:
        """Raise an error if another host is lost that is needed, or has reported a problem, or hosts cannot work
        together.

        Raises:
            LearnerDied, TimeoutError, RuntimeError: in these cases.
        """
        frames = int(self._arena.counts.frames.sum())
        with self._hosts.gate:
            lost, remotes = list(self._hosts.lost), self._hosts.all()
        if lost and self._needs_all:
            gone = lost[0]
            others = f" with learners {', '.join(map(str, gone.ranks[1:]))}" if len(gone.ranks) > 1 else ""
            raise LearnerDied(gone.ranks[0], f"its host {gone.host} is lost{others}: {gone.reason}", frames)
        for remote in remotes:
            remote.raise_problem(frames)
        self._local.links.check()

    def _watch_progress(self) -> None:
        """Take hosts that live and get nothing done for lost, or end the run if it cannot go on without them.

        Raises:
            TimeoutError: the run cannot go on; names hosts and learners.
        """
        busy = {OWN_HOST} if self._leading else set()
        busy |= {remote.host for remote in self._hosts.inside() if remote.busy}
        done = {host: self._done(host, ranks) for host, ranks in enumerate(self._hosts.hosts)}
        everybody = sum(done.values())  # a host that is busy anew all the time gets nothing done either
        still = self._progress.look(
            wall_clock(), {host: amount for host, amount in done.items() if host in busy} | {EVERYBODY: everybody}
        )
        if not still:
            return
        seconds, all_ = 2 * self._terms.patience_seconds, EVERYBODY in still
        if all_ or self._synchronous or self._terms.on_death == "stop" or OWN_HOST in still:
            raise standstill({host: self._hosts.hosts[host] for host in (sorted(busy) if all_ else still)}, seconds)
        for remote in [remote for remote in self._hosts.inside() if remote.host in still]:
            self._hosts.evict(remote, f"it lives, but has trained nothing for {seconds:g} s")

    def _done(self, host: int, ranks: Sequence[int]) -> int:
        """Return the amount of work that learners `ranks` of `host` have reported: minibatches, or frames."""
        if self._leases is not None and not self._synchronous:
            return self._leases.settled(host)
        return int(self._arena.counts.frames[list(ranks)].sum())

    def who_waits(self) -> str:
        """Return a table of every learner's present effect, as far as it is known here."""
        return self._hosts.who_waits()

    def _stop(self) -> None:
        """End the segment after the last round that any learner has begun, or after the block of that round."""
        if self._stopped or self._leases is None:
            return
        self._stopped = True
        if not self._synchronous:
            self._leases.stop(self.cluster.stop_round)
            return
        reached = self._local.hold()
        for remote in self._hosts.ask(messages.Hold(), "how far its learners are"):
            reached = max(reached, remote.reached)
        stop = self.cluster.stop_round(reached)
        for remote in self._hosts.inside():
            remote.tell(messages.Stop(stop))
        self._local.let_go(stop)

    # State ------------------------------------------------------------------------------------------------------------

    def state(self) -> ClusterState:
        self._mirrors.fetch(*self._mirrors.names)
        return self.local_runtime.state()

    def load(self, state: ClusterState) -> None:
        if self._recorder is not None:
            self._recorder.load(state)
        self.local_runtime.load(state)
        self._mirrors.send()

    def rows(self) -> Tensor:
        self._mirrors.fetch("row")
        return self.local_runtime.rows()

    def shares(self) -> list[float] | None:
        return self.local_runtime.shares()

    def centre(self) -> Tensor:
        return self.local_runtime.centre()

    def process_ids(self) -> list[int]:
        """Return the process ids of the learners of this host."""
        return self.local_runtime.process_ids()

    def close(self) -> None:
        self._hosts.close(self._why, self.stopped_by)
        self._local.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._why = str(error).partition("\n")[0] or type(error).__name__
        self.close()
