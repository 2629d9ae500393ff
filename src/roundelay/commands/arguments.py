"""Values of options: what each must be, said in the words of whoever typed it. Every number of every command is one of
these, so that none takes 0, -1 or nan where it means nothing.

    sub.add_argument("--learners", type=count, ...)
"""

import argparse
import math
import re
from typing import Any

from roundelay.core.errors import UserError


def add_overrides(sub: argparse.ArgumentParser, example: str) -> None:
    """Add `overrides`: values that take the place of a recipe's, behind it or behind --set."""
    sub.add_argument(
        "--set",
        dest="overrides",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="the same as KEY=VALUE without --set",
    )
    sub.add_argument("overrides", nargs="*", default=[], help=f"section.key=value, for example {example}")


def picked(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of these options, by name."""
    return {name: getattr(options, name) for name in names}


def count(text: str) -> int:
    """Return a whole number of 1 or more."""
    return _whole(text, 1, "a whole number of 1 or more")


def whole(text: str) -> int:
    """Return a whole number of 0 or more."""
    return _whole(text, 0, "a whole number of 0 or more")


def positive(text: str) -> float:
    """Return a number above 0; not infinity."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise _refused(text, "a number above 0")
    return value


def non_negative(text: str) -> float:
    """Return a number of 0 or more; not infinity."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise _refused(text, "a number of 0 or more")
    return value


def share(text: str) -> float:
    """Return a number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise _refused(text, "a share, from 0 to 1")
    return value


def counts(text: str) -> str:
    """Return whole numbers of 1 or more with commas, as `1,4`; the text itself."""
    for part in text.split(","):
        _whole(part.strip(), 1, "whole numbers of 1 or more with commas, for example 1,4", whole_text=text)
    return text


def positives(text: str) -> list[float]:
    """Return numbers above 0 with commas, as `0.01,0.02`."""
    values = [_number(part) for part in text.split(",")]
    if not all(0 < value < math.inf for value in values):
        raise _refused(text, "numbers above 0 with commas, for example 0.01,0.02")
    return values


def slowdown(text: str) -> float:
    """Return a factor above 1; not infinity."""
    value = _number(text)
    if not 1 < value < math.inf:
        raise _refused(text, "a factor above 1, for example 3")
    return value


def parse_learners(text: str, option: str = "--learners") -> list[int]:
    """Return the numbers of learners: `1,4` is one and four.

    Raises:
        UserError: anything but whole numbers with commas.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: write numbers with commas, for example 1,4.") from None


_STRAGGLER = re.compile(r"(\d+):(?:(?P<factor>[\d.eE]+)x|\+(?P<seconds>[\d.eE+-]+)s?)")


def straggler(text: str) -> str:
    """Check `1:3x` (learner 1 takes three times as long) or `1:+0.4` (0.4 s more for every gradient); return the text
    itself."""
    found = _STRAGGLER.fullmatch(text)
    factor, seconds = (_number(found[name] or "1") if found else math.nan for name in ("factor", "seconds"))
    if not (1 <= factor < math.inf and 0 <= seconds < math.inf):
        raise _refused(text, "RANK:FACTORx, with a factor of 1 or more, or RANK:+SECONDS, for example 1:3x or 1:+0.4")
    return text


def _whole(text: str, least: int, wanted: str, whole_text: str | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise _refused(text if whole_text is None else whole_text, wanted)
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _refused(text: str, wanted: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
