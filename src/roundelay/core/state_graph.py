"""Graphs of states that emit columns of scores: sets of paths that a forward-backward algorithm sums over.

A path begins in state 0, which emits nothing, and takes an arc with every frame, or stays where it is. A state emits
one column in the frame that enters it and another, maybe the same, in every frame that stays in it.

Legend: K states, E arcs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StateGraph:
    """A set of weighted paths. No arc enters state 0.

    Attributes:
        source, target: (E,) states.
        weight: (E,) natural logarithms.
        enter, stay: (K,) columns; those of state 0 have no meaning.
        final: (K,) natural logarithms of the weight of ending in each state; -inf: a path cannot.
        within: True if this is a numerator all of whose paths are paths of its denominator.
    """

    source: Integers
    target: Integers
    weight: Floats
    enter: Integers
    stay: Integers
    final: Floats
    within: bool = True

    @property
    def states(self) -> int:
        """K, the number of states."""
        return len(self.final)
