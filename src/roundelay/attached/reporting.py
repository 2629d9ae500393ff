"""Held-out losses that a script reports, in a log that is read as that of any run.

The folder is named by `ROUNDELAY_REPORT`; without it, reports go nowhere. Seconds count from the end of attach, when
all learners are there, and evaluations are among them.
"""

from pathlib import Path
from typing import final

from roundelay.core.errors import UserError
from roundelay.core.records import EVENTS, Evaluation, Record, RunStarted
from roundelay.run_directory import append
from roundelay.runtime.base import wall_clock

SPLIT = "dev"
COUNTED, HELD_OUT_LOSS = "minibatches", "held-out loss"


@final
class LossLog:
    """The log of one session.

    Args:
        folder: of the log; empty for none.
        started: the first record, written with the first loss.
    """

    def __init__(self, folder: str, started: RunStarted) -> None:
        self._folder, self._started = folder, started
        self._began, self._count = wall_clock(), 0

    def write(self, loss: float, steps: int) -> None:
        """Add a held-out loss, after so many steps of all learners.

        Raises:
            UserError: the loss is no number; another session has reported here.
        """
        seconds = wall_clock() - self._began
        try:
            value = float(loss)
        except (TypeError, ValueError):
            raise UserError(f"session.report({loss!r}): give a number, the mean loss on held-out examples.") from None
        if not self._folder:
            return
        exp = Path(self._folder)
        records: list[Record] = []
        if not self._count:
            if (exp / EVENTS).exists():
                raise UserError(f"{exp / EVENTS}: another session has reported here. Name another folder.")
            exp.mkdir(parents=True, exist_ok=True)
            records.append(self._started)
        records.append(
            Evaluation(
                wall_s=seconds,
                epoch=self._count if steps else -1,
                split=SPLIT,
                frames=steps,
                cross_entropy=value,
                accuracy=float("nan"),
                consensus_distance=float("nan"),
                accepted=True,
            )
        )
        for record in records:
            append(exp, record)
        self._count += 1
