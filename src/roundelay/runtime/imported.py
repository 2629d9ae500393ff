"""Scripts that start learners, and the guard they must have.

A learner process imports the script that started it, under another name than `__main__`, where the task, the strategy
or the optimizer is defined there. Without the guard `if __name__ == "__main__":` that import runs the whole script
again.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from roundelay.core.script import of_the_script, without_script

GUARDLESS = 97
"""Exit status of a learner process in which the script began to train again."""
ADVICE = (
    "the script that trains runs again in each learner process, which imports it for what is defined there. Put what "
    'it does under `if __name__ == "__main__":`'
)


def not_imported_again() -> None:
    """End this process, with status GUARDLESS, if it is a learner process that is still importing the script. Called
    where a training begins: the parent then knows that the script lacks its guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(GUARDLESS)


@contextmanager
def importable_script(sent: object) -> Iterator[None]:
    """Within the `with`, start processes that import the script only if `sent` needs it to be unpickled, and if it is a
    file: a script from standard input could only fail."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    no_file = file is not None and getattr(main, "__spec__", None) is None and not Path(file).exists()
    with without_script() if no_file or not of_the_script(sent) else nullcontext():
        yield
