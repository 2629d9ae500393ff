"""A recorded run again, in one process, event by event, to the same weights bit for bit.

Every learner's coroutine runs in a thread, but only one at a time. Before it touches a row it looks up what version the
row had in the recorded run, and lets others go on until the row is there: a writer of version v also waits for
everybody who read v. So the order that matters is the recorded one, and the rest does not matter. Each gradient is
computed anew and its loss compared with the recorded one, so the first event that differs is named, not the last
weight.

Legend: P parameters, L learners.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.learner.base import Learner
from roundelay.runtime.base import Cluster, ClusterState
from roundelay.runtime.replay.baton import Differs
from roundelay.runtime.replay.learner import RecordedLearner
from roundelay.runtime.replay.stage import Done, RowDevice, Stage
from roundelay.runtime.trace import ROWS_ON, Digests, Kind, TraceEvent, digests, load_state, read_entries, read_events


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

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
        self.rows_on = _rows_on(folder, start, self.learner)
        self.events = [_by_command(folder, rank) for rank in range(cluster.learners)]
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
        """Repeat a command from `state`, which is then what came of it; how that differs from what was recorded."""
        number = entry["number"]
        events = [some.get(number, []) for some in self.events]
        stage = Stage(self.cluster, self.learner, entry, state, self.rows_on, events, self.done)
        learners = [RecordedLearner(stage, rank) for rank, some in enumerate(events) if some]
        minibatches = sum(event.kind is Kind.GRAD for some in events for event in some)
        self.progress.start(f"replaying command {number}", minibatches)
        try:
            stage.baton.run([(learner.rank, partial(self._run, learner)) for learner in learners])
        except Differs as error:
            return f"command {number}, {error}"
        finally:
            self.progress.finish()
            stage.end()
        difference = _compare(state, after)
        return f"the end of command {number}: {difference}" if difference else ""

    def _run(self, learner: RecordedLearner) -> None:
        """Run in a thread of its own, whose sums over more threads would be rounded otherwise."""
        torch.set_num_threads(self.threads)
        learner.run()

    def _recall(self, entry: dict[str, Any]) -> ClusterState:
        if entry["file"]:
            return load_state(self.folder, entry)
        for found, state in self.kept:
            if found == entry["digests"]:
                return _copy(state)
        raise UserError(f"{self.folder}: the run went on from a state that is not in its trace.")


def _rows_on(folder: Path, start: dict[str, Any], learner: Learner) -> RowDevice:
    """Return the device of rows, as it was."""
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
    """Return names of those parts of the state that are not as they were recorded."""
    found = digests(state, tuple(after["living"]))
    return ", ".join(sorted(name for name, value in after["digests"].items() if found.get(name) != value))
