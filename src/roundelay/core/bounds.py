"""Bounds of numbers, said in the type of an option: `period: Count = 20`. Recipes, strategies, the command line and
`roundelay list` read them there.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, final, get_args, get_origin

from roundelay.core.errors import UserError


@final
@dataclass(frozen=True)
class Bounds:
    """The range of numbers that an option may have: never nan, and infinity only if `below` does not exclude it."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def allow(self, value: float) -> bool:
        """Return True if `value` is within the bounds."""
        return (
            not math.isnan(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def words(self, kind: type) -> str:
        """Return the bounds in words, for numbers of type `kind`: "whole number of 1 or more"."""
        lower = f"above {self.above:g}" if self.least is None else f"from {self.least:g}"
        if self.most is not None:
            inside = f"{lower} {'to' if self.above is None else 'and up to'} {self.most:g}"
        elif self.below not in (None, math.inf):
            inside = f"{lower} to below {self.below:g}"
        else:
            inside = lower if self.least is None else f"of {self.least:g} or more"
        return f"{'whole number' if kind is int else 'number'} {inside}"


Count = Annotated[int, Bounds(least=1)]
Whole = Annotated[int, Bounds(least=0)]
Positive = Annotated[float, Bounds(above=0, below=math.inf)]
NonNegative = Annotated[float, Bounds(least=0, below=math.inf)]
Share = Annotated[float, Bounds(least=0, most=1)]
ShareBelowOne = Annotated[float, Bounds(least=0, below=1)]
ShareAboveZero = Annotated[float, Bounds(above=0, most=1)]


def bounds_of(hint: Any) -> Bounds | None:
    """Return the bounds in the type `hint`; None if it has none."""
    said = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((one for one in said if isinstance(one, Bounds)), None)


def wanted(hint: Any, value: float) -> str:
    """Return the numbers that the type `hint` allows, in words, if `value` is not one of them; else ""."""
    bounds = bounds_of(hint)
    return "" if bounds is None or bounds.allow(value) else f"a {bounds.words(get_args(hint)[0])}"


def check_number(hint: Any, value: Any, where: str) -> None:
    """Check the number `value` against the bounds in the type `hint`.

    Raises:
        UserError: `value` is outside; the message begins with `where`.
    """
    if words := wanted(hint, value):
        raise UserError(f"{where} is {value}: give {words}.")
