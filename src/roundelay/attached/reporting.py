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
    """The log of held-out losses of one session.

    Args:
        folder: the folder of the log; empty for none.
        started: the first record, written with the first loss.
        late: this learner has come back to a session that ran, and may have reported.
    """

    def __init__(self, folder: str, started: RunStarted, late: bool = False) -> None:
        self._path, self._started = Path(folder, EVENTS) if folder else None, started
        self._began, self._count = wall_clock(), 0
        self._taken = self._path is not None and self._path.exists() and not late

    def write(self, loss: float, steps: int) -> None:
        """Add a held-out loss, measured after `steps` steps of all learners together.

        Raises:
            UserError: the loss is no number; another session has reported here.
        """
        seconds = wall_clock() - self._began
        try:
            value = float(loss)
        except (TypeError, ValueError):
            raise UserError(f"session.report({loss!r}): give a number, the mean loss on held-out examples.") from None
        if self._path is None:
            return
        if self._taken:
            raise UserError(f"{self._path}: another session has reported here. Name another folder.")
        records: list[Record] = []
        if not self._path.exists():  # else it was begun by a learner that has died since
            self._path.parent.mkdir(parents=True, exist_ok=True)
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
            append(self._path.parent, record)
        self._count += 1
