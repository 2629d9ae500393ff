"""Kinds of experiments, as a claim's file describes them. They are run in running.py.

Every experiment is a table in the end: rows with keys (strategy, learners, ...), a seed, and measured columns.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Row = dict[str, Any]
"""A line of an experiment's table: keys, `seed` where it has one, and columns; None where a run diverged."""


@dataclass(frozen=True)
class Printed:
    """Numbers that papers print, beside those of the simulator: speedups of `li2017` (simulate/published.py), or hours
    of training of `ibm` (simulate/ibm.py)."""

    kind: Literal["printed"] = field(default="printed", kw_only=True)
    what: Literal["li2017", "ibm"]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of its keys."""
        if self.what == "ibm":
            return ("source", "system", "strategy", "gpus", "use")
        return ("network", "strategy", "minibatch", "gpus", "period", "use")


@dataclass(frozen=True)
class Scenarios:
    """Strategies on virtual clusters, on a noisy quadratic or on time alone; nothing is trained.

    factors   how many times slower learner 1 is than the others, each in a run of its own; 1: all are equal
    rounds    minibatches of a learner, on average
    """

    kind: Literal["scenarios"] = field(default="scenarios", kw_only=True)
    strategies: tuple[str, ...]
    learners: tuple[int, ...]
    factors: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (1, 2, 3)
    rounds: int = 200
    timing_only: bool = True
    gradient: float = 0.1
    exchange: float = 0.005
    allreduce: float = 0.03
    jitter: float = 0.0

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of its keys."""
        return ("strategy", "learners", "factor")


@dataclass(frozen=True)
class Mixing:
    """Distance from consensus that gradient noise and a topology settle to, beside the theory of the mixing matrix.

    The curvature is next to nothing, so that only noise moves rows apart and only mixing brings them together.
    """

    kind: Literal["mixing"] = field(default="mixing", kw_only=True)
    strategies: tuple[str, ...]
    learners: tuple[int, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    rounds: int = 400
    parameters: int = 400

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of its keys."""
        return ("strategy", "learners")


AnyExperiment = Printed | Scenarios | Mixing
