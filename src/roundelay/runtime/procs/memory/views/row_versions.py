"""Versions of rows, and rows that take part in an exchange with another host."""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.views.view import Integers, R, View, table


@dataclass(frozen=True)
class RowVersions(View):
    """Both are written and read through `Row`, under the row's lock; the parent writes them between segments, and, for
    rows that only mirror those of another host, while nobody here looks at them."""

    versions: Integers = table(R)  # Half mutations of each row: odd while one is under way
    in_flight: Integers = table(R)
    """Number of the exchange with another host that the row takes part in just now; 0: none."""
