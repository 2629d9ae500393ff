"""Signals that end a training with a checkpoint, and other long commands with a sentence on the work that is kept.

SIGINT (Ctrl-C), SIGTERM (of Slurm, Kubernetes, systemd and others that take a machine away), SIGUSR1 and SIGUSR2
(Slurm's `--signal`, some time before that; submitit takes the latter) ask the run to stop at the next round. The exit
status is 128 plus the signal's number, the one a process has that the signal killed: 130, 143, 138, 140.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from roundelay.core.parent import SIGNALS
from roundelay.terminal import complain

if TYPE_CHECKING:  # torch is not loaded for it
    from roundelay.job import Interrupt


@contextmanager
def stopping(interrupt: "Interrupt") -> Iterator[None]:
    """Let the first signal ask the run to stop at the next round, with a checkpoint; a second Ctrl-C stops it at once,
    and so does any signal before training has begun. Signals but Ctrl-C may come many times: a launcher and the system
    that has started it often send one each."""

    def ask(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and (interrupt.asked or not interrupt.busy):
            raise KeyboardInterrupt
        if not interrupt.busy:
            complain(f"ended by {signal.Signals(number).name} before training began.")
            raise SystemExit(128 + number)
        if interrupt.asked:
            return
        interrupt.asked, interrupt.why = True, signal.Signals(number).name
        how = "; Ctrl-C again to stop at once" if number == signal.SIGINT else f" ({interrupt.why})"
        complain(f"stopping at the next round{how}.")

    with _handled_by(ask):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the `with`, have `handler` answer signals; those left to other processes meanwhile stay so."""
    try:
        before = {number: signal.signal(number, handler) for number in SIGNALS}
    except ValueError:  # only a program's main thread is told of signals
        before = {}
    try:
        yield
    finally:
        for number, other in before.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, other)


class Ended(KeyboardInterrupt):
    """The end of a command by a signal; the message names the work kept.

    Attributes:
        status: the exit status of the process.
    """

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number

    @property
    def status(self) -> int:
        return 128 + self.number


@contextmanager
def ending(kept: Callable[[], str]) -> Iterator[None]:
    """Within the `with`, let a signal end the code at once, and its worker processes.

    Args:
        kept: returns a sentence on the work kept; called at the end.

    Raises:
        Ended: a signal came. Errors that follow from it, in processes that got it too, are dropped.
    """
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        # Ctrl-C twice ends also the cleaning up; of other signals a system may send several.
        if not came or number == signal.SIGINT:
            came.append(number)
            raise Ended(number)

    with _handled_by(end):
        try:
            yield
        except BaseException as error:
            if not came and not isinstance(error, KeyboardInterrupt):
                raise
            number = came[0] if came else signal.SIGINT
            how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
            raise Ended(number, f"{how}; {kept()}") from None


def resumes_from(folder: object, what: str = "everything so far") -> str:
    """Return a sentence for a command that, given again, goes on where it was."""
    return f"{what} is in {folder}. The same command goes on from there."


def status(why: str) -> int:
    """Return the exit status of a process ended by the signal named `why`; "": Ctrl-C."""
    known = why in signal.Signals.__members__  # another host may have other signals
    return 128 + (signal.Signals[why] if known else signal.SIGINT)
