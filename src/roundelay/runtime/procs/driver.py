"""One host, one process per learner: the parent starts them, hands out segments, watches, and notices deaths.

A learner that dies under an asynchronous strategy is replaced: a new process builds its learner, which may take
seconds, and is a pending replacement until it takes the dead one's place. It then begins with the row of a living
holder, or with the centre, and with that learner's memory. Nobody waits for a pending replacement.

In a run on several hosts each has a ProcsRuntime for its own ranks (`here`). Rows and tables of other ranks are
mirrors, or unused. Coordinator and agents (runtime/hosts) lead it by `begin`, `part` and `outcome`, of which a segment
is made.

Legend: P parameters, L learners.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from roundelay.core.cores import cores
from roundelay.runtime.base import (
    Cluster,
    ClusterState,
    Glance,
    Joined,
    LearnerDied,
    Lost,
    Outcome,
    Runtime,
    SegmentPlan,
    Watch,
    glanced_distance,
    keep_going,
    wall_clock,
)
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.coordination.collectives import BUCKET, Library
from roundelay.runtime.procs.coordination.devices import means_between_devices, rows_on_devices
from roundelay.runtime.procs.members import Member, end, start_member
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.publish import prepare_publishing
from roundelay.runtime.procs.memory.views.view import View
from roundelay.runtime.procs.memory.views.work_queue import NONE
from roundelay.runtime.procs.worker import SegmentAnswer, WorkerSpec
from roundelay.runtime.rows import Row, adopt, mend
from roundelay.runtime.trace import NO_TRACE, Kind, Recorder, TraceWriter

PARENT = -1
LOOK_SECONDS = 0.2
"""Interval at which the parent looks at its learners."""


def do_nothing() -> None:
    """Nobody has anything to prepare."""


OnDeath = Literal["replace", "go-on", "stop"]
REPLACEMENTS = 20
"""Replacements that a runtime starts before it takes a death for a habit."""


class ProcsRuntime(Runtime):
    """Runs a cluster on real processes of this host.

    Args:
        patience_seconds: how long a learner waits for another before it gives up and says for whom.
        threads: torch threads per learner; None shares the cores out evenly, within OMP_NUM_THREADS.
        trace: a folder to record what happens in, for a replay.
        on_death: what the death of a learner means under an asynchronous strategy: another takes its place, the rest
            go on, or `LearnerDied`. Under a synchronous one it always means `LearnerDied`.
        replacements: how many may be started in all; after them the rest go on.
        here: ranks of the learners to lead, where others are on other hosts; None: all.
        views: further views of the arena.
        open_endpoint: called with the path of the arena and its layout before learners start; what each of them is told
            of how to reach other hosts, by rank.
        library: what takes the means of synchronous learners that compute on devices; None: NCCL, where each has a GPU
            of its own and nothing is recorded, else nothing but the arena.
        bucket: elements in one call of that library.
    """

    def __init__(
        self,
        cluster: Cluster,
        patience_seconds: float = 300.0,
        threads: int | None = None,
        trace: Path | None = None,
        on_death: OnDeath = "replace",
        replacements: int = REPLACEMENTS,
        here: Sequence[int] | None = None,
        views: tuple[type[View], ...] = (),
        open_endpoint: Callable[[str, Layout], Mapping[int, str]] | None = None,
        library: Library | None = None,
        bucket: int = BUCKET,
    ) -> None:
        prepare_publishing()
        cluster.strategy.check(cluster.learners)
        self.cluster, self.alone = cluster, here is None
        self.here = tuple(range(cluster.learners) if here is None else here)
        learner = cluster.task.build()
        self.parameters, self._patience_seconds = learner.parameters, patience_seconds
        scalars = len(cluster.optimizer.scalars)
        self.layout = Layout(cluster.learners, self.parameters, cluster.memory, cluster.centre, scalars, views)
        self._descriptor = create_file(self.layout)
        device = learner.device if self.alone else None  # what goes to other hosts goes from the arena
        self._on_devices = rows_on_devices(cluster, self.layout, device)
        self._collectives = means_between_devices(cluster, device, library, bucket, recorded=trace is not None)
        self.arena = arena = Arena(self._descriptor, self.layout, Patience(PARENT, patience_seconds), self._on_devices)
        vectors, versions, locks = arena.rows(), arena.row_versions.versions, arena.row_locks
        self._rows = [Row(rank, vector, versions, locks[rank]) for rank, vector in enumerate(vectors)]
        initial = learner.initial()
        leads = 0 in self.here  # then it evaluates and keeps the rows of all hosts, from the beginning on
        for row in self._rows:
            if leads or row.rank in self.here or row.rank == cluster.learners:  # pages never touched cost nothing
                row.vector.copy_(initial)
        arena.liveness.alive[:] = 1
        # torch's own number is what OMP_NUM_THREADS says, where the user has said something.
        share = cores() // len(self.here)
        self._threads = threads or max(1, min(share, torch.get_num_threads()))
        self._trace = trace
        self._recorder: Recorder | None = None
        self._on_death = "stop" if cluster.strategy.traits.synchronous else on_death
        self._replacements = replacements
        self._lost: list[Lost] = []
        self._early: tuple[Lost, ...] = ()  # while all were starting
        self._joined: list[Joined] = []
        self._redrawn = 0
        self._members: dict[int, Member] = {}
        self._pending_joins: dict[int, bool] = {}  # by rank: is it ready to take its place?
        self._orders: dict[str, Any] = {}  # of the running segment
        self._started = False
        if trace:
            facts = {"learners": cluster.learners, "parameters": self.parameters, "threads": self._threads}
            self._recorder = Recorder(trace, facts, self.state())
        try:
            self._outbox_wakes = {} if open_endpoint is None else open_endpoint(self._path, self.layout)
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        for rank in self.here:
            self._members[rank] = start_member(self._spec(rank))
        for rank, answer in self._collect(self.here, keep_going).items():
            if answer.problem:
                raise RuntimeError(f"learner {rank} could not start:\n{answer.text}")
        missing = sorted({lost.rank for lost in self._lost} - set(self.living()))
        if missing and (self._on_death != "go-on" or not self.living()):
            first = self._members[missing[0]]  # the first by rank, not by chance
            raise LearnerDied(missing[0], f"{first.reason()}{first.advice()}")
        self._started, self._early = True, tuple(self._lost)

    @property
    def _path(self) -> str:
        """Of the arena, for other processes."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def _spec(self, rank: int) -> WorkerSpec:
        return WorkerSpec(
            rank,
            self.cluster,
            self.layout,
            self._path,
            self._patience_seconds,
            self._threads,
            self._trace,
            here=None if self.alone else self.here,
            outbox_wake=self._outbox_wakes.get(rank, ""),
            on_devices=self._on_devices,
            collectives=self._collectives,
        )

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started = wall_clock()
        self.begin(plan)
        self.part(plan, watch)
        while not self.cluster.strategy.traits.synchronous and self._left_over():
            self.part(plan, watch)  # minibatches came back from the dead after the living had finished
        synchronous, arena = self.cluster.strategy.traits.synchronous, self.arena
        end = int(arena.queue.rounds.max()) * self.cluster.learners if synchronous else int(arena.queue.next_index[0])
        return self.outcome(plan, end, wall_clock() - started)

    def begin(self, plan: SegmentPlan) -> None:
        """Set all counts and tables for a new segment."""
        arena = self.arena
        arena.counts.clear()
        arena.queue.begin_segment(plan.first, plan.first_round, plan.end_round)
        if not self.alone:
            queue.open_prefetch(arena)
        self._lost, self._joined, self._redrawn = [], [], 0

    def part(
        self,
        plan: SegmentPlan,
        watch: Watch = keep_going,
        living: Sequence[int] | None = None,
        prepare: Callable[[], None] = do_nothing,
    ) -> None:
        """Let all learners run until there is nothing more to draw.

        Args:
            living: of all hosts, where there are several; replacements that are not among them wait.
            prepare: called when tables are set and before learners begin.

        Raises:
            LearnerDied, TimeoutError, RuntimeError: it cannot go on.
        """
        self.arena.sequences.begin_part()
        self.arena.queue.assigned[:] = NONE
        self.collect_replacements()
        wanted = sorted({*self.living(), *self.ready()}) if living is None else list(living)
        self._orders = {"do": "segment", **plan.to_json(), "living": wanted}
        self._orders["number"] = self._recorder.command(self._orders) if self._recorder else 0
        self._promote(wanted)
        prepare()
        answers = self._collect(self._command(rank for rank in self.here if rank in self.living()), watch)
        self._orders = {}
        self._judge(answers)
        if self._recorder:
            self._recorder.done(self.state(), tuple(self.living()), tuple(lost.rank for lost in self._lost))

    def outcome(self, plan: SegmentPlan, end: int, seconds: float) -> Outcome:
        """The outcome of the segment, which stopped before minibatch `end`; deaths while learners started are told with
        the first."""
        early, self._early = self._early, ()
        return Outcome(
            counts=self.arena.counts.copy(),
            next=end,
            finished=end >= plan.end_round * self.cluster.learners,
            wall_seconds=seconds,
            lost=(*early, *self._lost),
            joined=tuple(self._joined),
            redrawn=self._redrawn,
        )

    def _left_over(self) -> bool:
        """Is there anything to draw? Those who can are done, but minibatches may have come back from the dead, and all
        nodes may have lost somebody."""
        arena, end = self.arena, self.arena.queue.stop_round[0] * self.cluster.learners
        if arena.queue.returned[0] or arena.queue.next_index[0] < end:
            return True
        return not self.alone and bool(arena.queue.more[0] or queue.prefetched(arena))

    def _command(self, ranks: Iterable[int]) -> list[int]:
        """Give the segment's orders to `ranks`; those they were sent to."""
        sent, orders = [], json.dumps(self._orders).encode()
        for rank in ranks:
            try:
                self._members[rank].pipe.send_bytes(orders)
            except OSError:
                self._reap(rank)
            else:
                sent.append(rank)
        return sent

    def _collect(self, ranks: Iterable[int], watch: Watch) -> dict[int, SegmentAnswer]:
        """Wait for the answer, or the death, of each of `ranks`, and of replacements that take their places meanwhile.

        Comes back with the answers so far as soon as there is a problem no other learner can mend: whoever waits for
        that learner would only be waited for in vain.

        Raises:
            TimeoutError: for twice as long as learners are patient none of them took a step or answered.
        """
        answers: dict[int, SegmentAnswer] = {}
        open_ = set(ranks)
        idle, before = 0, (len(open_), 0)
        next_look = wall_clock() + LOOK_SECONDS
        while open_ and not self._hopeless(answers):
            for rank, answer in self._listen({*open_, *self._pending_joins}, next_look - wall_clock()).items():
                if rank in open_:
                    answers[rank] = answer
                    open_.discard(rank)
                else:
                    self._hear(rank, answer)
            open_ -= {rank for rank in open_ if self._members[rank].reaped or rank in self._pending_joins}
            if open_ and self._orders and self.cluster.strategy.traits.joins == "at once" and self._left_over():
                joined = self._promote(self.here)
                self._orders["living"] = self.living()
                open_.update(self._command(joined))
            if wall_clock() >= next_look:
                next_look = wall_clock() + LOOK_SECONDS
                if watch(self.glance()):
                    self._stop()
                now = (len(open_), int(self.arena.counts.steps.sum()))
                idle, before = (idle + 1 if now == before else 0), now
                if idle * LOOK_SECONDS > 2 * self._patience_seconds:  # looks, not seconds: being suspended is no idling
                    raise TimeoutError(
                        f"learners {sorted(open_)} neither take a step nor answer, for {idle * LOOK_SECONDS:.0f} s"
                    )
        return answers

    def _hopeless(self, answers: dict[int, SegmentAnswer]) -> bool:
        problem = any(answer.problem in ("error", "timeout") for answer in answers.values())
        return problem or bool(self._lost and self._on_death == "stop")

    def _listen(self, ranks: set[int], seconds: float) -> dict[int, SegmentAnswer]:
        """Messages of those of `ranks` that have something to say within `seconds`; the dead among them are reaped."""
        members = {rank: self._members[rank] for rank in sorted(ranks)}
        sources: list[Connection | int] = [m.pipe for m in members.values()]
        ready = set(wait([*sources, *(m.process.sentinel for m in members.values())], timeout=max(0.0, seconds)))
        answers = {}
        for rank, member in members.items():
            if member.pipe in ready:  # answers first: a learner may answer and then die
                try:
                    answers[rank] = member.answer()
                except (EOFError, OSError):
                    self._reap(rank)
            elif member.process.sentinel in ready:
                self._reap(rank)
        return answers

    def _judge(self, answers: dict[int, SegmentAnswer]) -> None:
        """Turn problems into exceptions; a death is one only where the strategy cannot go on."""
        for answer in answers.values():
            if answer.problem == "error":
                raise RuntimeError(f"learner {answer.rank} failed:\n{answer.text}")
        if self._lost and (self._on_death == "stop" or not self.living()):
            first = self._lost[0]
            raise LearnerDied(first.rank, first.reason, int(self.arena.counts.frames.sum()))
        late = [answer.text for answer in answers.values() if answer.problem == "timeout"]
        if late:
            raise TimeoutError("; ".join(late))
        if not self.cluster.strategy.traits.synchronous:
            # Nobody draws now. A node that lost a member has left what it worked on, and what it was to work on next.
            for rank in self.here:
                self._redrawn += queue.give_back(self.arena, rank)

    def glance(self) -> Glance:
        """Progress of the segment."""
        counts = self.arena.counts
        statistics = counts.statistics
        staleness = float(counts.stale_sum.sum() / max(1, counts.steps.sum()))
        living = tuple(self.living())
        holders = self.cluster.strategy.holders(living) if living else ()
        return Glance(
            statistics.frames,
            statistics.mean_loss,
            staleness,
            len(living),
            living=living,
            learner_frames=tuple(counts.frames.tolist()),
            lost=tuple(self._lost),
            consensus_distance=glanced_distance([self._rows[rank].vector for rank in holders]) if self.alone else None,
        )

    def _stop(self) -> None:
        """End after the round the furthest learner has begun, or its block. Draws happen under the same lock, so none
        is past it."""
        arena, learners = self.arena, self.cluster.learners
        arena.queue_lock.acquire()
        try:
            synchronous = self.cluster.strategy.traits.synchronous
            reached = int(arena.queue.rounds.max()) if synchronous else -(-int(arena.queue.next_index[0]) // learners)
            arena.queue.stop_round[0] = min(int(arena.queue.stop_round[0]), self.cluster.stop_round(reached))
        finally:
            arena.queue_lock.release()

    # Life and death ---------------------------------------------------------------------------------------------------

    def process_ids(self) -> list[int]:
        """Of the learners here, by rank; the replacement's where a learner is being replaced."""
        return [self._members[rank].process.pid or 0 for rank in self.here]

    def living(self) -> list[int]:
        """Ranks whose learners take part, on all hosts."""
        return [rank for rank in range(self.cluster.learners) if self.arena.liveness.alive[rank]]

    def _reap(self, rank: int) -> None:
        """Mark a dead learner, give back the minibatch it worked on, and start another in its place."""
        member, arena = self._members[rank], self.arena
        if member.reaped:
            return
        member.reaped = True
        arena.liveness.mark([rank], False)
        if not self.cluster.strategy.traits.synchronous:
            self._redrawn += queue.give_back(arena, rank)
        reason = member.reason()
        if self._pending_joins.pop(rank, None) is not None:
            reason += ", before it could take the place of one lost earlier"
        torn = mend(row for row in self._rows if row.rank in self.here or row.rank == self.cluster.learners)
        if torn:
            reason += " in the middle of writing a row"
        replaced = self._replace(rank)
        if self._on_death == "replace" and not replaced:
            reason += "; not replaced" + ", since too many were" * (not self._replacements)
        self._lost.append(Lost(rank, reason, replaced, torn))

    # Replacements -----------------------------------------------------------------------------------------------------

    def _replace(self, rank: int) -> bool:
        """Start a replacement for a dead learner, if there may be one more and anybody is left to learn from."""
        if self._on_death != "replace" or not self._replacements:
            return False
        if self._started and not self.living():
            return False
        if not self._started and not self._members[rank].killed:  # it ended by itself, as the next one would
            return False
        self._replacements -= 1
        self._members[rank].let_go()
        try:
            self._members[rank] = start_member(self._spec(rank))
        except OSError:  # no memory, or no more processes: the others can go on all the same
            return False
        if not self._started:  # it has missed nothing: nobody has trained yet
            self.arena.liveness.mark([rank], True)
            return True
        self._pending_joins[rank] = False
        return True

    def collect_replacements(self) -> None:
        """Has any of them built its learner?"""
        for rank, answer in self._listen(set(self._pending_joins), 0.0).items():
            self._hear(rank, answer)

    def _hear(self, rank: int, answer: SegmentAnswer) -> None:
        """A replacement has built its learner, or could not."""
        if answer.problem:
            self._members[rank].failure = answer.text.strip().rpartition("\n")[2]
            self._reap(rank)
        else:
            self._pending_joins[rank] = True

    def ready(self) -> list[int]:
        """Replacements that have built their learner."""
        return [rank for rank, ready in self._pending_joins.items() if ready]

    def _promote(self, wanted: Sequence[int]) -> list[int]:
        """Those of `wanted` that are replacements and ready take their places; who did."""
        ready = [rank for rank in self.ready() if rank in wanted]
        for rank in ready:
            near = [other for other in self.living() if other in self.here]
            # Where nobody else lives on this host: the row that the dead one has left, at worst half a step further on.
            source = self.source(rank, near) if near else rank
            row, writer = self._rows[rank], TraceWriter(self._trace, rank) if self._trace else None
            notes = writer or NO_TRACE
            notes.note(Kind.BEGIN, mine=self._orders["number"])
            memory = [(self.arena.vector(n, rank), self.arena.vector(n, source)) for n in self.layout.memory]
            scalars = torch.from_numpy(self.arena.optimizer.scalars)
            memory.append((scalars[rank], scalars[source]))
            if source != rank:
                adopt(row, self._rows[source], memory, notes)
            if self.cluster.centre and 0 in self.here:  # else it fetches the centre itself
                adopt(row, self._rows[-1], trace=notes)
            if writer:
                writer.close()
            self.arena.row_versions.in_flight[rank] = 0  # what was under way was another's
            self._joined.append(Joined(rank, None if self.cluster.centre else source))
            del self._pending_joins[rank]
            self.arena.liveness.mark([rank], True)  # last: now others exchange with its row
        return ready

    def source(self, rank: int, living: Sequence[int]) -> int:
        """Of the `living`, the holder of a model nearest in rank: of its own node, where nodes are runs of ranks."""
        return min(self.cluster.strategy.holders(tuple(living)), key=lambda other: abs(other - rank))

    def copy(self, rank: int) -> dict[str, Tensor]:
        """Copy what a new learner elsewhere begins with: the row of `rank`, or the centre, and all that `rank`
        remembers, of one moment; (P,) each, by name, and (n,) `scalars`."""
        found = {}
        for source in dict.fromkeys((rank, self.cluster.learners if self.cluster.centre else rank)):
            row = self._rows[source]
            row.lock.acquire()
            try:
                found["row"] = row.vector.clone()
                if source == rank:
                    found |= {name: self.arena.vector(name, rank).clone() for name in self.layout.memory}
                    found["scalars"] = torch.from_numpy(self.arena.optimizer.scalars[rank].copy())
            finally:
                row.lock.release()
        return found

    # State ------------------------------------------------------------------------------------------------------------

    def state(self) -> ClusterState:
        """A copy; a dead learner is given the state another would take its place with."""
        living = self.living()
        source = [rank if rank in living else self.source(rank, living) for rank in range(self.cluster.learners)]
        names = ("row", *self.layout.memory)
        vectors = {name: self.arena.stacked(name, source) for name in names}
        if self.cluster.centre:
            vectors["centre"] = self.centre()[None]
            for rank in set(range(self.cluster.learners)) - set(living):
                vectors["row"][rank] = vectors["centre"][0]
        if self.layout.scalars:
            vectors["scalars"] = torch.from_numpy(self.arena.optimizer.scalars[source])
        versions = self.arena.row_versions.versions
        return ClusterState(
            vectors=vectors,
            integers={"steps": self.arena.optimizer.steps.tolist(), "versions": versions.tolist()},
        )

    def load(self, state: ClusterState) -> None:
        if self._recorder:
            self._recorder.load(state)
        for name in ("row", *self.layout.memory):
            for rank in range(self.cluster.learners):
                self.arena.vector(name, rank).copy_(state.vectors[name][rank])
        if self.cluster.centre:
            self._rows[-1].vector.copy_(state.vectors["centre"][0])
        if self.layout.scalars:
            self.arena.optimizer.scalars[:] = state.vectors["scalars"].numpy()
        self.arena.optimizer.steps[:] = state.integers["steps"]
        self.arena.row_versions.versions[:] = state.integers["versions"]

    def rows(self) -> Tensor:
        return self.arena.stacked("row", self.cluster.strategy.holders(tuple(self.living())))

    def centre(self) -> Tensor:
        return self._rows[-1].vector.to("cpu", copy=True)

    def close(self) -> None:
        end(self._members, set(self._pending_joins))
        self._members, self._pending_joins = {}, {}
        self.arena.close()
        if self._collectives is not None:
            self._collectives.clear()
