"""The words of bells in shared memory (memory/bell.py)."""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.views.view import Integers, View, table


@dataclass(frozen=True)
class BellTable(View):
    """In the arena of a host that trains with other hosts. A number goes up with every ring; one of two at the same
    moment may be lost, and both are heard."""

    PUBLISHED = ("means", "session")

    means: Integers = table(1)  # Rung by learners, and by threads that take means with other hosts, for each other
    session: Integers = table(1)  # Attached learners ring for the process that speaks to other hosts
