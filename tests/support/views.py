"""Views of tables that no arena has."""

from typing import TypeVar

import numpy as np

from roundelay.runtime.procs.memory.views import Sizes, View

V = TypeVar("V", bound=View)


def zeros(kind: type[V], learners: int) -> V:
    """Return a view of type `kind` whose tables are this process's own, all zeros."""
    return kind.on({name: np.zeros(table.shape, table.kind) for name, table in kind.tables(Sizes(learners)).items()})
