"""Numbers that belong to a row, beside its vectors: a checkpoint keeps them."""

from dataclasses import dataclass

import numpy as np

from roundelay.runtime.procs.memory.views.view import Floats, Integers, Sizes, Table, View


@dataclass(frozen=True)
class OptimizerState(View):
    """A learner writes its own items while a segment runs, the parent all of them between segments. Others read
    `scalars` under the row's lock; `steps` may be read at any time, and then is right or one behind."""

    steps: Integers
    """(L,) Local updates since the run began."""
    scalars: Floats
    """(L, n) The numbers that each learner's optimizer keeps."""

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        return {
            "steps": Table((sizes.learners,)),
            "scalars": Table((sizes.learners, sizes.scalars), np.float64),
        }
