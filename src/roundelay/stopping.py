"""Signals that end a training: with a checkpoint, and with an exit status that a scheduler knows.

SIGINT (Ctrl-C), SIGTERM (of Slurm, Kubernetes, systemd and whoever else takes a machine away), SIGUSR1 and SIGUSR2
(Slurm's `--signal`, some time before that; submitit takes the latter) ask the run to stop at the next round. The exit
status is 128 plus the signal's number, the one a process has that the signal killed: 130, 143, 138, 140.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from roundelay.terminal import complain

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Asked(Protocol):
    """The receiver of a signal: training's Interrupt."""

    asked: bool
    why: str
    busy: bool  # is there anything that a checkpoint would keep?


@contextmanager
def stopping(interrupt: Asked) -> Iterator[None]:
    """The first signal asks the run to stop at the next round, with a checkpoint; a second Ctrl-C stops it at once, and
    so does any signal before training has begun. Signals but Ctrl-C may come many times: a launcher and the system that
    has started it often send one each."""

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

    try:
        before = {number: signal.signal(number, ask) for number in SIGNALS}
    except ValueError:  # only a program's main thread is told of signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def status(why: str) -> int:
    """The exit status of what the signal of this name has ended; without a name it was a Ctrl-C."""
    known = why in signal.Signals.__members__  # another host may have other signals
    return 128 + (signal.Signals[why] if known else signal.SIGINT)


def leave_to_another() -> None:
    """Leaves signals to another process of this host, and ends with it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
