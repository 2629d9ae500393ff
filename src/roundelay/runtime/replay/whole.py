"""A recorded run again, in one process, event by event, to the same weights bit for bit.

Every learner's coroutine runs in a thread, but only one at a time. Before it touches a row it looks up the version the
row had in the recorded run, and lets others go on until the row is there: a writer of version v also waits for all that
read v. So the order that matters is the recorded one. Each gradient is computed anew and its loss compared with the
recorded one, so the first event that differs is named, not the last weight.

Legend: P parameters, L learners.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from roundelay.core.effects import Exchange, Gather, Grad, GradMean, Mean, Mix, Reach
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import Learner, OnReady
from roundelay.runtime.backend import NO_REMOTE, ClockedBackend
from roundelay.runtime.base import Cluster, ClusterState
from roundelay.runtime.coding import arrived
from roundelay.runtime.engine import ClockedEngine
from roundelay.runtime.learner_state import LearnerPlace, LearnerTables, LearnerVectors
from roundelay.runtime.replay.stage import (
    BEFORE,
    Differs,
    Done,
    GroupMean,
    HostExchanges,
    Recorded,
    RecordedState,
    RepeatedRemote,
    RowDevice,
    Stage,
    answers_of,
)
from roundelay.runtime.rows import Deferred, Row, adopt, reach
from roundelay.runtime.trace import (
    HOSTS,
    ROWS_ON,
    Digests,
    Kind,
    TraceEvent,
    digests,
    exchange_of,
    has_events,
    load_state,
    note_gradient,
    read_entries,
    read_events,
)


class _Dead(Exception):
    """Raised where the recorded learner died."""


@final
class StagedEvents(Recorded):
    """The recorded events of a learner of a run, whose turns follow from the stage's rows."""

    def __init__(self, stage: Stage, rank: int) -> None:
        super().__init__(rank, stage.events[rank])
        self._stage = stage

    def wait(self, event: TraceEvent) -> None:
        ready = partial(self._stage.may, self.rank, event)
        self._stage.baton.until(self.rank, ready, f"its event {self.seen}, to {event}")

    def is_taken(self, event: TraceEvent) -> None:
        self._stage.taken(self.rank, event)

    def changed(self) -> None:
        self._stage.baton.changed()

    def over(self, wanted: str) -> _Dead:
        return _Dead()


