"""Options and curves for Weights & Biases: offline, in the run's directory, unless it is asked to send them."""

import hashlib
from typing import Any, Literal, final

from roundelay.core.extras import load
from roundelay.core.records import Record
from roundelay.loggers.base import LoggedRun, Logger, Scalars

AXIS = "frames"


@final
class WandbLogger(Logger):
    """A logger for Weights & Biases, with one run there for each run directory; a resumed run keeps its name.

    Args:
        project: name of the project in W&B.
        mode: offline keeps everything in EXP/wandb, for `wandb sync` to send; online sends all at once.
    """

    def __init__(self, project: str = "roundelay", mode: Literal["offline", "online"] = "offline") -> None:
        self._wandb = load("wandb", "wandb", "WandbLogger")
        self._project, self._mode = project, mode
        self._run: Any = None
        self._scalars = Scalars()

    def begin(self, run: LoggedRun) -> None:
        self.close()
        self._scalars = Scalars(run.frames or 0)
        place = run.exp.resolve()
        self._run = self._wandb.init(
            project=self._project,
            name=place.name,
            id=hashlib.sha256(str(place).encode()).hexdigest()[:16],
            dir=str(place),
            config=dict(run.recipe),
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            settings=self._wandb.Settings(silent=True, console="off", disable_git=True),
        )
        self._run.define_metric("*", step_metric=AXIS)

    def log(self, record: Record) -> None:
        frames, numbers = self._scalars.of(record)
        if numbers and self._run is not None:
            self._run.log({AXIS: frames, **numbers})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
        self._run = None
