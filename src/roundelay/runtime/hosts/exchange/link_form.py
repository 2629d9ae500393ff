"""The form in which a row travels over a link, chosen by what the link bears.

A mean with a row that was sent long ago mixes little: what both learners have done meanwhile is not in it. So an
exchange is to be short. A row that takes longer than `SHORT` seconds travels in as many fragments as make each exchange
take about so long; one that takes longer than `LONG` seconds travels by the smaller codec, so that each part of it is
mixed again soon (docs/exchanges.md).

Seconds are those from the request to the change of the asker's row: what other learners, other traffic and busy cores
make of a link counts as the link.
"""

from collections.abc import Callable
from typing import Final, final

from roundelay.core.codec import Codec
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.exchange.row_format import Fragment, RowFormat
from roundelay.runtime.hosts.options import AUTO

SHORT: Final = 0.1
"""Seconds that an exchange may take before a row is cut."""
LONG: Final = 0.5
"""Seconds that a row may take, in all its fragments, by the larger codec."""
NEWEST: Final = 0.5
"""Weight of the last exchange in the seconds that a row takes."""
USUAL, SMALLER = "bf16", "int8"


@final
class LinkForm:
    """Form of rows in the exchanges of one learner with the learners of one other host.

    Args:
        row_format: as the run says it.
        parameters: of the row.
    """

    def __init__(self, row_format: RowFormat, parameters: int) -> None:
        self._cuts, self._codes = row_format.fragments == AUTO, row_format.wire == AUTO
        self._wire = USUAL if row_format.wire == AUTO else row_format.wire
        self._fragments = 1 if row_format.fragments == AUTO else row_format.fragments
        self._parameters, self._turn, self._seconds = parameters, 0, 0.0

    def next(self) -> tuple[Fragment, Codec]:
        """Return the fragment that travels next, and the codec by which it does."""
        form = RowFormat(self._wire, self._fragments)
        return form.fragment(self._parameters, self._turn), form.codec

    def said(self) -> str:
        """Return the form in words, with the seconds that an exchange takes lately."""
        parts = "whole" if self._fragments == 1 else f"in {self._fragments} parts"
        took = f", {self._seconds / self._fragments:.2g} s an exchange" if self._seconds else ""
        return f"{self._wire}, {parts}{took}"

    def took(self, seconds: float) -> None:
        """Note that the exchange of the fragment that was next has been made, and took so long."""
        self._turn += 1
        seconds *= self._fragments  # of the whole row
        self._seconds += (NEWEST if self._seconds else 1.0) * (seconds - self._seconds)
        if self._codes and self._wire == USUAL and self._seconds > LONG:
            self._wire, self._seconds = SMALLER, self._seconds / 2
        elif self._codes and self._wire == SMALLER and self._seconds < LONG / 4:
            self._wire, self._seconds = USUAL, self._seconds * 2
        if self._cuts:
            most = max(1, self._parameters // CHUNK)
            while self._seconds > SHORT * self._fragments and 2 * self._fragments <= most:
                self._fragments *= 2
            if self._seconds < SHORT * self._fragments / 4 and self._fragments > 1:
                self._fragments //= 2


SETTLED: Final = 60
"""Exchanges after which a form has settled on a link that stays as it is."""


def settled(row_format: RowFormat, parameters: int, seconds_of: Callable[[int], float]) -> LinkForm:
    """Return the form that rows of so many parameters come to have on a link.

    Args:
        seconds_of: an exchange in which so many bytes go each way.
    """
    form = LinkForm(row_format, parameters)
    for _ in range(SETTLED):
        fragment, codec = form.next()
        form.took(seconds_of(codec.bytes_of(fragment.size)))
    return form
