"""One learner in a process of its own, under orders of the parent.

The parent sends a command (JSON) per segment and gets one answer; everything else goes through the arena.
"""

import dataclasses
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundelay.core.effects import Grad, GradMean
from roundelay.core.epochs import EpochPlan
from roundelay.core.parent import leave_signals
from roundelay.core.state import Gradient, Minibatch
from roundelay.learner.base import Learner, OnReady
from roundelay.runtime.backend import NO_REMOTE, RemoteRows
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.engine import ClockedEngine
from roundelay.runtime.lanes import LANE_SEGMENTS, Lane, Span
from roundelay.runtime.launch.c_libraries import keep_freed
from roundelay.runtime.learner_state import LearnerPlace, LearnerState
from roundelay.runtime.procs.backend import ArenaBackend, LearnerWork
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.coordination.collectives import Collectives, DeviceMeans, NodeMeans, device_of
from roundelay.runtime.procs.coordination.means import Means, MemberLost
from roundelay.runtime.procs.coordination.outbox import NotedRemote, Outbox
from roundelay.runtime.procs.fork_server import end_with_server
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.runtime.procs.memory.device_rows import DeviceVectors
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.vectors import ArenaAccess, Vectors, make_vectors
from roundelay.runtime.procs.memory.views import NONE
from roundelay.runtime.rows import Deferred
from roundelay.runtime.trace import NO_TRACE, Kind, TraceWriter, note_gradient


@dataclass(frozen=True)
class WorkerSpec:
    """Instructions for a learner process at its start."""

    rank: int
    cluster: Cluster
    layout: Layout
    arena_path: str
    patience_seconds: float
    threads: int
    trace: Path | None = None  # the folder of the trace to be taken
    here: tuple[int, ...] | None = None  # the learners of this host; None: all
    outbox_wake: str = ""  # path of the pipe that wakes the carrier of requests to other hosts
    device: torch.device | None = None  # learners compute on this one, or with "cuda" on one each
    on_devices: DeviceVectors | None = None  # rows that are not in the arena
    collectives: Collectives | None = None  # by which means are taken that are not taken in the arena
    goes_on: bool = False  # means are taken without the dead


@dataclass(frozen=True)
class SegmentAnswer:
    """A learner's answer at the end of a segment: `problem` is "", "lost" (another died), "timeout" or "error"."""

    problem: str = ""
    text: str = ""
    rank: int = NONE
    lane: list[Span] = field(default_factory=list)  # on the clock of the host


def main(spec: WorkerSpec, commands: Connection, lifeline: Connection) -> None:
    """Run a learner process: build the learner, then obey the parent's `commands` until it says "quit" or ends."""
    end_with_server()
    leave_signals()
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(spec.threads)
    keep_freed()
    if spec.device is not None and spec.device.type == "cuda":  # others need no memory of a GPU
        place = (spec.here or range(spec.layout.learners)).index(spec.rank)
        torch.cuda.set_device(device_of(place, spec.device))
    try:
        worker: Worker | None = Worker(spec)
        answer = SegmentAnswer()
    except Exception:
        worker, answer = None, SegmentAnswer("error", traceback.format_exc(), spec.rank)
    with suppress(EOFError, ConnectionError):  # the parent is gone, and would not read of it
        _say(commands, answer)
        while worker is not None:
            command = json.loads(commands.recv_bytes())
            if command["do"] == "quit":
                worker.leave()
                return
            _say(commands, worker.segment(command))
        return
    os._exit(1)


def _say(commands: Connection, answer: SegmentAnswer) -> None:
    commands.send_bytes(json.dumps(dataclasses.asdict(answer)).encode())


def _die_with_parent(lifeline: Connection) -> None:
    """End this process when the parent ends, however it ends: the other end of `lifeline` closes then."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


class Worker:
    """A learner of an arena: the engine of its strategy's coroutine, and all that the engine needs."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.rank, self._strategy, self._threads = spec.rank, spec.cluster.strategy, spec.threads
        patience = Patience(spec.rank, spec.patience_seconds)
        self._trace = trace = NO_TRACE if spec.trace is None else TraceWriter(spec.trace, spec.rank)
        access = ArenaAccess(spec.arena_path, spec.layout, spec.rank, patience, spec.on_devices, trace)
        self.arena = arena = access.arena
        learner, traits = spec.cluster.task.build(), spec.cluster.strategy.traits
        self._vectors = vectors = make_vectors(access, learner.device, traits, spec.collectives is not None)
        self.leave: Callable[[], None] = lambda: None  # no library
        meanwhile: OnReady | None = None
        if spec.collectives is not None and learner.device is not None:
            between = _between_devices(spec, arena, patience, vectors.gradient, learner.device)
            self.means: Means = between
            self.leave, meanwhile = between.leave, between.look
        else:
            forwards = spec.here is not None and traits.synchronous and spec.cluster.strategy.mixes
            self.means = Means(arena, spec.rank, patience, spec.here, forwards, spec.goes_on)
        deferred = Deferred()
        self.me = _state(spec, access, vectors, learner, deferred)
        self._work = PlannedWork(access, spec.cluster, learner, vectors.gradient, vectors.resident, meanwhile)
        self.remote: RemoteRows = NO_REMOTE
        if spec.here is not None:
            self.remote = Outbox(arena, spec.rank, spec.here, spec.outbox_wake, patience)
            if trace is not NO_TRACE:
                self.remote = NotedRemote(self.remote, trace, vectors.row, arena.requests.asked)
        self._backend = ArenaBackend(access, vectors, self.means, self._work)
        self.engine = ClockedEngine(self.me, self._backend, deferred, self.remote, trace)
        self._lanes = 0  # segments that had one

    def segment(self, command: dict[str, Any]) -> SegmentAnswer:
        """Run the strategy's coroutine for the segment in `command`, to its end; return the answer for the parent."""
        plan = SegmentPlan.from_json(command)
        self._work.begin_segment(plan.epoch)
        self.me.begin_segment(plan, tuple(command["living"]), self._strategy.traits.ages)
        lane = self.engine.lane = Lane() if self._lanes < LANE_SEGMENTS else None
        self._lanes += 1
        self._trace.note(Kind.BEGIN, mine=command["number"], value=float(self._threads))
        self.means.begin_segment()
        self._backend.begin_segment()
        if isinstance(self.means, NodeMeans):
            self.means.begin_part(command["part"])
        try:
            self._vectors.move_in()
            self.engine.begin(self._strategy.learn(self.me))
            self._vectors.move_out()
        except MemberLost as error:
            return SegmentAnswer("lost", str(error), error.rank)
        except TimeoutError as error:
            return SegmentAnswer("timeout", str(error), self.rank)
        except Exception:
            return SegmentAnswer("error", traceback.format_exc(), self.rank)
        finally:
            with suppress(TimeoutError):
                self.engine.finish_asked()
            self.engine.close()
        return SegmentAnswer(lane=[] if lane is None else lane.spans)


