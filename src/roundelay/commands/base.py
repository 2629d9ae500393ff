"""Parts shared by the files of commands."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from roundelay.commands import arguments
from roundelay.core import folders

DEFAULT_LEARNERS = 4
_TYPES = ("count", "whole", "positive", "non_negative", "share", "counts", "positives", "slowdown", "straggler")
TYPES: Mapping[str, Callable[[str], Any]] = {"path": Path, **{name: getattr(arguments, name) for name in _TYPES}}
CHECKS: Mapping[str, Callable[[Any], None]] = {
    "is-run": folders.check_run,
    "is-packed": folders.check_packed,
    "is-there": folders.check_there,
}

_SHORT: Mapping[str, Mapping[str, Any]] = {
    "!": {"required": True},
    "...": {"action": "append"},
    "++": {"action": "extend", "nargs": "+"},
    **{mark: {"nargs": mark} for mark in "+*?"},
}


class Command(Protocol):
    """Adds a command to the command line."""

    def __call__(self, name: str, run: object, text: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
        """Add a command: `run` is called with the parsed options and returns the exit status, or None for 0; `text`
        says what it does; `examples` are lines for its help (those of this package stand in examples.py). The command's
        options are added to the parser that is returned."""


def add_described(command: Command, run: object, text: str, **named: Any) -> argparse.ArgumentParser:
    """Add a command as a text describes it: `NAME: what it does`, its arguments, and examples, `$ roundelay NAME ...`.

        --data DIR <path> <is-there> ! | recordings with their words; a longer help goes on
            in deeper lines
        --epochs <count> =10 | through the speech

    Behind an argument's names (with commas between) stand, in any order, the name of its value in the help; in angle
    brackets types and checks, of `TYPES`, `CHECKS` or `named`; choices, `{a,b}`; its default, which the help gets too
    where it is a sentence's end; `!`: it must be given; `+`, `*`, `?` or a number: the number of its words; `...`: it
    may be repeated; `++`: both; `->NAME`: its name among the parsed. An option with none of these is a flag. `@NAME`
    stands for a text of `named`.

    Args:
        named: types, checks, choices and texts of this command alone.
    """
    whole = re.sub(r"@(\w+)", lambda found: named[found[1]], text.strip())
    lines = re.sub(r"\n +", " ", whole).splitlines()
    examples = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    name, _, about = lines[0].partition(": ")
    sub = command(name, run, about, examples)
    for line in lines[1 : len(lines) - len(examples)]:
        form, _, explained = line.partition(" | ")
        names, *marks = form.split()
        found: dict[str, Any] = {"help": explained}
        for mark in marks:
            found |= _meaning(mark, named)
        if names.startswith("-") and not marks:
            found["action"] = "store_true"
        elif found.get("nargs") == "*" or (names.startswith("-") and ("+" in marks or "++" in marks or "..." in marks)):
            found.setdefault("default", [])
        if isinstance(default := found.get("default"), str):
            found["help"] += f" (default: {default})" if default and "(default:" not in explained else ""
            make = found.get("type", str)
            make = arguments.whole if make is arguments.count else make  # 0 may be a default
            found["default"] = list(map(make, default.split(","))) if found.get("nargs") else make(default)
        sub.add_argument(*names.split(","), **found)
    return sub


def _meaning(mark: str, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of argparse that a mark behind an argument's names stands for."""
    known = mark[1:-1]
    found: Mapping[str, Any] = {"metavar": mark}
    if mark == "<yes-no>":
        found = {"action": argparse.BooleanOptionalAction}
    elif mark.startswith("<is-"):
        found = {"check": named.get(known.replace("-", "_")) or CHECKS[known]}
    elif mark[0] == "<":
        found = {"type": named.get(known) or TYPES[known]}
    elif mark[0] == "{":
        found = {"choices": named.get(known) or known.split(",")}
    elif mark[0] == "=":
        found = {"default": mark[1:]}
    elif mark.startswith("->"):
        found = {"dest": mark[2:]}
    elif mark in _SHORT:
        found = _SHORT[mark]
    elif mark.isdigit():
        found = {"nargs": int(mark)}
    return found
