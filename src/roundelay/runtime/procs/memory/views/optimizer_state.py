"""Numbers that belong to a row, beside its vectors: a checkpoint keeps them."""

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from roundelay.runtime.procs.memory.views.view import Floats, Integers, L, View, table


@dataclass(frozen=True)
class OptimizerState(View):
    """A learner writes its own items while a segment runs, the parent all of them between segments. Others read
    `scalars` under the row's lock, and change a row's mass, the last of them where rows are weighed, with the row;
    `others` is written with the row too. `steps` may be read at any time, and then is right or one behind."""

    steps: Integers = table(L)  # Local updates since the run began
    scalars: Floats = table(L, attrgetter("scalars"), kind=np.float64)  # Numbers that each optimizer keeps; a mass
    others: Floats = table(L, attrgetter("others"), kind=np.float64)  # Row.others; no checkpoint keeps these
