"""A recorded run again, in one process, event by event, to the same weights bit for bit.

Every learner's coroutine runs in a thread, but only one at a time. Before it touches a row it looks up what version the
row had in the recorded run, and lets others go on until the row is there: a writer of version v also waits for
everybody who read v. So the order that matters is the recorded one, and the rest does not matter. Each gradient is
computed anew and its loss compared with the recorded one, so the first event that differs is named, not the last
weight.

Legend: P parameters, L learners.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean_
from roundelay.core.effects import Begin, Draw, Effect, Exchange, Fetch, Grad, GradMean, Handle, Mean, Mix, Wait
from roundelay.core.errors import UserError
from roundelay.core.flat import chunks
from roundelay.core.progress import Progress
from roundelay.core.state import Gradient, Minibatch, Snapshot
from roundelay.learner.base import Learner
from roundelay.runtime.base import Cluster, ClusterState, Counts, SegmentPlan
from roundelay.runtime.coding import arrived
from roundelay.runtime.learner_state import LearnerState, NoLock, Row, adopt, exchange, fetch
from roundelay.runtime.trace import Digests, Event, Kind, digests, load_state, read_entries, read_events

WRITES = (Kind.STEP, Kind.REPLACE, Kind.EXCHANGE, Kind.JOIN)


class Differs(Exception):
    """The repetition is not the recorded run: says where it first differs."""


class _Abandoned(BaseException):
    """Another learner's thread has failed; this one ends."""


@dataclass(frozen=True)
class Replayed:
    """What a replay found."""

    commands: int  # stretches of training repeated
    skipped: int  # begun, but cut short by a kill of the whole run, and not part of its result
    events: int
    minibatches: int
    difference: str  # "" if all digests agree
    state: ClusterState


def replay(folder: Path, cluster: Cluster, progress: Progress) -> Replayed:
    """Repeat the run whose trace is in `folder`.

    Raises:
        UserError: the trace is missing, damaged, or of another cluster.
    """
    return _Replay(folder, cluster, progress).run()


class _Replay:
    """All commands of a trace, one after the other."""

    def __init__(self, folder: Path, cluster: Cluster, progress: Progress) -> None:
        self.folder, self.cluster, self.progress = folder, cluster, progress
        self.entries = list(read_entries(folder))
        self.learner = cluster.task.build()
        start = self.entries[0]
        wanted = (cluster.learners, self.learner.parameters)
        if (found := (start["learners"], start["parameters"])) != wanted:
            raise UserError(
                f"{folder}: recorded with {found[0]} learners of {found[1]} parameters, but this run directory "
                f"describes {wanted[0]} of {wanted[1]}."
            )
        self.threads: int = start["threads"]
        self.events = [_by_command(folder, rank) for rank in range(cluster.learners)]
        self.kept: list[tuple[Digests, ClusterState]] = []
        self.done_events = self.done_minibatches = 0

    def run(self) -> Replayed:
        state = _initial(self.cluster, self.learner)
        done = {entry["number"]: entry for entry in self.entries if entry["what"] == "done"}
        to_be_loaded = [entry["digests"] for entry in self.entries if entry["what"] == "load"]
        commands = skipped = 0
        difference = ""
        everyone = tuple(range(self.cluster.learners))
        for number, entry in enumerate(self.entries):
            match entry["what"]:
                case "start":
                    if number == 0 and digests(state, everyone) != entry["digests"]:
                        difference = "the start: this program begins from other weights than the recorded one did"
                    elif number:
                        state = _initial(self.cluster, self.learner)
                case "load":
                    state = self._recall(entry)
                case "command" if entry["number"] not in done:
                    skipped += 1
                case "command":
                    commands += 1
                    command = _Command(self, entry, state)
                    try:
                        command.run()
                    except Differs as error:
                        difference = f"command {entry['number']}, {error}"
                    else:
                        after = done[entry["number"]]
                        difference = _compare(command.state, after)
                        if difference:
                            difference = f"the end of command {entry['number']}: {difference}"
                    state = command.state
            if difference:
                break
            found = digests(state, everyone)
            if found in to_be_loaded:
                self.kept.append((found, _copy(state)))
        return Replayed(commands, skipped, self.done_events, self.done_minibatches, difference, state)

    def _recall(self, entry: dict[str, Any]) -> ClusterState:
        if entry["file"]:
            return load_state(self.folder, entry)
        for found, state in self.kept:
            if found == entry["digests"]:
                return _copy(state)
        raise UserError(f"{self.folder}: the run went on from a state that is not in its trace.")


