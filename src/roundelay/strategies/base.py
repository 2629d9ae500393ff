"""What a strategy is: who talks to whom, when, and by which equation. Nothing else."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.errors import UserError
from roundelay.core.state import Me


@dataclass(frozen=True)
class Traits:
    """What a strategy declares of itself; the laws under tests/laws hold it to every line."""

    synchronous: bool
    """Draws by (round, rank); the result does not depend on timing, and simulator and processes agree bit for bit."""
    conserves: bool
    """With learning rate 0 the sum of all rows stays what it was."""
    staleness_bound: int | None
    """Largest number of versions between reading a row and applying the gradient taken there; None: no bound."""
    waits: str
    """Who waits for whom, in words."""


class Strategy(ABC):
    """A frozen dataclass that is its own configuration. One coroutine per learner and segment."""

    name: ClassVar[str]
    traits: ClassVar[Traits]
    memory: ClassVar[tuple[str, ...]] = ()
    """Vectors (P,) a learner keeps for this strategy, by name: in `me.memory`, zero at the start, in every
    checkpoint."""

    @abstractmethod
    async def learn(self, me: Me) -> None:
        """Train until `Draw` answers None; leave nothing in flight."""

    @property
    def label(self) -> str:
        """Name and the options people tell runs apart by."""
        return self.name

    @property
    def block(self) -> int:
        """Rounds an interrupted segment ends at a multiple of, so that stopping and going on changes nothing."""
        return 1

    def check(self, learners: int) -> None:
        """Raise UserError if this strategy cannot run with so many learners."""
        if learners < 1:
            raise UserError(f"learners is {learners}: at least one is needed.")
