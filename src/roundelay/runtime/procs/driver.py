"""One host, one process per learner: the parent starts them, hands out segments, watches, and notices deaths.

In a run on several hosts each has a ProcsRuntime for its own ranks (`here`). Rows and tables of other ranks are
mirrors, or unused. Coordinator and agents (runtime/hosts) lead it by `begin`, `part` and `outcome`, of which a segment
is made.

Legend: P parameters, L learners.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from roundelay.core.cores import cores
from roundelay.runtime.base import (
    Cluster,
    ClusterState,
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
from roundelay.runtime.lanes import Span, since_the_first
from roundelay.runtime.procs.cluster_rows import ClusterRows
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.coordination.collectives import (
    USUAL_LIBRARY,
    Collectives,
    MeansLibrary,
    means_between_devices,
    means_on_devices,
    rows_on_devices,
)
from roundelay.runtime.procs.members import Member, start_member
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import prepare_publishing
from roundelay.runtime.procs.memory.vectors import leaves_arena
from roundelay.runtime.procs.memory.views import NONE, View
from roundelay.runtime.procs.processes import REPLACE, Deaths, LearnerProcesses
from roundelay.runtime.procs.worker import SegmentAnswer, WorkerSpec
from roundelay.runtime.trace import ROWS_ON, Recorder

PARENT = -1
LOOK_SECONDS = 0.2
"""Interval at which the parent looks at its learners."""


@final
@dataclass(frozen=True)
class HostShare:
    """One host's share of a run on several."""

    ranks: Sequence[int]  # of the learners to lead here
    views: tuple[type[View], ...]  # further views of the arena
    # called with the arena before learners start; what each of them is told of how to reach other hosts, by rank.
    open_endpoint: Callable[[Arena], Mapping[int, str]]


