"""Everything wrong of one kind, told at once: the user mends a corpus in one sitting instead of one run per fault."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BadPolicy = Literal["error", "skip"]

PROBLEMS_SHOWN, NAMES_SHOWN = 20, 8


@dataclass(frozen=True)
class LeftOut:
    """An utterance that was left out, and why."""

    id: str
    reason: str


class Unusable(Exception):
    """Raised if audio or an utterance cannot be used; the message lacks its name, which the caller adds."""


def listing(problems: Sequence[str], shown: int = PROBLEMS_SHOWN) -> str:
    """Return the first `shown` problems, one a line and indented, and the number of the others."""
    lines = [f"  {one}" for one in problems[:shown]]
    if len(problems) > shown:
        lines.append(f"  ... and {len(problems) - shown} more")
    return "\n".join(lines)


def named(names: Sequence[str], shown: int = NAMES_SHOWN) -> str:
    """Return the first `shown` names with commas, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 utterance`, `3 utterances`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
