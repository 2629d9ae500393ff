"""Work that a learner does between two steps, beside its training."""

from abc import ABC, abstractmethod


class BetweenSteps(ABC):
    """Work of one learner between two steps. Both methods take next to no time, for the loop waits."""

    @abstractmethod
    def look(self) -> None:
        """Look for changes: called in every step, and again and again while the learner waits for others."""

    @abstractmethod
    def close(self, manner: int) -> None:
        """Note that the learner has left the session, in one of the manners of membership.py."""