class RecordedLearner(ClockedBackend):
    """Repeats the acts of learner `rank`: the backend of its engine. `here` are the rows of its host, of several;
    None: there is one."""

    def __init__(self, stage: Stage, rank: int, here: Sequence[int] | None, exchanges: HostExchanges | None) -> None:
        self._stage, self.rank, self._row = stage, rank, stage.rows[rank]
        self.recorded = recorded = StagedEvents(stage, rank)
        cluster, size = stage.cluster, stage.learner.parameters
        memory = {name: stage.vectors[name][rank] for name in cluster.memory}
        self._buffer, snapshot = (torch.empty(size, device=stage.rows_on.device) for _ in range(2))
        self._me = RecordedState(
            recorded,
            self._finish_deferred,
            LearnerPlace(rank, cluster.learners, cluster.seed, cluster.minibatches_a_round),
            LearnerVectors(self._row, self._buffer, snapshot, memory, stage.learner.shapes),
            cluster.optimizer,
            LearnerTables(stage.steps, stage.counts, stage.scalars[rank]),
            rate=cluster.rate_factor(memory, stage.scalars[rank]),
        )
        # The step does not take deferred exchanges from there: it waits for its turn before each.
        remote = NO_REMOTE
        if here is not None and exchanges is not None:

            def visit(effect: Exchange, request: int) -> None:
                exchanges.visit(request, effect, self._row, stage.rows[effect.peer])

            remote = RepeatedRemote(recorded, here, answers_of(stage.events[rank]), self.reach, visit)
        self.engine = ClockedEngine(self._me, self, Deferred(), remote, self.recorded)

    def _finish_deferred(self) -> None:
        self.engine.finish_deferred()

    def run(self) -> None:
        """Run the learner to the end of its recorded events, where one that died ends too."""
        stage, recorded = self._stage, self.recorded
        while recorded.next is not None:
            if threads := int(recorded.take(Kind.BEGIN).value):
                torch.set_num_threads(threads)
            self._join()
            if not self._begins():
                continue
            self._me.begin_segment(stage.segment, stage.living, stage.cluster.strategy.traits.ages)
            try:
                self.engine.begin(stage.cluster.strategy.learn(self._me))
                self.engine.finish_asked()
            except _Dead:
                self.engine.close()

    def _begins(self) -> bool:
        """Return False if the learner died before it did anything."""
        return self.recorded.next is not None and not self.recorded.next_is(Kind.BEGIN)

    def _join(self) -> None:
        """Begin in a dead learner's place, if that was recorded: copy a neighbour's row, then the centre."""
        stage = self._stage
        while self.recorded.next_is(Kind.JOIN):
            event = self.recorded.take(Kind.JOIN)
            memory: list[Sequence[Tensor] | Tensor] = [stage.vectors[name] for name in stage.cluster.memory]
            memory.append(torch.from_numpy(stage.scalars))
            from_centre = event.peer == self._me.centre
            pairs = [] if from_centre else [(vector[self.rank], vector[event.peer]) for vector in memory]
            adopt(self._row, stage.rows[event.peer], pairs)
            stage.baton.changed()

    # The engine's backend ---------------------------------------------------------------------------------------------

    def now(self) -> float:
        return 0.0

    def draw(self, group: tuple[int, ...]) -> Minibatch | None:
        index = self.recorded.look(Kind.DRAW).mine
        if index >= 0:
            return self._stage.segment.epoch.piece(index)
        return None if index == -1 else Minibatch(self._stage.segment.epoch.epoch, index, 0, 0)

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient:
        stage, batch = self._stage, effect.batch
        at, out = effect.at.vector, self._buffer
        statistics = stage.learner.gradient(at, batch, stage.segment.epoch, out, resident=stage.rows_on.resident)
        if self.recorded.next_is(Kind.HASH):  # earlier traces have none
            note_gradient(self.recorded, at, out, float(batch.frames), batch.index)
        stage.done.minibatches += 1
        stage.done.progress.advance(1)
        return Gradient(self._buffer, effect.at.version, statistics, float(batch.frames))

    def settle(self, statistics: Statistics) -> None: ...

    def publish(self, effect: Mean | Mix) -> GroupMean | int:
        if isinstance(effect, Mean):
            vector = arrived(effect.codec, effect.vector, effect.weight, self._row.memory, effect.fragment)
            return self._stage.means.give(self.rank, effect.group, vector, effect.weight)
        return self._stage.means.publish(self.rank, arrived(effect.codec, effect.vector, 1.0, self._row.memory))

    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> GroupMean:
        vector = arrived(effect.codec, gradient.vector, gradient.weight, self._row.memory)
        return self._stage.means.give(self.rank, effect.group, vector, gradient.weight)

    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor:
        if isinstance(effect, Mix):
            return self._here(self._stage.means.mix(self.rank, effect.weights, published))
        found: GroupMean = published
        what = f"the others of {effect.group} in a mean"
        self._stage.baton.until(self.rank, lambda: found.mean is not None or self._bereaved(), what)
        if found.mean is None:
            raise _Dead
        return self._here(found.mean)

    def _here(self, mean: Tensor) -> Tensor:
        """Copy a mean to the device of the learner's row."""
        return mean.to(self._row.vector.device)

    def _bereaved(self) -> bool:
        """Return True if this learner ended after a death in its group. No command of a synchronous strategy outlives a
        death, and a learner's last mean may come after its last event."""
        if self._stage.cluster.strategy.traits.synchronous:
            return False
        return self.recorded.next is None or self.recorded.next_is(*BEFORE)

    def admits(self, effect: Gather) -> bool:
        return bool(self.recorded.look(Kind.COME).value)

    def closes(self, effect: Gather) -> bool:
        return bool(self.recorded.look(Kind.MET).value)

    def closed(self, effect: Gather) -> None: ...

    def lives(self, peer: int) -> bool:
        """Return True unless the record has the peer as dead at this point."""
        return not self.recorded.next_is(Kind.GONE)

    def reach(self, effect: Reach) -> int | None:
        if not self.recorded.take_reach(effect):
            return None
        version = reach(self._row, self._stage.rows[effect.peer], effect)
        self._stage.baton.changed()
        return version

    def deferrable(self, peer: int) -> Row | None:
        return self._stage.rows[peer]


