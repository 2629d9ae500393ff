"""Counts of the segment: minibatches, frames, loss, staleness, exchanges, seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray

from roundelay.runtime.base import Counts
from roundelay.runtime.procs.memory.views.view import Sizes, Table, View


@dataclass(frozen=True)
class Counters(View):
    """Each learner writes its own items. Frames, correct frames and loss are exact once it has let go of its claim (see
    `WorkQueue`); the rest may be one step behind. The host's own process writes those of other hosts' learners."""

    counts: Counts

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        found = vars(Counts.zeros(sizes.learners, sizes.centre))
        return {name: Table(array.shape, array.dtype.type) for name, array in found.items()}

    @classmethod
    def on(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        return cls(Counts(**arrays))
