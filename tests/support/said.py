"""Words that a user would be told: of progress, and of a mistake."""

from collections.abc import Callable
from typing import ParamSpec

import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent

_P = ParamSpec("_P")


def refusal(call: Callable[_P, object], *arguments: _P.args, **named: _P.kwargs) -> str:
    """Make a call that is refused as a mistake of the user; return the words of the error."""
    with pytest.raises(UserError) as error:
        call(*arguments, **named)
    return str(error.value)


class Said(Silent):
    """Progress that keeps the names of work that begins, and the notes beside it, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, what: str, total: int | None = None) -> None:
        self.lines.append(what)

    def advance(self, n: int = 1, note: str = "") -> None:
        self.lines += [note] if note else []
