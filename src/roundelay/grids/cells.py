"""Cells of a grid: a configuration under a seed, the run directory it has, and the work it is."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.progress import Progress
from roundelay.job import Interrupt
from roundelay.reports.series import configuration_name
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

Values = tuple[tuple[str, Any], ...]
"""A value for each of some axes: key and value. None where an axis means nothing to the strategy."""


@dataclass(frozen=True)
class Configuration:
    """Everything of a training but its seed: a row of the table."""

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
        """Name of its configuration and seed."""
        return f"{self.configuration.whole_name}, seed {self.seed}"


class CellWork(ABC):
    """Work of one cell. `trained` and `new`, what was not there already, say how far it came, also after an error."""

    trained = new = False

    @abstractmethod
    def go(self) -> bool:
        """Train it, or read what is there; True when nothing is left to do, False if interrupted."""


Work = Callable[[Cell, bool, Progress, Interrupt], CellWork]
"""Work of a cell: (cell, whether it is decoded, progress, the wish to stop)."""


def stem(strategy: Strategy, learners: int, stragglers: tuple[str, ...], apart: Mapping[str, Any]) -> str:
    """Return the name of a cell's directories but for the seed; `apart` are values of axes that its recipe does not
    have."""
    parts = [f"{directory_label(strategy)}-{learners}" + "-straggler" * bool(stragglers)]
    parts += [_sanitised(f"{key} {shown(value)}") for key, value in apart.items()]
    return "-".join(parts)


def shown(value: object) -> str:
    """Return a value of an axis, for people."""
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def directory_label(strategy: Strategy) -> str:
    """Return a strategy's label as part of a file name, followed by options it was given that the label does not name.

    It depends on the strategy alone, not on what else is compared, so that a directory is found again.
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
