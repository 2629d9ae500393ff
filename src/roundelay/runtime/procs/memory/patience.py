"""Every wait is bounded, and says who waits for what when the bound is reached."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Wakes(Protocol):
    """A bell (bell.py), as one who waits for it sees it."""

    def heard(self) -> int:
        """Return the rings so far."""

    def wait(self, heard: int, seconds: float) -> None:
        """Wait until it has been rung since `heard`, or so many seconds have passed."""


@dataclass(frozen=True)
class Patience:
    """Seconds that learner `rank` waits for anything before it gives up, and what it does while it waits."""

    rank: int
    seconds: float
    look: Callable[[], None] = lambda: None

    def until(
        self,
        ready: Callable[[], bool],
        what: str,
        pauses: tuple[float, float] = (50e-6, 2e-3),
        missing: Callable[[], Sequence[int]] | None = None,
        bell: Wakes | None = None,
    ) -> None:
        """Wait until `ready()` is true; whatever that raises ends the wait.

        Args:
            what: is waited for.
            pauses: seconds between two looks, at first and at most.
            missing: ranks that have not come; the error names them.
            bell: ends a pause when it is rung.

        Raises:
            TimeoutError: the bound is passed; names the learner and what it waits for.
        """
        started, pause, heard = time.monotonic(), pauses[0], 0 if bell is None else bell.heard()
        while not ready():
            self.look()
            waited = time.monotonic() - started
            if waited > self.seconds:
                hint = "a longer patience helps where they are only slow"
                still = "" if missing is None else f"; still missing: {list(missing())} ({hint})"
                raise TimeoutError(f"learner {self.rank} has waited {waited:.0f} s for {what}{still}")
            if bell is None:
                time.sleep(pause)
            else:
                bell.wait(heard, pause)
                heard = bell.heard()
            pause = min(2 * pause, pauses[1])
