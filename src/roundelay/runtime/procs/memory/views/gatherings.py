"""Numbers of gatherings: who has come, when, and what is usual. The rules are in runtime/gathering.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray

from roundelay.runtime.gathering import GatheringTable
from roundelay.runtime.procs.memory.views.view import Sizes, Table, View


@dataclass(frozen=True)
class GatheringNumbers(View):
    """Written under the queue lock; by the parent between segments, when no learner runs."""

    numbers: GatheringTable

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        return {name: Table(shape, kind) for name, (shape, kind) in GatheringTable.shapes(sizes.learners).items()}

    @classmethod
    def on(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        return cls(GatheringTable(**arrays))