def _by_command(folder: Path, rank: int) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    for event in read_events(folder, rank):
        if event.kind is Kind.BEGIN:
            found.setdefault(event.mine, [])
            current = found[event.mine]
        current.append(event)
    return found


def _initial(cluster: Cluster, learner: Learner) -> ClusterState:
    vectors = {name: torch.zeros(cluster.learners, learner.parameters) for name in ("row", *cluster.memory)}
    vectors["row"][:] = learner.initial()
    if cluster.centre:
        vectors["centre"] = learner.initial()[None].clone()
    if cluster.optimizer.scalars:
        vectors["scalars"] = torch.zeros(cluster.learners, len(cluster.optimizer.scalars), dtype=torch.float64)
    counters = {"steps": [0] * cluster.learners, "versions": [0] * (cluster.learners + cluster.centre)}
    return ClusterState(vectors, counters)


def _copy(state: ClusterState) -> ClusterState:
    vectors = {name: value.clone() for name, value in state.vectors.items()}
    return ClusterState(vectors, {name: list(numbers) for name, numbers in state.integers.items()})


def _compare(state: ClusterState, after: dict[str, Any]) -> str:
    """What of the state is not as it was recorded."""
    found = digests(state, tuple(after["living"]))
    return ", ".join(sorted(name for name, value in after["digests"].items() if found.get(name) != value))


@dataclass
class _Gathering:
    vectors: dict[int, tuple[Tensor, float]] = field(default_factory=dict)
    mean: Tensor | None = None


