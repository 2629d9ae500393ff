"""The runs of a grid, whatever they train: cells that are compared, each with its run directory and its work, and
trials by which a value is chosen first."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.job import Interrupt
from roundelay.reports.series import configuration_name
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy
from roundelay.strategies.sgd import SerialSgd

Values = tuple[tuple[str, Any], ...]
"""One value for each of some axes, as (key, value); None if an axis means nothing to the strategy."""


@dataclass(frozen=True)
class Configuration:
    """Everything that defines a training except its seed; a row of the table."""

    strategy: Strategy
    learners: int
    stragglers: tuple[str, ...]
    axes: Values
    stem: str  # of the names of its directories

    @property
    def name(self) -> str:
        """Name without axes and seed, as the report calls it."""
        return configuration_name(self.strategy.label, self.learners, self.stragglers)

    @property
    def whole_name(self) -> str:
        """Name with the values of the axes."""
        told = (f"{key} {shown(value)}" for key, value in self.axes if value is not None)
        return ", ".join([self.name, *told])


@dataclass(frozen=True)
class Cell:
    """One training of the grid."""

    exp: Path
    configuration: Configuration
    seed: int

    @property
    def name(self) -> str:
        """Name of the cell: configuration and seed."""
        return f"{self.configuration.whole_name}, seed {self.seed}"


class CellWork(ABC):
    """The work on one cell. `trained` and `new` (work not there before) say how far it came, also after an error."""

    trained = new = False

    @abstractmethod
    def go(self) -> bool:
        """Train the cell, or read its existing result; return False if interrupted, else True."""


Work = Callable[[Cell, bool, Progress, Interrupt], CellWork]
"""Makes the work on a cell, from (cell, whether to decode it, progress, the wish to stop)."""


def stem(strategy: Strategy, learners: int, stragglers: tuple[str, ...], apart: Mapping[str, Any]) -> str:
    """Return the name of a cell's directories without the seed; `apart` are values of axes that its recipe does not
    have."""
    parts = [f"{directory_label(strategy)}-{learners}" + "-straggler" * bool(stragglers)]
    parts += [_sanitised(f"{key} {shown(value)}") for key, value in apart.items()]
    return "-".join(parts)


def shown(value: object) -> str:
    """Return a value of an axis as people read it."""
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def directory_label(strategy: Strategy) -> str:
    """Return a strategy's label as part of a file name, followed by options it was given that the label does not name.

    It depends on the strategy alone, not on the others compared, so that a directory is found again.
    """
    words, usual = strategy.label.split(), plain(make_strategy(strategy.name))
    parts = [strategy.label]
    for option, value in plain(strategy).items():
        told = option in words or (isinstance(value, str) and value in words)
        if value != usual[option] and not told:
            parts.append(f"{option} {value}")
    return _sanitised(" ".join(parts))


def _sanitised(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", re.sub(r" -(?=[0-9.])", " minus ", text)).strip("-")


@dataclass(frozen=True)
class Tuning:
    """A configuration with options to tune: `trials` try all values under one seed, and the best is judged under
    others."""

    configuration: Configuration  # without values of tuned options
    keys: tuple[str, ...]  # of tuned options
    trials: tuple[Cell, ...]


@dataclass(frozen=True)
class Contenders:
    """Trainings that are wanted of a recipe or script: strategies besides `sgd`, each written as in the command line;
    numbers of learners; seeds that judge; stragglers: with and without them; tune: `KEY=V,V,V`, options chosen on dev.
    """

    strategies: Sequence[str]
    learners: Sequence[int]
    seeds: int
    stragglers: Sequence[str] = ()
    tune: Sequence[str] = ()

    def ways(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Return (strategy, learners, stragglers) of each way to train, one learner alone first.

        Raises:
            UserError: no strategy is for several learners.
        """
        several = [learners for learners in dict.fromkeys(self.learners) if learners > 1]
        texts = [text for text in dict.fromkeys(self.strategies) if not isinstance(make_strategy(text), SerialSgd)]
        if not texts:
            raise UserError("give --strategies, for example --strategies ssgd adpsgd:random-ring.")
        slowed = [(), tuple(self.stragglers)] if self.stragglers else [()]
        of_several = [(text, learners, slow) for learners in several for text in texts for slow in slowed]
        return [(SerialSgd.name, 1, ()), *of_several]


@dataclass(frozen=True)
class Grid(ABC):
    """The trainings of a comparison. `cells` are in training order, seed by seed, so that a grid cut short still
    compares. Cells of configurations that are tuned first are not among them, since trials choose their values."""

    folder: Path
    cells: tuple[Cell, ...]
    tunings: tuple[Tuning, ...]
    seeds: tuple[int, ...]  # that judge
    axes: tuple[str, ...]  # keys that tell cells apart, those of tuned options last

    @property
    def every_cell(self) -> tuple[Cell, ...]:
        """All cells but those whose values are not chosen yet."""
        return (*self.cells, *(cell for tuning in self.tunings for cell in tuning.trials))

    @property
    def size(self) -> int:
        """Number of trainings of the grid."""
        return len(self.every_cell) + len(self.tunings) * len(self.seeds)

    @property
    def done(self) -> int:
        """Number of cells and trials that had ended before this call."""
        return sum((cell.exp / Results.FILE).exists() for cell in self.every_cell)

    @property
    @abstractmethod
    def source(self) -> dict[str, Any]:
        """Facts common to all trainings, for files for machines: `recipe`, `runtime`, `minibatch`."""

    @property
    @abstractmethod
    def about_minibatch(self) -> str:
        """Text on the sizes of minibatches: shared by learners, or for each."""

    @abstractmethod
    def cell(self, configuration: Configuration, seed: int) -> Cell:
        """Return the training of a configuration under a seed."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """The function that makes the work on one cell."""
