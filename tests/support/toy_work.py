"""Work of the worker processes of tests; a module of its own because workers import it by name."""

import os

from roundelay.core.errors import UserError

_GIVEN: list[str] = []


def begin(word: str) -> None:
    _GIVEN.append(word)


def work(number: int) -> tuple[int, str, str | None]:
    return number, _GIVEN[0], os.environ.get("OPENBLAS_NUM_THREADS")


def die(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


def fail(_: int) -> int:
    raise UserError("u7: broken")


def refuse() -> None:
    raise ValueError("cannot begin")