class _Command:
    """One stretch of training: the threads, and the baton they pass."""

    def __init__(self, whole: _Replay, entry: dict[str, Any], state: ClusterState) -> None:
        self.whole, self.cluster, self.learner = whole, whole.cluster, whole.learner
        self.state, self.number = _copy(state), int(entry["number"])
        self.segment = SegmentPlan.from_json(entry)
        self.plan = self.segment.epoch
        self.living = tuple(entry["living"])
        self.baton = threading.Condition()
        self.running = self.blocked = 0
        self.stuck: dict[int, str] = {}
        self.failure: BaseException | None = None
        learners = self.cluster.learners
        self.versions = np.array(self.state.integers["versions"], np.int64)
        self.steps = np.array(self.state.integers["steps"], np.int64)
        self.scalars = self.state.vectors.get("scalars", torch.zeros(learners, 0, dtype=torch.float64)).numpy()
        self.counts = Counts.zeros(learners, self.cluster.centre)
        vectors = [*self.state.vectors["row"], *self.state.vectors.get("centre", ())]
        self.rows = [Row(rank, vector, self.versions, NoLock()) for rank, vector in enumerate(vectors)]
        for rank in range(learners):
            self.rows[rank].memory = {name: self.state.vectors[name][rank] for name in self.cluster.memory}
        self.events = [deque(whole.events[rank].get(self.number, ())) for rank in range(learners)]
        # Who has still to read which version of which row, before it may be overwritten.
        self.readers: Counter[tuple[int, int]] = Counter()
        for rank, events in enumerate(self.events):
            for event in events:
                if event.kind is Kind.READ:
                    self.readers[rank, event.mine] += 1
                elif event.kind in (Kind.FETCH, Kind.JOIN):
                    self.readers[event.peer, event.theirs] += 1
        self.gatherings: dict[tuple[tuple[int, ...], int], _Gathering] = {}
        self.contributions: dict[tuple[int, int], Tensor] = {}

    def run(self) -> None:
        """Repeat it; the state is then what came of it.

        Raises:
            Differs: it cannot be repeated, or does not come out the same.
        """
        ranks = [rank for rank in range(self.cluster.learners) if self.events[rank]]
        performers = [_Performer(self, rank) for rank in ranks]
        threads = [threading.Thread(target=self._thread, args=(performer,)) for performer in performers]
        self.running = len(threads)
        minibatches = sum(event.kind is Kind.GRAD for rank in ranks for event in self.events[rank])
        self.whole.progress.start(f"replaying command {self.number}", minibatches)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.whole.progress.finish()
        self.state.integers["versions"][:] = self.versions.tolist()
        self.state.integers["steps"][:] = self.steps.tolist()
        if self.failure is not None:
            raise self.failure

    def _thread(self, performer: "_Performer") -> None:
        torch.set_num_threads(self.whole.threads)  # of this thread; sums over more threads are rounded otherwise
        with self.baton:
            try:
                performer.run()
            except _Abandoned:
                pass
            except BaseException as error:
                self.failure = self.failure or error
            self.running -= 1
            self.stuck.pop(performer.rank, None)
            self._notice_standstill()
            self.baton.notify_all()

    def until(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """With the baton: pass it on until `ready`.

        Raises:
            Differs: nobody can go on.
        """
        while not ready():
            self.stuck[rank] = what
            self._notice_standstill()
            if self.failure is None:
                self.baton.wait()
            self.stuck.pop(rank, None)
            if self.failure is not None:
                raise _Abandoned
        if self.failure is not None:
            raise _Abandoned

    def changed(self) -> None:
        """Something others may wait for has happened."""
        self.stuck.clear()  # they look again
        self.baton.notify_all()

    def _notice_standstill(self) -> None:
        if self.running and len(self.stuck) >= self.running and self.failure is None:
            who = "; ".join(f"learner {rank} waits for {what}" for rank, what in sorted(self.stuck.items()))
            self.failure = Differs(f"nobody can go on: {who}. An event is missing in the trace.")
            self.baton.notify_all()


class _Performer:
    """One learner: performs the effects of its strategy as it did when it was recorded."""

    def __init__(self, command: _Command, rank: int) -> None:
        self.command, self.rank, self.row = command, rank, command.rows[rank]
        self.events, self.seen = command.events[rank], 0
        cluster, size = command.cluster, command.learner.parameters
        memory = {name: command.state.vectors[name][rank] for name in cluster.memory}
        self.me = _State(
            self,
            rank,
            cluster.learners,
            cluster.seed,
            self.row,
            torch.empty(size),
            torch.empty(size),
            cluster.optimizer,
            memory,
            command.steps,
            command.counts,
            command.scalars[rank],
            cluster.minibatches_a_round,
        )
        self.waiting: tuple[Exchange, Handle[int | None]] | None = None
        self.means = 0  # numbers my means and mixes
        self.group_means: Counter[tuple[int, ...]] = Counter()

    def run(self) -> None:
        """To the end of the recorded events. A learner that died ends where they end."""
        command = self.command
        while self.events:
            self.expect(Kind.BEGIN)
            self._join()
            if not self.events:
                break  # it died before it was told to begin
            if self.events[0].kind is Kind.BEGIN:
                continue
            self.waiting = None
            self.me.begin_segment(command.segment, command.living, command.cluster.strategy.traits.ages)
            role = command.cluster.strategy.learn(self.me)
            try:
                self._drive(role)
            except _Dead:
                role.close()

    def _join(self) -> None:
        """Take a dead learner's place, if that is what was recorded: from a neighbour's row, then from the centre."""
        command = self.command
        while (event := self.next()) is not None and event.kind is Kind.JOIN:
            self.expect(Kind.JOIN)
            memory = [command.state.vectors[name] for name in command.cluster.memory] + [
                torch.from_numpy(command.scalars)
            ]
            from_centre = event.peer == self.me.centre
            pairs = [] if from_centre else [(vector[self.rank], vector[event.peer]) for vector in memory]
            adopt(self.row, command.rows[event.peer], pairs)
            command.changed()

    def _drive(self, role: Coroutine[Effect[Any], Any, None]) -> None:
        reply: Any = None
        while True:
            try:
                effect = role.send(reply)
            except StopIteration:
                return
            reply = self._perform(effect)

    # Recorded events --------------------------------------------------------------------------------------------------

    def next(self) -> Event | None:
        """The next event, not taken."""
        return self.events[0] if self.events else None

    def expect(self, *kinds: Kind) -> Event:
        """Take the next event, which must be one of `kinds`; wait until the rows it touches are at its versions."""
        event = self.next()
        if event is None or (event.kind in (Kind.BEGIN, Kind.JOIN) and event.kind not in kinds):
            raise _Dead
        if event.kind not in kinds:
            wanted = " or ".join(kind.name.lower() for kind in kinds)
            raise self.differs(f"recorded: {event}; now: {wanted}")
        rows = self.command.rows
        touched = []
        if event.kind in (Kind.READ, Kind.STEP, Kind.REPLACE, Kind.EXCHANGE, Kind.JOIN):
            touched.append((self.rank, event.mine))
        if event.kind in (Kind.EXCHANGE, Kind.FETCH, Kind.JOIN):
            touched.append((event.peer, event.theirs))
        writes = touched if event.kind in (Kind.STEP, Kind.REPLACE, Kind.EXCHANGE) else []
        if event.kind is Kind.JOIN:
            writes = touched[:1]

        def ready() -> bool:
            there = all(rows[rank].version == version for rank, version in touched)
            return there and not any(self.command.readers[place] for place in writes)

        if event.kind is not Kind.READ or self.me.cached != event.mine:
            self.command.until(self.rank, ready, f"its event {self.seen}, to {event}")
        self.events.popleft()
        self.seen += 1
        self.command.whole.done_events += 1
        if event.kind is Kind.READ:
            self.command.readers[self.rank, event.mine] -= 1
        elif event.kind in (Kind.FETCH, Kind.JOIN):
            self.command.readers[event.peer, event.theirs] -= 1
        return event

    def differs(self, what: str) -> Differs:
        """Here is the first difference."""
        return Differs(f"learner {self.rank}, its event {self.seen}: {what}")

    # Effects ----------------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect[Any]) -> Any:  # noqa: PLR0911 one return an effect
        match effect:
            case Draw():
                return self._draw()
            case Grad(at, batch):
                return self._gradient(effect)
            case GradMean(at, batch, group):
                own = self._gradient(effect)
                mean = self._mean(group, self._given(effect, own.vector, batch.frames), float(batch.frames))
                return Gradient(mean, at.version, own.statistics)
            case Mean(group, vector, weight):
                return self._mean(group, self._given(effect, vector, weight), weight)
            case Mix():
                return self._mix(effect, self._lay_out(effect))
            case Exchange():
                return self._exchange(effect)
            case Fetch(peer, into):
                event = self.expect(Kind.FETCH, Kind.GONE)
                version = fetch(self.row, self.command.rows[peer], into) if event.kind is Kind.FETCH else None
                self.command.changed()
                return version
            case Begin(begun):
                return self._begin(begun)
            case Wait(handle):
                if not handle.done:
                    handle.finish(self._finish(handle))
                return handle.reply
            case _:
                raise TypeError(f"{type(effect).__name__} is not an effect of this runtime")

    def _draw(self) -> Minibatch | None:
        index = self.expect(Kind.DRAW).mine
        if index >= 0:
            batch = self.command.plan.piece(index)
            self.me.drawn(batch)
            return batch
        return None if index == -1 else Minibatch(self.command.plan.epoch, index, 0, 0)

    def _gradient(self, effect: Grad | GradMean) -> Gradient:
        command, out = self.command, self.me.gradient_buffer
        statistics = command.learner.gradient(effect.at.vector, effect.batch, command.plan, out)
        event = self.expect(Kind.GRAD)
        found = (effect.batch.index, statistics.loss)
        if found != (event.mine, event.value) and not (np.isnan(event.value) and np.isnan(statistics.loss)):
            raise self.differs(f"recorded: {event}; now: minibatch {found[0]} with loss {found[1]!r}")
        command.whole.done_minibatches += 1
        command.whole.progress.advance(1)
        return Gradient(out, effect.at.version, statistics)

    def _exchange(self, effect: Exchange) -> int | None:
        event = self.expect(Kind.EXCHANGE, Kind.GONE)
        if event.peer != effect.peer:
            raise self.differs(f"recorded: {event}; now: with row {effect.peer}")
        if event.kind is Kind.GONE:
            return None
        version = exchange(self.row, self.command.rows[effect.peer], effect)
        assert version is not None  # there are no other hosts
        self.me.count_exchange(effect, version)
        self.command.changed()
        return version

    def _begin(self, effect: Effect[Any]) -> Handle[Any]:
        handle: Handle[Any] = Handle()
        if isinstance(effect, Mean):
            handle.pending = (effect, self._given(effect, effect.vector, effect.weight).clone())
        elif isinstance(effect, Mix):
            handle.pending = (effect, self._lay_out(effect))
        elif isinstance(effect, Exchange) and self.waiting is None:
            self.waiting = (effect, handle)
            self.try_waiting()
        else:
            handle.finish(self._perform(effect))
        return handle

    def try_waiting(self) -> None:
        """Do the exchange that was put off, if it was done here."""
        following = self.next()
        if self.waiting is None or following is None or following.kind not in (Kind.EXCHANGE, Kind.GONE):
            return
        (effect, handle), self.waiting = self.waiting, None
        handle.finish(self._exchange(effect))

    def _finish(self, handle: Handle[Any]) -> Any:
        if self.waiting is not None and self.waiting[1] is handle:
            effect, self.waiting = self.waiting[0], None
            return self._exchange(effect)
        effect_, begun = handle.pending
        if isinstance(effect_, Mix):
            return self._mix(effect_, begun)
        return self._mean(effect_.group, begun, effect_.weight)

    # Means ------------------------------------------------------------------------------------------------------------

    def _given(self, effect: GradMean | Mean | Mix, vector: Tensor, weight: float) -> Tensor:
        """What the others receive of `vector` (P,)."""
        return arrived(effect.codec, vector, weight, self.me.memory)

    def _mean(self, group: tuple[int, ...], vector: Tensor, weight: float) -> Tensor:
        command = self.command
        self.means += 1
        self.group_means[group] += 1
        gathering = command.gatherings.setdefault((group, self.group_means[group]), _Gathering())
        gathering.vectors[self.rank] = (vector.clone(), weight)
        if len(gathering.vectors) == len(group):
            gathering.mean = torch.empty(command.learner.parameters)
            found = [gathering.vectors[rank] for rank in group]
            for part in chunks(gathering.mean.numel()):
                weighted_mean_(gathering.mean[part], [v[part] for v, _ in found], [w for _, w in found])
            del command.gatherings[group, self.group_means[group]]
            command.changed()
        command.until(
            self.rank, lambda: gathering.mean is not None or self._bereaved(), f"the others of {group} in a mean"
        )
        if gathering.mean is None:
            raise _Dead
        return gathering.mean

    def _bereaved(self) -> bool:
        """This learner did nothing more, somebody in its group having died. No command of a synchronous strategy
        outlives a death, and its last mean may come after its last event."""
        if self.command.cluster.strategy.traits.synchronous:
            return False
        following = self.next()
        return following is None or following.kind in (Kind.BEGIN, Kind.JOIN)

    def _lay_out(self, effect: Mix) -> int:
        self.means += 1
        self.command.contributions[self.rank, self.means] = self._given(effect, effect.vector, 1.0).clone()
        self.command.contributions.pop((self.rank, self.means - 64), None)
        self.command.changed()
        return self.means

    def _mix(self, effect: Mix, number: int) -> Tensor:
        contributions, ranks = self.command.contributions, [rank for rank, _ in effect.weights]
        self.command.until(
            self.rank, lambda: all((rank, number) in contributions for rank in ranks), f"its neighbours in mix {number}"
        )
        mixed = torch.empty(self.command.learner.parameters)
        for part in chunks(mixed.numel()):
            vectors = [contributions[rank, number][part] for rank in ranks]
            weighted_mean_(mixed[part], vectors, [weight for _, weight in effect.weights])
        return mixed


class _Dead(Exception):
    """The recorded learner did nothing more."""


class _State(LearnerState):
    """A learner's state whose operations wait for their turn."""

    def __init__(self, performer: _Performer, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._performer = performer

    @property
    def cached(self) -> int:
        """The version of the row that lies in the snapshot already."""
        return self._snapshot_version

    def snapshot(self) -> Snapshot:
        event = self._performer.expect(Kind.READ)
        found = Snapshot(self._snapshot, event.mine) if self.cached == event.mine else super().snapshot()
        self._performer.command.changed()
        return found

    def step(self, gradient: Gradient) -> None:
        self._performer.try_waiting()
        self._performer.expect(Kind.STEP)
        super().step(gradient)
        self._performer.command.changed()

    def replace(self, vector: Tensor) -> None:
        self._performer.expect(Kind.REPLACE)
        super().replace(vector)
        self._performer.command.changed()
