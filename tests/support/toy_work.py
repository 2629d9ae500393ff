"""Work of the worker processes of tests; a module of its own because workers import it by name."""

import os

from roundelay.core.errors import UserError


def begin(word: str) -> str:
    return word


def work(word: str, number: int) -> tuple[int, str, str | None]:
    return number, word, os.environ.get("OPENBLAS_NUM_THREADS")


def die(_: str, number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


def fail(*_: object) -> int:
    raise UserError("u7: broken")


def refuse() -> None:
    raise ValueError("cannot begin")
