"""One learner in a process of its own: performs the effects of its strategy for real.

The parent sends a command (JSON) per segment and gets one answer; everything else goes through the arena.
"""

import dataclasses
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundelay.core.effects import Begin, Draw, Effect, Exchange, Fetch, Grad, GradMean, Handle, Mean, Mix, Wait
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.learner_state import DeferredExchange, LearnerState, Row, exchange, fetch
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.coordination.activity import number_of
from roundelay.runtime.procs.coordination.collectives import Collectives, DeviceMeans
from roundelay.runtime.procs.coordination.devices import device_of
from roundelay.runtime.procs.coordination.means import Means, MemberLost
from roundelay.runtime.procs.coordination.outbox import Outbox
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.runtime.procs.memory.device_copy import DeviceCopy
from roundelay.runtime.procs.memory.device_rows import DeviceRows
from roundelay.runtime.procs.memory.heap import keep_freed
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.pinned import pinned
from roundelay.runtime.procs.memory.views.work_queue import NONE
from roundelay.runtime.trace import Kind, NoTrace, TraceWriter
from roundelay.strategies.base import Traits

PARENTS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that learners do not hear: the parent decides what they mean."""

MEANS = (Mean, Mix, GradMean)
"""Effects in which a learner meets others."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a learner process is told at its start."""

    rank: int
    cluster: Cluster
    layout: Layout
    arena_path: str
    patience_seconds: float
    threads: int
    trace: Path | None = None  # the folder of the trace to be taken
    here: tuple[int, ...] | None = None  # the learners of this host; None: all
    outbox_wake: str = ""  # path of the pipe that wakes what carries requests to other hosts
    on_devices: DeviceRows | None = None  # rows that are not in the arena
    collectives: Collectives | None = None  # by which means are taken that are not taken in the arena

    def __post_init__(self) -> None:
        if self.here is not None and self.trace is not None:
            raise UserError(
                "a run on several hosts cannot be recorded: exchanges between hosts have two moments, and a replay "
                "knows of one. Leave out --record."
            )


@dataclass(frozen=True)
class SegmentAnswer:
    """What a learner says at the end of a segment: `problem` is "", "lost" (another died), "timeout" or "error"."""

    problem: str = ""
    text: str = ""
    rank: int = NONE


