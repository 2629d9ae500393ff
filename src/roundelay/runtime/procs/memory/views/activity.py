"""The effect that each learner is in, for people who ask why nothing moves."""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.views.view import Integers, L, View, table


@dataclass(frozen=True)
class Activity(View):
    """Each learner writes its own column; nobody acts on it, so its three numbers need not fit each other."""

    doing: Integers = table(3, L)
    """The effect a learner is in, the peer it is about or -1, and since when (milliseconds of this host)."""
