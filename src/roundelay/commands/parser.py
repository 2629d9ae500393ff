"""Parsers of the command line: slips of the keyboard are named first, before anything that may be missing."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from roundelay.core.errors import UserError
from roundelay.core.strategy_text import did_you_mean


class Parser(argparse.ArgumentParser):
    """The parser of a command and its options. Its errors are `UserError`s, printed as all others, with exit
    status 2."""

    def __init__(self, **options: Any) -> None:
        self.options: list[argparse.Action] = []
        self.checks: list[tuple[str, Callable[[Any], None]]] = []
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        check = options.pop("check", None)
        action = super().add_argument(*names, **options)
        self.options.append(action)
        if check is not None:
            self.checks.append((action.dest, check))
        return action

    def check_values(self, options: argparse.Namespace) -> None:
        """Check the values of options with a `check`, before the command loads anything large.

        Raises:
            UserError: a value is refused by its check.
        """
        for name, check in self.checks:
            given = getattr(options, name)
            for value in given if isinstance(given, list) else [] if given is None else [given]:
                check(value)

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("roundelay").strip()
        sentence = message if message.endswith((".", "?")) else f"{message}."
        if wrong := re.search(r"invalid choice: '([^']*)'", message):
            choices = [str(choice) for action in self.options for choice in action.choices or ()]
            sentence += did_you_mean(wrong[1], [choice for choice in choices if choice in message])
        raise UserError(f"{command}: {sentence} See `roundelay help {command}`." if command else sentence)

    def check_names(self, words: Sequence[str]) -> None:
        """Check that the command has all options among `words`.

        Raises:
            UserError: it lacks one; names the nearest that it has.
        """
        known = {name: action for action in self.options for name in action.option_strings}
        # Words behind the first argument of a command that takes a command are not ours.
        hands_on = any(action.nargs == argparse.REMAINDER for action in self.options)
        value_follows = False
        for word in words:
            if not _is_option(word):
                if word == "--" or (hands_on and not value_follows):
                    return
                value_follows = False
                continue
            name = word.partition("=")[0]
            action = known.get(name)
            value_follows = action is not None and action.nargs is None and "=" not in word
            shortened = name.startswith("--") and any(other.startswith(name) for other in known)
            together = not name.startswith("--") and name[:2] in known  # -n4
            if not (action or shortened or together):
                self.error(f"there is no option {name}.{did_you_mean(name, known)}")


def _is_option(word: str) -> bool:
    """Return True if argparse takes the text for an option: it begins with a hyphen, and is neither a number, nor text
    with a blank, nor a hyphen alone."""
    if not word.startswith("-") or word in ("-", "--") or " " in word:
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False
