"""Curves for TensorBoard, in the folder `tensorboard` of a run's directory."""

import errno
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, final

from roundelay.core.extras import has
from roundelay.core.records import Decoded, Record
from roundelay.loggers.base import LoggedRun, Logger, Scalars

CURVES = "tensorboard"


@final
class TensorBoard(Logger):
    """A logger that draws curves for TensorBoard; every run has one, where the package is installed. On a full disk its
    thread ends, and this call draws no more curves; the log still has all."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self._writer: Any = None
        self._scalars, self._tell = Scalars(), tell

    def begin(self, run: LoggedRun) -> None:
        self.close()
        self._scalars = Scalars(run.frames or 0)
        resumed = 0 if run.frames is None else run.frames + 1  # records of later frames come again
        self._writer = _writer(run, purge_step=resumed) if has("tensorboard") else None
        if self._writer is None:
            self._tell("no curves for TensorBoard, which is not installed: pip install 'roundelay[tensorboard]'")

    def log(self, record: Record) -> None:
        frames, numbers = self._scalars.of(record)
        for name, value in numbers.items():
            self._draw(name, value, frames)

    def close(self) -> None:
        if self._writer is not None:
            with suppress(OSError):  # a full disk: the log has all that is in the curves
                self._writer.close()
        self._writer = None

    def _draw(self, name: str, value: float, frames: int) -> None:
        if self._writer is None:
            return
        try:
            self._writer.add_scalar(name, value, frames)
        except OSError as error:  # met by the thread, and raised here
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._writer = None


def _writer(run: LoggedRun, **options: Any) -> Any:
    return import_module("torch.utils.tensorboard").SummaryWriter(str(run.exp / CURVES), **options)


def draw_word_errors(run: LoggedRun, record: Decoded) -> None:
    """Add the word error rate of a split to the curves of a run that was decoded."""
    if not has("tensorboard"):
        return
    with suppress(OSError):  # results.json has it
        writer = _writer(run)
        for name, value in Scalars().of(record)[1].items():
            writer.add_scalar(name, value, run.frames or 0)
        writer.close()
