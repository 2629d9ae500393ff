"""Learners that take part."""

from collections.abc import Sequence
from dataclasses import dataclass

from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views.view import Integers, L, View, table


@dataclass(frozen=True)
class Liveness(View):
    """Read by everybody, without a lock, so it is published: whoever sees that a learner lives sees its row complete,
    and whoever sees that one is dead sees all that it did before.

    The parent writes it. Where no parent watches, a learner writes its own item when it enters and leaves, and whoever
    first notices a death writes that of the dead, under the queue lock.
    """

    PUBLISHED = ("alive",)

    alive: Integers = table(L)  # 1: takes part; 0: not yet, or no more

    def mark(self, ranks: Sequence[int], alive: bool | Sequence[int]) -> None:
        """Say of `ranks` that they live, or do not."""
        publish(self.alive, list(ranks), alive)
