"""The user's script, the module `__main__`, and processes that are started while it runs.

A new process of multiprocessing imports the script that started it, so that it can unpickle objects defined there.
Without the guard `if __name__ == "__main__":` that import runs the whole script again. A sender of nothing of the
script's own needs no such import.
"""

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess


def is_script(text: str) -> bool:
    """Return True if a word of the command line names a Python script."""
    return text.endswith(".py")


@contextmanager
def without_script() -> Iterator[None]:
    """Start processes that do not import the script, until the end of the `with`."""
    main = sys.modules["__main__"]
    missing = object()
    before = {name: vars(main).get(name, missing) for name in ("__file__", "__spec__")}
    main.__spec__ = None
    vars(main).pop("__file__", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                vars(main).pop(name, None)
            else:
                setattr(main, name, value)


def of_the_script(value: object) -> bool:
    """Return True if a process needs the script to unpickle `value`, or if `value` cannot be pickled at all."""
    try:
        return b"__main__" in pickle.dumps(value)
    except Exception:
        return True


class _Alone(SpawnProcess):
    """A spawned process that does not import the user's script."""

    def start(self) -> None:
        with without_script():
            super().start()


class SpawnWithoutScript(SpawnContext):
    """A context that starts processes as `spawn` does, but without importing the user's script."""

    Process = _Alone
