"""Trainings among which scaling chooses and judges."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from roundelay.grids.grid import Cell, Configuration, Tuning, Work
from roundelay.runtime.hosts.control.turns import FirstHost
from roundelay.runtime.launch.world import HostPlace

RATE, RATE_OF_SCRIPTS = "schedule.learning_rate", "rate"
"""The learning rate, which is tuned: the option of a recipe, and its name for a script."""


@dataclass(frozen=True, kw_only=True)
class Trials(ABC):
    """Trainings of one recipe or script, with one kind of seconds, real or virtual."""

    name: str  # of the source
    data: str  # what is trained on; a corpus of a recipe
    folder: Path
    rates: tuple[float, ...]  # that are tried first
    seeds: tuple[int, ...]  # that judge
    about: str  # the minibatch, in words
    virtual: bool = False  # the seconds are
    decoded: str = ""  # the split whose word errors count; empty: nothing is decoded
    # says to other hosts what is trained, where learners are on several; None: all are on this one.
    first: FirstHost | None = None

    @abstractmethod
    def tunings(self, rates: Sequence[float]) -> tuple[Tuning, ...]:
        """Return a tuning for each way to train, with a trial at each of `rates`; one learner alone comes first."""

    @abstractmethod
    def cell(self, configuration: Configuration, seed: int) -> Cell:
        """Return the training of a configuration under a seed."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """The function that makes the work on one cell."""

    @abstractmethod
    def take_part(self, cell: Cell, place: HostPlace, asked: Callable[[], bool]) -> None:
        """Do this host's part of a training that the first host leads.

        Args:
            asked: returns True if the training is to stop.

        Raises:
            UserError: this host cannot do its part, or failed in it; says why.
        """

    @abstractmethod
    def check(self) -> None:
        """Check before the first training that everything needed is there.

        Raises:
            UserError: something is missing; names it.
        """

    @property
    def size(self) -> int:
        """Number of trainings, if no best rate is at an edge."""
        return len(self.tunings(self.rates)) * (len(self.rates) + len(self.seeds))


def turn_of(first: FirstHost | None, cell: Cell) -> AbstractContextManager[HostPlace | None]:
    """Return a context around the training of a cell. It provides this host's place, if the learners of all hosts take
    part, else None."""
    what = cell.configuration
    if first is None or what.learners != first.place.learners:
        return nullcontext()
    rate = next(value for key, value in what.axes if key in (RATE, RATE_OF_SCRIPTS))
    return first.turn(what.stem, float(rate), cell.seed)
