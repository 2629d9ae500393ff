"""Parts shared by the files of commands."""

import argparse
from collections.abc import Sequence
from typing import Protocol

DEFAULT_LEARNERS = 4


class Command(Protocol):
    """Adds a command to the command line."""

    def __call__(self, name: str, run: object, text: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
        """Add a command: `run` is called with the parsed options and returns the exit status, or None for 0; `text`
        says what it does; `examples` are lines for its help (those of this package stand in examples.py). The reply
        takes the command's options."""
        ...