def _between_devices(
    spec: WorkerSpec, arena: Arena, patience: Patience, gradient: Tensor, device: torch.device
) -> DeviceMeans:
    """Return the learner's part in means by a library, of its node or of all learners, after these have met."""
    assert spec.collectives is not None
    if spec.collectives.nodes:
        return NodeMeans(arena, spec.rank, patience, gradient, spec.collectives)
    spec.collectives.join(spec.rank, spec.layout.learners, device, spec.patience_seconds)
    return DeviceMeans(arena, spec.rank, patience, gradient, spec.collectives.bucket)


def _state(
    spec: WorkerSpec, access: ArenaAccess, vectors: Vectors, learner: Learner, deferred: Deferred
) -> LearnerState:
    """Return the learner's state over its vectors. Where others write its row, gradients are taken at copies."""
    cluster, traits = spec.cluster, spec.cluster.strategy.traits
    copied = not traits.synchronous and traits.model == "mean"
    snapshot = torch.empty_like(vectors.row.vector) if copied else None
    return LearnerState(
        LearnerPlace(spec.rank, spec.layout.learners, cluster.seed, cluster.minibatches_a_round),
        vectors.of_learner(learner.device, snapshot, learner.shapes),
        cluster.optimizer,
        access.tables,
        deferred=deferred,
        rate=cluster.rate_factor(vectors.memory, access.tables.scalars),
    )


class PlannedWork(LearnerWork):
    """One learner's part in a segment of a plan.

    Args:
        buffer: buffer for gradients, (P,); with `resident`, buffer and snapshots are on the learner's device.
        meanwhile: called with the progress of gradients that are not part of a mean.
    """

    def __init__(
        self,
        access: ArenaAccess,
        cluster: Cluster,
        learner: Learner,
        buffer: Tensor,
        resident: bool,
        meanwhile: OnReady | None = None,
    ) -> None:
        self._arena, self._rank, self._patience = access.arena, access.rank, access.patience
        self._trace = access.trace
        self._synchronous, self._learners = cluster.strategy.traits.synchronous, cluster.learners
        self._learner, self._buffer, self._device_copy, self._meanwhile = learner, buffer, resident, meanwhile
        self._straggler = cluster.straggler(access.rank)
        self._plan: EpochPlan

    def begin_segment(self, plan: EpochPlan) -> None:
        """Draw from `plan` from now on."""
        self._plan = plan

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient:
        started, batch, at = time.monotonic(), effect.batch, effect.at
        statistics = self._learner.gradient(
            at.vector, batch, self._plan, self._buffer, resident=self._device_copy, on_ready=on_ready or self._meanwhile
        )
        if self._trace is not NO_TRACE:
            note_gradient(self._trace, at.vector, self._buffer, float(batch.frames), batch.index)
        straggler = self._straggler
        if straggler.factor > 1 or straggler.seconds:
            time.sleep((straggler.factor - 1) * (time.monotonic() - started) + straggler.seconds)
        return Gradient(self._buffer, at.version, statistics, float(batch.frames))

    def draw(self, group: tuple[int, ...]) -> Minibatch | None:
        drawn: Minibatch | None = None

        def came() -> bool:
            """Return False if minibatches come from another host, and there is none at the moment."""
            nonlocal drawn
            drawn = self._next(group)
            return drawn is not queue.NONE_YET

        self._patience.until(came, "a minibatch from the host that hands them out")
        return drawn

    def _next(self, group: tuple[int, ...]) -> Minibatch | None:
        """Return the learner's next minibatch, None at the end of the segment, or queue.NONE_YET: ask again."""
        if len(group) > 1:
            return queue.draw_together(self._arena, self._rank, group, self._plan)
        if not self._synchronous:
            return queue.draw(self._arena, self._rank, self._plan)
        return self._next_round()

    def _next_round(self) -> Minibatch | None:
        arena, rounds = self._arena, self._arena.queue.rounds
        with arena.queue_lock:
            round_ = int(rounds[self._rank])
            if arena.queue.hold[0]:
                return queue.NONE_YET
            if round_ >= arena.queue.stop_round[0]:
                return None
            rounds[self._rank] += 1
            return self._plan.piece(round_ * self._learners + self._rank)