class ProcsRuntime(Runtime):
    """Runs a cluster on real processes of this host.

    Args:
        patience_seconds: how long a learner waits for another before it gives up, and names the other.
        threads: torch threads per learner; None shares the cores out evenly, within OMP_NUM_THREADS.
        trace: a folder for the record of events, for a replay; None: nothing is recorded.
        deaths: treatment of a learner's death.
        share: in a run on several hosts, the part led here; None: all learners.
        library: takes the means of synchronous learners that compute on devices.
    """

    def __init__(
        self,
        cluster: Cluster,
        patience_seconds: float = 300.0,
        threads: int | None = None,
        trace: Path | None = None,
        deaths: Deaths = REPLACE,
        share: HostShare | None = None,
        library: MeansLibrary = USUAL_LIBRARY,
    ) -> None:
        prepare_publishing()
        cluster.strategy.check(cluster.learners)
        cluster.strategy.check_optimizer(cluster.optimizer)
        synchronous = cluster.strategy.traits.synchronous
        self._deaths = deaths.under(cluster.strategy, trace is not None)
        self._goes_on = synchronous and self._deaths.policy == "go-on"
        self.cluster, self.alone = cluster, share is None
        self.here = tuple(range(cluster.learners) if share is None else share.ranks)
        learner, self._patience_seconds = cluster.task.build(), patience_seconds
        self.parameters, self._device = learner.parameters, learner.device
        self.shards, self.common, self._trace, self._parts = learner.shards, learner.common, trace, 0
        self.layout = Layout(
            cluster.learners,
            self.parameters,
            cluster.memory,
            cluster.centre,
            cluster.scalars - cluster.strategy.weighed,
            () if share is None else share.views,
            centre_memory=cluster.strategy.centre_memory,
            weighed=cluster.strategy.weighed,
        )
        self._descriptor = create_file(self.layout)
        self._on_devices = rows_on_devices(cluster, self.layout, learner.device, self.here)
        device = learner.device if self.alone else None  # means over hosts are taken in the arena
        self._collectives = self._library(device, library, trace is not None)
        if not (self._on_devices or self._collectives):  # a library has places of its own
            self._on_devices = means_on_devices(cluster, self.layout, device)
        self.arena = arena = Arena(self._descriptor, self.layout, Patience(PARENT, patience_seconds), self._on_devices)
        self.cluster_rows = ClusterRows(cluster, arena, self.here, learner.initial())
        arena.liveness.alive[:] = 1
        self._gatherings = Gatherings(arena.gatherings)
        # torch's own number is that of OMP_NUM_THREADS, where the user has set it.
        cores_each = cores() // len(self.here)
        self._threads = threads or max(1, min(cores_each, torch.get_num_threads()))
        self._recorder: Recorder | None = None
        self.processes = LearnerProcesses(arena, self.cluster_rows, self._start, self._deaths, synchronous)
        self._orders: dict[str, Any] = {}  # of the running segment
        self._lanes: dict[int, list[Span]] = {}
        if trace and self.alone:  # else the host that leads has the parent's part
            self._recorder = Recorder(trace, self.facts(), self.state())
        try:
            self._outbox_wakes = {} if share is None else share.open_endpoint(arena)
            self.processes.start(self.here)
            for rank, answer in self._collect(self.here, keep_going).items():
                if answer.problem:
                    raise RuntimeError(f"learner {rank} could not start:\n{answer.text}")
            self.processes.all_started()
        except BaseException:
            self.close()
            raise

    def facts(self) -> dict[str, Any]:
        """Return the facts of the run that a replay must know, by name."""
        device = self._device
        known = {"learners": self.cluster.learners, "parameters": self.parameters, "threads": self._threads}
        if device is None or not leaves_arena(self.cluster.strategy.traits, self._on_devices):  # as in `make_vectors`
            return known
        return {**known, ROWS_ON: device.type}

    def _library(self, device: torch.device | None, library: MeansLibrary, recorded: bool) -> Collectives | None:
        """Return the library that takes means outside of the arena. None where learners go on without the dead, since a
        library's means end when a member dies, and where means are taken in the arena."""
        if self._goes_on:
            return None
        return means_between_devices(self.cluster, device, library, recorded, self._on_devices is not None)

    @property
    def _path(self) -> str:
        """Path of the arena, for other processes."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def _start(self, rank: int) -> Member:
        return start_member(
            WorkerSpec(
                rank,
                self.cluster,
                self.layout,
                self._path,
                self._patience_seconds,
                self._threads,
                self._trace,
                here=None if self.alone else self.here,
                outbox_wake=self._outbox_wakes.get(rank, ""),
                device=self._device,
                on_devices=self._on_devices,
                collectives=self._collectives,
                goes_on=self._goes_on,
            )
        )

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started = wall_clock()
        living = None
        if self._goes_on:
            self.processes.let_in()
            living = self.living()
            plan = replace(plan, epoch=plan.epoch.for_living(living))
        self.begin(plan)
        self.part(plan, watch, living)
        while not self.cluster.strategy.traits.synchronous and self._left_over():
            self.part(plan, watch)  # minibatches came back from the dead after the living had finished
        synchronous, arena = self.cluster.strategy.traits.synchronous, self.arena
        end = int(arena.queue.rounds.max()) * self.cluster.learners if synchronous else int(arena.queue.next_index[0])
        return self.outcome(plan, end, wall_clock() - started)

    def begin(self, plan: SegmentPlan) -> None:
        """Set all counts and tables for a new segment."""
        arena = self.arena
        arena.counts.clear()
        self._lanes.clear()
        arena.queue.begin_segment(plan.first, plan.first_round, plan.end_round)
        if not self.alone:
            queue.open_prefetch(arena)
        self._gatherings.begin_segment()
        self.processes.begin_segment()

    def begin_gatherings(self) -> None:
        """Begin the gatherings of a part of a segment for all learners, before any host begins the part."""
        self._gatherings.begin_part(wall_clock())

    def part(
        self,
        plan: SegmentPlan,
        watch: Watch = keep_going,
        living: Sequence[int] | None = None,
        prepare: Callable[[], None] = lambda: None,
        number: int = 0,
    ) -> None:
        """Let all learners run until there is nothing more to draw.

        Args:
            living: ranks of the learners that take part, on all hosts; replacements not among them wait.
            prepare: called when tables are set and before learners begin.
            number: on one of several hosts, the number of the command in the trace of the host that leads.

        Raises:
            LearnerDied, TimeoutError, RuntimeError: learners died, waited too long, or failed, so the run cannot go on.
        """
        self.arena.sequences.begin_part()
        self.arena.queue.assigned[:] = NONE
        if self.alone:
            self.begin_gatherings()
        else:  # minibatches of the dead may have come back since this host heard that there were no more
            self.arena.queue.more[0] = 1
        self.processes.collect_replacements()
        wanted = sorted({*self.living(), *self.processes.ready()}) if living is None else list(living)
        self._parts += 1
        self._orders = {"do": "segment", **plan.to_json(), "living": wanted}
        self._orders["number"] = self._recorder.command(self._orders) if self._recorder else number
        self._orders["part"] = self._parts
        if not self._goes_on:  # else they were let in before the segment
            self._promote(wanted)
        prepare()
        answers = self._collect(self._command(rank for rank in self.here if rank in self.living()), watch)
        self._orders = {}
        self._judge(answers)
        for rank, answer in answers.items():
            self._lanes.setdefault(rank, []).extend(answer.lane)
        if self._recorder:
            self._recorder.done(self.state(), tuple(self.living()), tuple(lost.rank for lost in self.processes.lost))

    def outcome(self, plan: SegmentPlan, end: int, seconds: float) -> Outcome:
        """Return the outcome of the segment, which stopped before minibatch `end`."""
        counts, synchronous = self.arena.counts.copy(), self.cluster.strategy.traits.synchronous
        lost, joined = self.processes.tell()
        return Outcome(
            counts=counts,
            next=end,
            finished=end >= plan.end_round * self.cluster.learners,
            wall_seconds=seconds,
            lost=lost,
            joined=joined,
            redrawn=self.processes.redrawn,
            gathered=self._gatherings.told(),
            lanes=since_the_first(self._lanes),
            missing=plan.missing(counts.frames.tolist(), end, synchronous) if end else (),
        )

    def _left_over(self) -> bool:
        """Return True if there are minibatches to draw, when learners are done: some may have come back from the dead,
        and all nodes may have lost a member."""
        arena, end = self.arena, self.arena.queue.stop_round[0] * self.cluster.learners
        if arena.queue.returned[0] or arena.queue.next_index[0] < end:
            return True
        return not self.alone and bool(arena.queue.more[0] or queue.prefetched(arena))

    def _command(self, ranks: Iterable[int]) -> list[int]:
        """Send the segment's orders to the learners `ranks`; return the ranks that they were sent to."""
        return self.processes.send(ranks, json.dumps(self._orders).encode())

    def _promote(self, wanted: Sequence[int]) -> list[int]:
        """Let ready replacements of the ranks `wanted` take their places; return the ranks of those that did."""
        return self.processes.promote(wanted, self._trace, self._orders["number"])

    def _collect(self, ranks: Iterable[int], watch: Watch) -> dict[int, SegmentAnswer]:
        """Wait for the answer, or the death, of each of `ranks`, and of replacements that take their places meanwhile.

        Comes back with the answers so far as soon as there is a problem no other learner can mend: others that wait for
        that learner would never answer.

        Raises:
            TimeoutError: for twice as long as learners are patient none of them took a step or answered.
        """
        answers: dict[int, SegmentAnswer] = {}
        open_ = set(ranks)
        idle, before = 0, (len(open_), 0)
        next_look = wall_clock() + LOOK_SECONDS
        while open_ and not self._hopeless(answers):
            found = self.processes.answers(open_, next_look - wall_clock())
            answers |= found
            open_ = self.processes.working(open_ - found.keys())
            if open_ and self._orders and self.cluster.strategy.traits.joins_at_once and self._left_over():
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
        return problem or bool(self.processes.lost and self._deaths.policy == "stop")

    def _judge(self, answers: dict[int, SegmentAnswer]) -> None:
        """Turn problems into exceptions; a death is one only where the strategy cannot go on."""
        for answer in answers.values():
            if answer.problem == "error":
                raise RuntimeError(f"learner {answer.rank} failed:\n{answer.text}")
        if self.processes.lost and (self._deaths.policy == "stop" or not self.living()):
            first, frames = self.processes.lost[0], int(self.arena.counts.frames.sum())
            all_ = self._deaths.policy != "stop"
            others = ", and so did all others" if all_ and self.cluster.learners > 1 else ""
            raise LearnerDied(first.rank, first.reason + others, frames, last=all_)
        late = [answer.text for answer in answers.values() if answer.problem == "timeout"]
        if late:
            raise TimeoutError("; ".join(late))
        # No learner draws now. A node that lost a member has left its present and next minibatches.
        self.processes.give_back(self.here)

    def glance(self) -> Glance:
        """Return the progress of the segment."""
        counts, living = self.arena.counts.copy(), tuple(self.living())
        return Glance.of(
            counts,
            len(living),
            living=living,
            learner_frames=tuple(counts.frames.tolist()),
            lost=() if self._deaths.policy == "stop" else tuple(self.processes.lost),  # else it ends, and says so
            consensus_distance=self.cluster_rows.glanced_distance() if self.alone else None,
            spent=counts.spent(),
        )

    def _stop(self) -> None:
        """End the segment after the round, or the block of rounds, that the furthest learner has begun. Draws happen
        under the same lock, so no learner is past it."""
        arena, learners = self.arena, self.cluster.learners
        with arena.queue_lock:
            synchronous = self.cluster.strategy.traits.synchronous
            reached = int(arena.queue.rounds.max()) if synchronous else -(-int(arena.queue.next_index[0]) // learners)
            arena.queue.stop_round[0] = min(int(arena.queue.stop_round[0]), self.cluster.stop_round(reached))

    def process_ids(self) -> list[int]:
        """Return the process ids of this host's learners, by rank; of a learner being replaced, its replacement's."""
        return self.processes.process_ids(self.here)

    def living(self) -> list[int]:
        """Return the ranks of the learners that take part, on all hosts."""
        return self.cluster_rows.living()

    # State ------------------------------------------------------------------------------------------------------------

    def state(self) -> ClusterState:
        return self.cluster_rows.state()

    def load(self, state: ClusterState) -> None:
        if self._recorder:
            self._recorder.load(state)
        self.cluster_rows.load(state)

    def rows(self) -> Tensor:
        return self.cluster_rows.held()

    def shares(self) -> list[float] | None:
        return self.arena.shares(self.cluster.strategy.holders(tuple(self.cluster_rows.living())))

    def centre(self) -> Tensor:
        return self.cluster_rows.centre()

    def close(self) -> None:
        self.processes.close()
        self.arena.close()
        if self._collectives is not None:
            self._collectives.clear()
