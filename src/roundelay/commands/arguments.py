"""Values of options: the condition on each, said in the user's words. Every number of every command is one of
these, so that none takes 0, -1 or nan where it means nothing.

    sub.add_argument("--learners", type=count, ...)
"""

import argparse
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from roundelay.core.bounds import Count, NonNegative, Positive, Share, Whole, wanted
from roundelay.core.errors import UserError


def picked(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of these options, by name."""
    return {name: getattr(options, name) for name in names}


def _within(kind: Any, text: str) -> Any:
    """Return the number that `text` writes, checked against the bounds of the type `kind` (core/bounds.py)."""
    value = _number(text, get_args(kind)[0])
    if words := wanted(kind, value):
        raise _refused(text, words)
    return value


count = partial(_within, Count)
whole = partial(_within, Whole)
positive = partial(_within, Positive)
non_negative = partial(_within, NonNegative)
share = partial(_within, Share)


def counts(text: str) -> str:
    """Check that `text` is whole numbers of 1 or more with commas, as `1,4`; return it unchanged."""
    if any(wanted(Count, _number(part.strip(), int)) for part in text.split(",")):
        raise _refused(text, "whole numbers of 1 or more with commas, for example 1,4")
    return text


def positives(text: str) -> list[float]:
    """Parse numbers above 0 with commas, as `0.01,0.02`."""
    values = [_number(part) for part in text.split(",")]
    if not all(0 < value < math.inf for value in values):
        raise _refused(text, "numbers above 0 with commas, for example 0.01,0.02")
    return values


def slowdown(text: str) -> float:
    """Parse a factor above 1 and below infinity."""
    value = _number(text)
    if not 1 < value < math.inf:
        raise _refused(text, "a factor above 1, for example 3")
    return value


def parse_learners(text: str, option: str = "--learners") -> list[int]:
    """Parse numbers of learners with commas: `1,4` is one and four.

    Raises:
        UserError: `text` is anything but whole numbers with commas; names `option`.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: write numbers with commas, for example 1,4.") from None


_STRAGGLER = re.compile(r"(\d+):(?:(?P<factor>[\d.eE]+)x|\+(?P<seconds>[\d.eE+-]+)s?)")


def straggler(text: str) -> str:
    """Check a straggler, `1:3x` (learner 1 takes three times as long) or `1:+0.4` (0.4 s more for every gradient);
    return the text unchanged."""
    found = _STRAGGLER.fullmatch(text)
    factor, seconds = (_number(found[name] or "1") if found else math.nan for name in ("factor", "seconds"))
    if not (1 <= factor < math.inf and 0 <= seconds < math.inf):
        raise _refused(text, "RANK:FACTORx, with a factor of 1 or more, or RANK:+SECONDS, for example 1:3x or 1:+0.4")
    return text


def _number(text: str, kind: Callable[[str], float] = float) -> float:
    try:
        return kind(text)
    except ValueError:
        return math.nan


def _refused(text: str, wanted: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
