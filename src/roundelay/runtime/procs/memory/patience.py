"""Every wait is bounded, and says who waits for what when the bound is reached."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


def _nothing() -> None:
    """Somebody else looks round."""


@dataclass(frozen=True)
class Patience:
    """Seconds that learner `rank` waits for anything before it gives up, and what it does while it waits."""

    rank: int
    seconds: float
    look: Callable[[], None] = _nothing

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[Callable[[], None]]:
        """Yield a check to call in the waiting loop.

        Raises:
            TimeoutError: from the check, once the bound is passed; names the learner and what it waits for.
        """
        started = time.monotonic()

        def check() -> None:
            self.look()
            waited = time.monotonic() - started
            if waited > self.seconds:
                raise TimeoutError(f"learner {self.rank} has waited {waited:.0f} s for {what}")

        yield check
