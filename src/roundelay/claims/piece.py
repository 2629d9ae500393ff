"""Rows of an experiment: one still to be worked out, and all that were found."""

from collections.abc import Callable
from dataclasses import dataclass

from roundelay.claims.experiment import Row
from roundelay.core.progress import Progress

Work = Callable[[Progress], Row]
"""Works a row's columns out."""


@dataclass(frozen=True)
class Piece:
    """`key` are the row's keys and seed, plain values."""

    key: Row
    work: Work


@dataclass(frozen=True)
class Found:
    """Table of an experiment and the seconds it took; `tuning` has rows by which values were chosen."""

    rows: list[Row]
    tuning: list[Row]
    seconds: float