def main(spec: WorkerSpec, commands: Connection, lifeline: Connection) -> None:
    """The life of a learner process."""
    for number in PARENTS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(spec.threads)
    keep_freed()
    if torch.cuda.is_available():
        place = (spec.here or range(spec.layout.learners)).index(spec.rank)
        torch.cuda.set_device(device_of(place, torch.device("cuda")))
    try:
        worker: Worker | None = Worker(spec)
        answer = SegmentAnswer()
    except Exception:
        worker, answer = None, SegmentAnswer("error", traceback.format_exc(), spec.rank)
    with suppress(EOFError, ConnectionError):  # the parent is gone, and nobody would read of it
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
    """The pipe's other end closes when the parent ends, however it ends; no learner outlives its run."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


class Worker:
    """Performs effects on the arena."""

    def __init__(self, spec: WorkerSpec, patience: Patience | None = None) -> None:
        self.rank, self.cluster = spec.rank, spec.cluster
        self._patience = patience = patience or Patience(spec.rank, spec.patience_seconds)
        descriptor = os.open(spec.arena_path, os.O_RDWR | os.O_CLOEXEC)
        self.arena = arena = Arena(descriptor, spec.layout, patience, spec.on_devices)
        self.learner = spec.cluster.task.build()
        self.rows = [
            Row(rank, vector, arena.row_versions.versions, arena.row_locks[rank], arena.row_versions.in_flight)
            for rank, vector in enumerate(arena.rows())
        ]
        self.trace = TraceWriter(spec.trace, spec.rank) if spec.trace else NoTrace()
        self.rows[spec.rank].trace = self.trace
        forwards = spec.here is not None and spec.cluster.strategy.traits.synchronous
        self.means = Means(arena, spec.rank, patience, spec.here, forwards)
        self._shows = True  # do others read gradients in the arena?
        self._collective: DeviceMeans | None = None
        row, gradient = self.rows[spec.rank], arena.vector("gradient", spec.rank)
        memory = {name: arena.vector(name, spec.rank) for name in spec.layout.memory}
        traits = spec.cluster.strategy.traits
        self._device_copy: DeviceCopy | None = None
        there, device = spec.on_devices is not None, self.learner.device
        if device is not None and (there or self._may_leave(traits)):
            self._device_copy = resident = DeviceCopy(row.vector, memory, gradient, device, there)
            if not there:
                row = Row(spec.rank, resident.row, arena.row_versions.versions, arena.row_locks[spec.rank])
                row.trace = self.trace
            gradient, memory = resident.gradient, resident.memory
            self.learner.resident = True
            if spec.collectives is not None:
                spec.collectives.join(spec.rank, spec.layout.learners, device, spec.patience_seconds)
                self._collective = DeviceMeans(arena, spec.rank, patience, gradient, spec.collectives.bucket)
                self.means, self._shows = self._collective, False
        snapshot = self._place_for_copy(row.vector) if self._copies(traits) else None
        if device is not None and self._device_copy is None:  # points and gradients go there and back
            for vector in (row.vector if snapshot is None else snapshot, gradient):
                pinned(vector)
        self.me = LearnerState(
            spec.rank,
            spec.layout.learners,
            spec.cluster.seed,
            row,
            snapshot,
            gradient,
            spec.cluster.optimizer,
            memory,
            arena.optimizer.steps,
            arena.counts,
            arena.optimizer.scalars[spec.rank],
            spec.cluster.minibatches_a_round,
        )
        self._outbox = None if spec.here is None else Outbox(arena, spec.rank, spec.here, spec.outbox_wake, patience)
        self._remote: Handle[Any] | None = None  # what was begun with a learner of another host
        self._alive = arena.liveness.alive
        self._trained: Statistics | None = None
        self._gradient_seconds = 0.0  # of the effect under way
        self._plan: EpochPlan

    def leave(self) -> None:
        """The run is over."""
        if self._collective is not None:
            self._collective.leave()

    def _copies(self, traits: Traits) -> bool:
        """Must gradients be taken at copies, since others write a learner's row meanwhile?"""
        return not traits.synchronous and traits.model == "mean"

    def _place_for_copy(self, row: Tensor) -> Tensor:
        """For snapshots of `row` (P,)."""
        return torch.empty_like(row)

    def _may_leave(self, traits: Traits) -> bool:
        """May the row leave the arena for a segment? Where nobody else reads or writes it: no exchanges, no centre."""
        return traits.synchronous and traits.model == "mean"

    def segment(self, command: dict[str, Any]) -> SegmentAnswer:
        """Run the strategy's coroutine to its end."""
        plan = SegmentPlan.from_json(command)
        self._plan, self._trained = plan.epoch, None
        self.me.begin_segment(plan, tuple(command["living"]), self.cluster.strategy.traits.ages)
        self.trace.note(Kind.BEGIN, mine=command["number"])
        self.means.begin_segment()
        try:
            if self._device_copy is not None:
                self._device_copy.move_in()
            self._drive(self.cluster.strategy.learn(self.me))
            if self._device_copy is not None:
                self._device_copy.move_out()
        except MemberLost as error:
            return SegmentAnswer("lost", str(error), error.rank)
        except TimeoutError as error:
            return SegmentAnswer("timeout", str(error), self.rank)
        except Exception:
            return SegmentAnswer("error", traceback.format_exc(), self.rank)
        finally:
            if self._remote is not None:  # nobody reads rows between segments that are still being written
                with suppress(TimeoutError):
                    self._finish_remote(self._remote)
        return SegmentAnswer()

    def _drive(self, role: Coroutine[Effect[Any], Any, None]) -> None:
        reply: Any = None
        doing, rank = self.arena.activity.doing, self.rank
        while True:
            started = time.monotonic()
            if self._remote is not None and self._outbox is not None and self._outbox.through:
                self._finish_remote(self._remote)
            try:
                effect = role.send(reply)
            except StopIteration:
                self._settle()
                return
            self._settle()
            asked = time.monotonic()
            doing[:, rank] = *number_of(effect), int(1000 * asked)
            reply = self._perform(effect)
            doing[0, rank] = 0
            self._account(effect, asked - started, time.monotonic() - asked)

    def _account(self, effect: Effect[Any], update: float, elapsed: float) -> None:
        """Add the seconds one effect took to what they were spent on."""
        counts, rank, gradient = self.arena.counts, self.rank, self._gradient_seconds
        counts.update_s[rank] += update
        counts.gradient_s[rank] += gradient
        self._gradient_seconds = 0.0
        begun = effect.effect if isinstance(effect, Begin) else effect
        if isinstance(begun, Wait):
            begun = begun.handle.pending
        elif isinstance(begun, MEANS):
            counts.means[rank] += 1
        if not isinstance(begun, Draw):
            spent = counts.mean_s if isinstance(begun, MEANS) else counts.exchange_s
            spent[rank] += elapsed - gradient

    def _settle(self) -> None:
        """The role has gone on past its last gradient: that minibatch is trained and need never be drawn again."""
        if self._trained is not None:
            queue.settle(self.arena, self.rank, self._trained)
            self._trained = None

    def _perform(self, effect: Effect[Any]) -> Any:  # noqa: PLR0911 one return an effect
        match effect:
            case Draw(group):
                return self._draw(group)
            case Grad(at):
                statistics = self._gradient(effect)
                self._trained = statistics
                return Gradient(self.me.gradient_buffer, at.version, statistics)
            case GradMean():
                return self._gradient_mean(effect)
            case Mean(group, vector, weight):
                self.means.publish(vector, weight, group)
                return self._reply(self.means.collect(group))
            case Mix(weights, readers, vector):
                self.means.publish(vector, 1.0, readers=readers)
                return self._reply(self.means.collect_neighbours(weights))
            case Exchange():
                return self._exchange(effect)
            case Fetch():
                return self._fetch(effect)
            case Begin(begun):
                return self._begin(begun)
            case Wait(handle):
                if not handle.done:
                    self._finish(handle)
                return handle.reply
            case _:
                raise TypeError(f"{type(effect).__name__} is not an effect of this runtime")

    def _gradient_mean(self, effect: GradMean) -> Gradient:
        """Where the mean goes over several hosts or between devices, it begins while the gradient is computed."""
        at, weight, group = effect.at, float(effect.batch.frames), effect.group
        lay = self.means.announce_gradient(weight, group, at.vector)
        if lay is not None and self._device_copy is not None and self._shows:
            lay = self._device_copy.endpoint(lay)
        statistics = self._gradient(effect, lay)
        if lay is not None:
            lay(0)
        else:
            if self._device_copy is not None and self._shows:
                self._device_copy.show_gradient()
            self.means.publish_gradient(weight, group)
        mean = self._reply(self.means.collect(group))
        self._trained = statistics
        return Gradient(mean, at.version, statistics)

    def _reply(self, vector: Tensor) -> Tensor:
        """A mean where the learner has its row."""
        return vector if self._device_copy is None or self._collective is not None else self._device_copy.reply(vector)

    def _draw(self, group: tuple[int, ...]) -> Minibatch | None:
        drawn = self._next_minibatch(group)
        if drawn is queue.LATER:
            drawn = self._wait_for_minibatch(group)
        if drawn is not None:
            self.me.drawn(drawn)
        self.trace.note(Kind.DRAW, mine=NONE if drawn is None else drawn.index)
        return drawn

    def _next_minibatch(self, group: tuple[int, ...]) -> Minibatch | None:
        arena, rank, rounds = self.arena, self.rank, self.arena.queue.rounds
        if len(group) > 1:
            return queue.draw_together(arena, rank, group, self._plan)
        if not self.cluster.strategy.traits.synchronous:
            return queue.draw(arena, rank, self._plan)
        arena.queue_lock.acquire()
        try:
            round_ = int(rounds[rank])
            if arena.queue.hold[0]:
                return queue.LATER
            if round_ >= arena.queue.stop_round[0]:
                return None
            rounds[rank] += 1
            return self._plan.piece(round_ * self.cluster.learners + rank)
        finally:
            arena.queue_lock.release()

    def _wait_for_minibatch(self, group: tuple[int, ...]) -> Minibatch | None:
        """Where they come from another host there may be none at the moment."""
        pause = 50e-6
        with self._patience.waiting_for("a minibatch from the host that hands them out") as check:
            while (drawn := self._next_minibatch(group)) is queue.LATER:
                check()
                time.sleep(pause)
                pause = min(2 * pause, 2e-3)
        return drawn

    def _gradient(self, effect: Grad | GradMean, lay: Callable[[int], None] | None = None) -> Statistics:
        """`lay` is told how far it is. A mean between devices that was begun before goes on meanwhile."""
        straggler = self.cluster.straggler(self.rank)
        if lay is None and self._collective is not None:
            lay = self._collective.look
        started = time.monotonic()
        self.learner.laid = lay
        try:
            statistics = self.learner.gradient(effect.at.vector, effect.batch, self._plan, self.me.gradient_buffer)
        finally:
            self.learner.laid = None
        if straggler.factor > 1 or straggler.seconds:
            time.sleep((straggler.factor - 1) * (time.monotonic() - started) + straggler.seconds)
        self._gradient_seconds += time.monotonic() - started
        self.trace.note(Kind.GRAD, mine=effect.batch.index, value=statistics.loss)
        return statistics

    def _lives(self, peer: int) -> bool:
        """The centre always does."""
        return peer == self.me.centre or bool(self._alive[peer])

    def _fetch(self, effect: Fetch) -> int | None:
        if self._elsewhere(effect.peer):
            return self._remote_exchange(effect)
        if self._lives(effect.peer):
            return fetch(self.me.row, self.rows[effect.peer], effect.into)
        self.trace.note(Kind.GONE, effect.peer)
        return None

    def _elsewhere(self, peer: int) -> bool:
        return self._outbox is not None and self._outbox.takes(peer)

    def _remote_exchange(self, effect: Exchange | Fetch) -> int | None:
        """Have it done by another host, and wait."""
        handle: Handle[int | None] = Handle()
        self._begin_remote(effect, handle)
        if not handle.done:
            self._finish_remote(handle)
        return handle.reply  # type: ignore[no-any-return]

    def _begin_remote(self, effect: Exchange | Fetch, handle: Handle[Any]) -> None:
        """Have it done by another host; `handle` is finished in `_finish_remote`, unless nobody is there."""
        assert self._outbox is not None
        if self._remote is not None:  # one at a time
            self._finish_remote(self._remote)
        if self._lives(effect.peer):
            self._outbox.ask(effect)
            handle.pending, self._remote = effect, handle
        else:
            handle.finish(None)

    def _finish_remote(self, handle: Handle[Any]) -> None:
        assert self._outbox is not None
        effect, self._remote = handle.pending, None
        version = self._outbox.wait(effect.peer)
        if version is not None and isinstance(effect, Exchange):
            self.me.count_exchange(effect, version)
        handle.finish(version)

    def _exchange(self, effect: Exchange) -> int | None:
        if self._elsewhere(effect.peer):
            return self._remote_exchange(effect)
        if not self._lives(effect.peer):
            self.trace.note(Kind.GONE, effect.peer)
            return None
        version = exchange(self.me.row, self.rows[effect.peer], effect)
        if version is not None:
            self.me.count_exchange(effect, version)
        return version

    def _begin(self, effect: Effect[Any]) -> Handle[Any]:
        """A mean is published now and collected in the wait.

        An exchange is cheapest in the pass over the row that the next step makes anyhow; nobody waits for it before.
        One with another host goes on meanwhile, whatever this learner does.
        """
        handle: Handle[Any] = Handle()
        if isinstance(effect, Mean):
            self.means.publish(effect.vector, effect.weight, effect.group)
            handle.pending = effect
        elif isinstance(effect, Mix):
            self.means.publish(effect.vector, 1.0, readers=effect.readers)
            handle.pending = effect
        elif isinstance(effect, Exchange | Fetch) and self._elsewhere(effect.peer):
            self._begin_remote(effect, handle)
        elif isinstance(effect, Exchange) and self.me.deferred is None and self._lives(effect.peer):
            there = partial(self._lives, effect.peer)
            self.me.deferred = DeferredExchange(effect, self.rows[effect.peer], there, handle)
        else:
            handle.finish(self._perform(effect))
        return handle

    def _finish(self, handle: Handle[Any]) -> None:
        """Wait for what was begun."""
        deferred = self.me.deferred
        if deferred is not None and deferred.handle is handle:
            self.me.deferred = None
            handle.finish(self._exchange(deferred.request))
        elif handle is self._remote:
            self._finish_remote(handle)
        elif isinstance(handle.pending, Mix):
            handle.finish(self._reply(self.means.collect_neighbours(handle.pending.weights)))
        else:
            handle.finish(self._reply(self.means.collect(handle.pending.group)))
