"""Wishes of a request in fields of a form or of an address: alternatives, words to favour, the end of an utterance.

`nbest`             so many alternatives of each segment and word
`favour`, `prompt`  words that become likelier, parted by blanks or commas
`bonus`             by so many nats
`pause`, `longest`  seconds: a silence that ends an utterance, and its greatest length
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, final

from roundelay_speech.decode.wishes import MOST_BONUS, MOST_STRINGS, USUAL_BONUS, words_of
from roundelay_speech.transcription.serving.limits import Refused

FIELDS = ("nbest", "favour", "prompt", "bonus", "pause", "longest")
MOST_CHARACTERS = 10_000
"""Characters of all words to favour."""
_PAUSE, _LONGEST = (0.1, 10.0), (1.0, 60.0)


@final
@dataclass(frozen=True)
class RequestFields:
    """Wishes of a request.

    Attributes:
        pause, longest: options of `Cutting`, in seconds; None: the server's.
    """

    strings: int  # how many alternatives
    favoured: tuple[str, ...]  # words, as they were written
    bonus: float  # of each of these, in nats
    pause: float | None
    longest: float | None


def wanted(fields: Mapping[str, str]) -> RequestFields:
    """Return what the fields want; empty ones want nothing.

    Raises:
        Refused: one of them says something else, or too much.
    """
    given = {name: fields[name].strip() for name in FIELDS if fields.get(name, "").strip()}
    favoured = " ".join(given[name] for name in ("favour", "prompt") if name in given)
    if len(favoured) > MOST_CHARACTERS:
        raise _refused(f"favour, prompt: {len(favoured):,} characters; {MOST_CHARACTERS:,} are the most.")
    strings = _number(given, "nbest", (0, MOST_STRINGS)) or 0.0
    if strings != int(strings):
        raise _refused(f"nbest {given['nbest'][:40]!r}: give a whole number.")
    return RequestFields(
        int(strings),
        tuple(words_of(favoured)),
        USUAL_BONUS if (bonus := _number(given, "bonus", (0.0, MOST_BONUS))) is None else bonus,
        _number(given, "pause", _PAUSE),
        _number(given, "longest", _LONGEST),
    )


def named(unknown: list[str]) -> dict[str, Any]:
    """Return words that cannot be favoured, as an answer names them; nothing, if there are none."""
    return {"unknown_words": unknown} if unknown else {}


def _number(given: Mapping[str, str], name: str, bounds: tuple[float, float]) -> float | None:
    if name not in given:
        return None
    try:
        value = float(given[name])
    except ValueError:
        value = math.nan
    if not bounds[0] <= value <= bounds[1]:
        raise _refused(f"{name} {given[name][:40]!r}: give {bounds[0]:g} to {bounds[1]:g}.")
    return value


def _refused(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, why)
