"""Copies of one learner's state, and of the state that all learners share: to be saved, and to go on from.

Legend: P parameters, L learners.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from roundelay.algorithms.gain import GradientNoise
from roundelay.runtime.attached.entering import write
from roundelay.runtime.attached.meetings import SaveTables
from roundelay.runtime.attached.membership import Attendance, Membership
from roundelay.runtime.attached.surroundings import Surroundings
from roundelay.runtime.gathering import Gatherings
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.strategies.base import Strategy


@dataclass(frozen=True)
class SavesSoFar:
    """Saves of the learners that take part: the newest that all have whole, the highest number, and who lacks one."""

    whole: int
    last: int
    lacking: tuple[int, ...]
    """Ranks that have no save whole."""


@final
class SavedState:
    """One learner's state, for saves. All methods but `note` are for meetings, in which no learner writes."""

    def __init__(
        self,
        me: LearnerState,
        arena: Arena,
        around: Surroundings,
        means: Means,
        members: Callable[[], Membership],
        strategy: Strategy,
        noise: GradientNoise | None = None,
    ) -> None:
        self._me, self._arena, self._around, self._means, self._members = me, arena, around, means, members
        self._centre = strategy.traits.model == "centre"
        self.strategy, self._noise = strategy, noise

    def own(self) -> dict[str, Any]:
        """Return a copy of the state that is this learner's alone."""
        memory, mass = {name: _copy(vector) for name, vector in self._me.memory.items()}, self._me.row.mass
        return {
            **({} if mass is None else {"mass": float(mass[0])}),
            "row": _copy(self._me.x),
            "memory": memory,
            "steps": self._me.steps,
            "mean_weight": self._means.total,  # of the last mean, which may be applied in the next segment
            "noise": [] if self._noise is None else self._noise.seen(),
        }

    def centre(self) -> dict[str, Any]:
        """Return a copy of the centre, in a meeting with a model, and of the vectors beside it if the centre is on this
        host; empty if the strategy has no centre."""
        if not self._centre:
            return {}
        return {"centre": _copy(self._around.centre()), **(self._beside_centre() if self._around.has_centre else {})}

    def _beside_centre(self) -> dict[str, Tensor]:
        found = {f"centre.{name}": _copy(vector) for name, vector in self._around.centre_row().memory.items()}
        if (learnt := Gatherings(self._arena.gatherings).learnt()) is not None:
            found["centre.gatherings"] = torch.from_numpy(learnt)
        return found

    def shared(self) -> dict[str, Any]:
        """Return a copy of the state that all learners share, on the learner that answers for it; empty on the
        others."""
        if not self._around.leads(self._members()):
            return {}
        found: dict[str, Any] = {"passes": passes.copy_of(self._arena)}
        if self._centre:
            found |= {"centre": _copy(self._around.centre_row().vector), **self._beside_centre()}
        return found

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a saved state into this learner, and the shared state with it on the learner that answers for that."""
        self._me.replace(state["row"])
        for name, vector in self._me.memory.items():
            vector.copy_(state["memory"][name])
        if self._me.row.mass is not None:
            self._me.row.mass[0] = state.get("mass") or 0.0
        self._arena.optimizer.steps[self._me.rank] = state["steps"]
        self._means.total = state.get("mean_weight", 0.0)
        if self._noise is not None and (seen := state.get("noise")):  # else it was saved under another rate
            self._noise.recall(seen)
        if self._around.leads(self._members()):
            if "centre" in state:
                centre = self._around.centre_row()
                write(centre, state["centre"])
                for name, vector in centre.memory.items():
                    vector.copy_(state[f"centre.{name}"])
                learnt = state.get("centre.gatherings")
                Gatherings(self._arena.gatherings).recall(None if learnt is None else learnt.numpy())
            passes.restore(self._arena, state.get("passes", ()))

    def epoch_under_way(self, sampler: int, pieces: int) -> tuple[int, int]:
        """Return the epoch that learners go through with a sampler, and how often they went through it before, for a
        learner that comes back, at any time. After the meeting at the end of an epoch the next is under way.

        Args:
            pieces: number of minibatches in an epoch.
        """
        found = passes.newest(self._arena, sampler)
        if found is None:
            return 0, 0
        met = int(self._arena.view(Attendance).met[self._me.rank])
        _, epoch, times = found.key
        over = found.drawn >= pieces and found.segment < met
        return (epoch + 1, 0) if over else (epoch, times)

    @property
    def ranks(self) -> list[int]:
        """Ranks of the learners that take part."""
        return list(self._around.taking_part(self._members()))

    def note(self, whole: int, last: int) -> None:
        """Write, before a meeting, the numbers of this learner's newest whole save and of the highest it has seen."""
        tables, rank = self._arena.view(SaveTables), self._me.rank
        tables.whole[rank], tables.last[rank] = whole, last

    def noted(self) -> SavesSoFar:
        """Return a summary of what all learners have written by `note`."""
        tables, ranks = self._arena.view(SaveTables), self.ranks
        lacking = tuple(rank for rank in ranks if not tables.whole[rank])
        return SavesSoFar(int(tables.whole[ranks].min()), int(tables.last[ranks].max()), lacking)


def _copy(vector: Tensor) -> Tensor:
    """Return a copy of `vector` in the memory of the host."""
    return vector.to("cpu", copy=True)