@dataclass(frozen=True)
class Replayed:
    """Result of repeating a recorded run in one process."""

    commands: int  # stretches of training repeated
    skipped: int  # begun, but cut short by a kill of the whole run, and not part of its result
    events: int
    minibatches: int
    difference: str  # "" if all digests agree
    state: ClusterState


def replay(
    folder: Path, cluster: Cluster, progress: Progress, exchanges: Callable[[], HostExchanges] | None = None
) -> Replayed:
    """Repeat the run whose trace is in `folder`.

    Args:
        exchanges: repeats those between hosts, of a run on several.

    Raises:
        UserError: the trace is missing, damaged, or of another cluster; or a learner of one of several hosts died.
    """
    return _Replay(folder, cluster, progress, exchanges).run()


class _Replay:
    """The repetition of all commands of a trace, one after the other."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        progress: Progress,
        exchanges: Callable[[], HostExchanges] | None,
    ) -> None:
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
        if missing := [rank for hosts in start.get(HOSTS, []) for rank in hosts if not has_events(folder, rank)]:
            raise UserError(
                f"{folder}: the trace of {wanted[0]} learners, of which {missing} are not in it: they were on another "
                "host, whose folder belongs into this one as well."
            )
        self.threads: int = start["threads"]
        self.rows_on = _rows_on(folder, start, self.learner)
        self.events = [_by_command(folder, rank) for rank in range(cluster.learners)]
        self.hosts: list[list[int]] = []
        self.carried, self.exchanges = _carried(folder, self.events), None if exchanges is None else exchanges()
        self._check_lives()
        self.kept: list[tuple[Digests, ClusterState]] = []
        self.done = Done(progress)

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
                    self.hosts = entry.get(HOSTS, [])
                    if self.exchanges is not None:
                        self.exchanges.begin()
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
                    state = _copy(state)
                    difference = self._repeat(entry, state, done[entry["number"]])
            if difference:
                break
            found = digests(state, everyone)
            if found in to_be_loaded:
                self.kept.append((found, _copy(state)))
        return Replayed(commands, skipped, self.done.events, self.done.minibatches, difference, state)

    def _repeat(self, entry: dict[str, Any], state: ClusterState, after: dict[str, Any]) -> str:
        """Repeat a command from `state`, which becomes its result; return in words how that differs from the recorded
        one, or ""."""
        number = entry["number"]
        events = [some.get(number, []) for some in self.events]
        carried = [some.get(number, []) for some in self.carried]
        stage = Stage(self.cluster, self.learner, entry, state, self.rows_on, events, carried, self.done)
        centre = [self.cluster.learners]  # with the first host
        hosts = {rank: here + centre * (0 in here) for here in self.hosts for rank in here}
        learners = [
            RecordedLearner(stage, rank, hosts.get(rank), self.exchanges) for rank, some in enumerate(events) if some
        ]
        threads = [(learner.rank, partial(self._run, learner.run)) for learner in learners]
        if self.exchanges is not None:
            carrying = [(~row, partial(stage.carry, row, some, self.exchanges)) for row, some in enumerate(carried)]
            threads += [(place, partial(self._run, carry)) for place, carry in carrying]
        minibatches = sum(event.kind is Kind.GRAD for some in events for event in some)
        self.progress.start(f"replaying command {number}", minibatches)
        try:
            stage.baton.run(threads)
        except Differs as error:
            return f"command {number}, {error}"
        finally:
            self.progress.finish()
            stage.end()
        difference = _compare(state, after)
        return f"the end of command {number}: {difference}" if difference else ""

    def _run(self, work: Callable[[], None]) -> None:
        """Run in a thread of its own, whose sums over more threads would be rounded otherwise."""
        torch.set_num_threads(self.threads)
        work()

    def _check_lives(self) -> None:
        """
        Raises:
            UserError: a run on several hosts went on after a death.
        """
        hosts, gone = list[list[int]](), list[int]()
        for entry in self.entries:
            match entry["what"]:
                case "start":
                    hosts, gone = entry.get(HOSTS, []), []
                case "lost":
                    gone += entry["ranks"]
                case "done":
                    gone += entry["lost"]
                    if hosts and gone:
                        raise UserError(
                            f"{self.folder}: learner {gone[0]} died, or its host was lost or came later, while this "
                            "was recorded, and a replay of several hosts repeats runs whose learners live to the end."
                        )

    def _recall(self, entry: dict[str, Any]) -> ClusterState:
        if entry["file"]:
            return load_state(self.folder, entry)
        for found, state in self.kept:
            if found == entry["digests"]:
                return _copy(state)
        raise UserError(f"{self.folder}: the run went on from a state that is not in its trace.")


def _rows_on(folder: Path, start: dict[str, Any], learner: Learner) -> RowDevice:
    """Return the device that rows were on when they were recorded."""
    where, here = start.get(ROWS_ON, "cpu"), "cpu" if learner.device is None else learner.device.type
    if where not in ("cpu", here):
        raise UserError(
            f"{folder}: recorded with rows on {where}, and learners compute on {here} now: a replay needs a machine "
            "like that of the run."
        )
    return RowDevice(torch.device(where), ROWS_ON in start)


def _by_command(folder: Path, rank: int) -> dict[int, list[TraceEvent]]:
    found: dict[int, list[TraceEvent]] = {}
    for event in read_events(folder, rank):
        if event.kind is Kind.BEGIN:
            found.setdefault(event.mine, [])
            current = found[event.mine]
        current.append(event)
    return found


def _carried(folder: Path, events: Sequence[Mapping[int, Sequence[TraceEvent]]]) -> list[dict[int, list[TraceEvent]]]:
    """Return the events of exchanges between hosts, by row and by the command in which a learner has asked for the
    exchange: one may come to a host before the command does. Numbers of requests and exchanges are given once."""
    by_learner = [[(n, e) for n, some in commands.items() for e in some] for commands in events]
    asked = {(rank, e.mine): n for rank, some in enumerate(by_learner) for n, e in some if e.kind is Kind.ASKED}
    rows, of = [[*read_events(folder, row, carried=True)] for row in range(len(events))], dict[tuple[int, int], int]()
    for row, some in enumerate(rows):
        bids = (both for both in pairwise(some) if [event.kind for event in both] == [Kind.BIDDEN, Kind.SENT])
        of |= {exchange_of(row, sent): asked.get((bid.peer, bid.mine), 0) for bid, sent in bids}
    found: list[dict[int, list[TraceEvent]]] = [{} for _ in rows]
    for row, some in enumerate(rows):
        for event in some:
            if event.kind is not Kind.BIDDEN:
                found[row].setdefault(of.get(exchange_of(row, event), 0), []).append(event)
    return found


def _initial(cluster: Cluster, learner: Learner) -> ClusterState:
    vectors = {name: torch.zeros(cluster.learners, learner.parameters) for name in ("row", *cluster.memory)}
    vectors["row"][:] = learner.initial()
    if cluster.centre:
        vectors["centre"] = learner.initial()[None].clone()
        vectors |= {name: torch.zeros(1, learner.parameters) for name in cluster.centre_vectors.values()}
    if cluster.scalars:
        vectors["scalars"] = torch.zeros(cluster.learners, cluster.scalars, dtype=torch.float64)
    counters = {"steps": [0] * cluster.learners, "versions": [0] * (cluster.learners + cluster.centre)}
    return ClusterState(vectors, counters)


def _copy(state: ClusterState) -> ClusterState:
    vectors = {name: value.clone() for name, value in state.vectors.items()}
    return ClusterState(vectors, {name: list(numbers) for name, numbers in state.integers.items()})


def _compare(state: ClusterState, after: dict[str, Any]) -> str:
    """Return the names of the parts of the state that are not as recorded; "" if there are none."""
    found = digests(state, tuple(after["living"]))
    return ", ".join(sorted(name for name, value in after["digests"].items() if found.get(name) != value))
