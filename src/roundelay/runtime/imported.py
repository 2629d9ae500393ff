"""Scripts that start learners, and what they must have.

A learner process imports the script that started it, under another name than `__main__`, so that it can unpickle what
is defined there. Without the guard `if __name__ == "__main__":` that import runs the whole script again.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GUARDLESS = 97
"""Exit status of a learner process in which the script began to train again."""
ADVICE = (
    "the script that trains runs again in each learner process, which imports it. Put what it does under "
    '`if __name__ == "__main__":`'
)


def not_imported_again() -> None:
    """End this process, with status GUARDLESS, if it is a learner's that is only importing the script. Call it where
    a training begins: its parent then knows the cause."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(GUARDLESS)


@contextmanager
def importable_script() -> Iterator[None]:
    """Meanwhile, a script that no process could import, such as one from standard input, is not named to those that
    are started: they could only fail."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or Path(file).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file
