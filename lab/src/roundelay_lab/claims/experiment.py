"""Kinds of experiments, as a claim's file describes them. They are run in running.py.

Every experiment is a table in the end: rows with keys (strategy, learners, ...), a seed, and measured columns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from roundelay.core.progress import Progress

Row = dict[str, Any]
"""A line of an experiment's table: keys, `seed` where it has one, and columns; None where a run diverged."""


@dataclass(frozen=True)
class Printed:
    """An experiment that holds the simulator to printed numbers: speedups of `li2017` (published/speedups.py), or
    hours of training of `ibm` (published/hours.py)."""

    kind: Literal["printed"] = field(default="printed", kw_only=True)
    what: Literal["li2017", "ibm"]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys of the experiment's rows."""
        if self.what == "ibm":
            return ("source", "system", "strategy", "gpus", "use", "assumed")
        return ("network", "strategy", "minibatch", "gpus", "period", "use")


@dataclass(frozen=True)
class Scenarios:
    """An experiment with strategies on virtual clusters, on a noisy quadratic or on time alone; no model is trained.

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
        """Names of the keys of the experiment's rows."""
        return ("strategy", "learners", "factor")


@dataclass(frozen=True)
class Mixing:
    """An experiment on the distance from consensus that gradient noise and a topology settle to, and its theory by the
    mixing matrix.

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
        """Names of the keys of the experiment's rows."""
        return ("strategy", "learners")


@dataclass(frozen=True)
class Part:
    """A part of an experiment: trainings of one grid, as `roundelay compare` plans them: every strategy with every
    number of learners, and one learner (`sgd`).

    overrides  section.key=value; one with several values is an axis, and so is strategy.OPTION=value,value
    tune       section.key=value,value: for each strategy, number of learners and value of an axis the best on dev of
               seed 0, which does not judge
    stragglers train everything a second time with these learners slow, as RANK:3x
    """

    strategies: tuple[str, ...]
    learners: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    tune: tuple[str, ...] = ()
    stragglers: tuple[str, ...] = ()

    @property
    def tuned(self) -> tuple[str, ...]:
        """Keys of tuned options."""
        return tuple(text.partition("=")[0] for text in self.tune)


@dataclass(frozen=True)
class Trainings:
    """An experiment with trainings of a packaged recipe on speech, in the simulator with real gradients.

    runs       folder of the runs: claims that share it share trainings, and have the same recipe and overrides
    overrides  section.key=value for all parts
    seeds      number of seeds that judge, from 1 on where anything is tuned, else from 0
    target     column `seconds` is the virtual time to that dev loss, straight between evaluations; null: to the end
    processes_up_to   cells of so many learners or fewer are trained on processes instead, and have no column `seconds`
    """

    kind: Literal["trainings"] = field(default="trainings", kw_only=True)
    recipe: str
    runs: str
    parts: tuple[Part, ...]
    overrides: tuple[str, ...] = ()
    seeds: int = 3
    target: float | None = None
    processes_up_to: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys of the experiment's rows; a tuned option is a column."""
        texts = [text.partition("=") for part in self.parts for text in (*self.overrides, *part.overrides)]
        axes = [short(key) for key, _, values in texts if "," in values and not values.startswith(("{", "["))]
        slow = ["straggler"] if any(part.stragglers for part in self.parts) else []
        return ("strategy", "learners", *slow, *dict.fromkeys(axes))

    @property
    def wants(self) -> str:
        """Options of the experiment's command by which the corpus is found."""
        return "--source DIR" + (" --lexicon FILE" if "librispeech" in self.recipe else "")

    @property
    def grids(self) -> list[tuple[Part, str]]:
        """Every strategy of every part, (part, strategy); trainings on processes are a part of their own."""
        return [
            (part, strategy) for whole in self.parts for strategy in whole.strategies for part in self._split(whole)
        ]

    def _split(self, part: Part) -> list[Part]:
        few = tuple(learners for learners in part.learners if learners <= self.processes_up_to)
        many = tuple(learners for learners in part.learners if learners not in few)
        processes = [replace(part, learners=few, overrides=(*part.overrides, PROCESSES))] if few else []
        return processes + ([replace(part, learners=many)] if many else [])


PROCESSES = "training.runtime=procs"
"""Override of a part whose cells are trained on processes."""


@dataclass(frozen=True)
class Regime:
    """A measurement of minibatches against the noise scale of gradients: one learner is trained with each, and its
    gradients are measured after every epoch (noise.py).

    overrides  section.key=value, beside those of the experiment; `training.minibatch` is an axis
    tune       as of a part
    seeds      number of seeds, as in the experiment
    groups     number of minibatches of `size` drawn for each measurement, no example twice
    says       meaning of the result for the claim
    """

    overrides: tuple[str, ...]
    tune: tuple[str, ...] = ()
    seeds: int = 3
    groups: int = 12
    size: int = 32
    says: str = ""

    keys: ClassVar[tuple[str, ...]] = ("minibatch", "epoch")
    """Names of the keys of the experiment's rows."""

    @property
    def tuned(self) -> tuple[str, ...]:
        """Keys of tuned options."""
        return tuple(text.partition("=")[0] for text in self.tune)


AnyExperiment = Printed | Scenarios | Mixing | Trainings


def short(key: str) -> str:
    """Return a key's short name for a table: `period` for `strategy.period`."""
    return key.rpartition(".")[2]


Work = Callable[[Progress], Row]
"""Function that computes the columns of a row."""


@dataclass(frozen=True)
class Piece:
    """A row to be computed: `key` are its keys and seed, plain values."""

    key: Row
    work: Work


@dataclass(frozen=True)
class Found:
    """The result of an experiment: table and seconds; `tuning` has rows by which values were chosen."""

    rows: list[Row]
    tuning: list[Row]
    seconds: float
