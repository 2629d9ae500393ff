"""One row of an experiment, still to be worked out."""

from collections.abc import Callable
from dataclasses import dataclass

from roundelay.claims.experiment import Row
from roundelay.core.progress import Progress

Work = Callable[[Progress], Row | None]
"""Works a row's columns out; None if it was interrupted."""


@dataclass(frozen=True)
class Piece:
    """`key` are the row's keys and seed, plain values."""

    key: Row
    work: Work
