"""Checks of what other hosts say, before anything is done with it.

A message that fails one of them is its host's last (heartbeat.py). Whatever is written because of a message is checked
as a whole first: half of a message must not be counted when its host is lost.

Each function returns what it is given, or raises `InvalidMessage`.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

BOUND = 1 << 53
"""Whole numbers that hosts tell each other are smaller, either sign: any reader of JSON has them exactly."""
TEXT = 1 << 14
"""Characters of a text for people that are kept."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class InvalidMessage(ValueError):
    """A message that no host of ours sends; says what is wrong with it."""


def whole(value: Any, low: int = 0, stop: int = BOUND) -> int:
    """A whole number from `low` up to, not including, `stop`."""
    if type(value) is not int or not low <= value < stop:
        raise InvalidMessage(f"{_short(value)} is no whole number from {low} to {stop - 1}")
    return value


def wholes(value: Any, count: int | None = None, low: int = 0, stop: int = BOUND) -> list[int]:
    """A list of whole numbers, `count` of them."""
    return [whole(one, low, stop) for one in listed(value, count)]


def listed(value: Any, count: int | None = None) -> list[Any]:
    """A list, of `count` things."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise InvalidMessage(f"{_short(value)} is no list" + (f" of {count}" if count is not None else ""))
    return value


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise InvalidMessage(f"{_short(value)} is no object")
    return value


def seconds(value: Any) -> float:
    """A finite time."""
    if type(value) not in (int, float) or not 0 <= value < BOUND:
        raise InvalidMessage(f"{_short(value)} are no seconds")
    return float(value)


def text(value: Any) -> str:
    """A text for people: without what would make a terminal do something, and not longer than TEXT."""
    if not isinstance(value, str):
        raise InvalidMessage(f"{_short(value)} is no text")
    return _CONTROLS.sub("?", value[:TEXT])


def address(value: Any) -> tuple[str, int]:
    """The address a host listens at."""
    host, port = listed(value, 2)
    return text(host), whole(port, stop=1 << 16)


def table(value: Any, like: NDArray[Any]) -> NDArray[Any]:
    """An array of the shape and type of `like`, from nested lists; whole numbers are below BOUND."""
    try:
        found = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"{_short(value)} are no numbers of shape {like.shape}") from error
    if found.shape != like.shape:
        raise InvalidMessage(f"numbers of shape {found.shape}, where {like.shape} is due")
    if found.size and found.dtype.kind not in ("if" if like.dtype.kind == "f" else "i"):
        raise InvalidMessage(f"{_short(value)} are no numbers of type {like.dtype}")
    if like.dtype.kind == "i" and found.size and not (found.min() > -BOUND and found.max() < BOUND):
        raise InvalidMessage(f"{_short(value)}: not all numbers are below {BOUND}")
    return found.astype(like.dtype)


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
