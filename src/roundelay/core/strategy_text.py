"""Strategies as they are written: NAME[:TOPOLOGY][,KEY=VALUE...]; and whether such a name and such options exist.

Needs neither strategies nor torch, so that a slip of the keyboard is named before anything is loaded.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import parse_yaml


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question ` Did you mean X?` for the nearest of the `known` words; "" if none is near."""
    near = difflib.get_close_matches(word, [*known], 1)
    return f" Did you mean {near[0]}?" if near else ""


def check_choice(
    name: str, given: Iterable[str], known: Collection[str], options_of_it: Callable[[], Sequence[str]]
) -> None:
    """Check a strategy's name and the names of its options against the strategies there are.

    Args:
        known: names of all strategies.
        options_of_it: called for the names of the strategy's options.

    Raises:
        UserError: no such strategy, or it has no such option; names the nearest, and lists all.
    """
    if name not in known:
        raise UserError(f"there is no strategy {name!r}: choose one of {', '.join(known)}.{did_you_mean(name, known)}")
    options = options_of_it()
    if unknown := sorted(set(given) - set(options)):
        there = f"it has {', '.join(options)}.{did_you_mean(unknown[0], options)}" if options else "it has none."
        raise UserError(f"strategy {name} has no option {', '.join(unknown)}: {there}")


def parse_strategy(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a strategy written in one word: NAME, NAME:TOPOLOGY, NAME,KEY=VALUE,..., or both.

    `bmuf,period=20,nesterov=true` is ("bmuf", {"period": 20, "nesterov": True}); values are YAML, so a list may hold
    commas. `check_choice` checks whether the strategy and its options exist.

    Raises:
        UserError: no name, an option without a value or given twice; shows how to write a strategy.
    """
    head, *assignments = split_outside_brackets(text)
    name, colon, topology = head.partition(":")
    how = f"strategy {text!r}: write NAME, NAME:TOPOLOGY or NAME,KEY=VALUE, for example bmuf,period=20,nesterov=true"
    if not name or (colon and not topology):
        raise UserError(f"{how}.")
    options: dict[str, Any] = {"topology": topology} if topology else {}
    for assignment in assignments:
        key, _, value = (part.strip() for part in assignment.partition("="))
        if not key or not value:
            raise UserError(f"{how}; {assignment!r} is not KEY=VALUE.")
        if key in options:
            raise UserError(f"{how}; {key} is given twice.")
        try:
            options[key] = parse_yaml(value)
        except ValueError:
            raise UserError(f"{how}; {value!r} is not a value.") from None
    return name, options


def split_outside_brackets(text: str) -> list[str]:
    """Split `text` at commas outside [...], {...} and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts
