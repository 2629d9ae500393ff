"""Tables in which learners say which saves they have.

Legend: L learners.
"""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.tables import Integers, L, View, table


@dataclass(frozen=True)
class SaveTables(View):
    """A learner writes its own items before it comes to a meeting, and the others read them in the meeting."""

    whole: Integers = table(L)  # Number of the newest save that a learner has whole; 0: none
    last: Integers = table(L)  # The highest number of a save, whole or not, that it knows
