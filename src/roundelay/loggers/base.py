"""The interface of loggers, and the numbers of records that are drawn as curves."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from roundelay.core.records import CurvePoint, Decoded, Evaluation, Record, Segment, Staleness


@final
@dataclass(frozen=True)
class LoggedRun:
    """The facts of a run that loggers get.

    Attributes:
        exp: the run's directory, where a logger may keep files of its own.
        recipe: every option, by section.
        frames: frames trained before a run that goes on; records of later frames will come again. None: the run begins.
    """

    exp: Path
    recipe: Mapping[str, Any]
    frames: int | None = None


class Logger(Protocol):
    """A receiver of a run's records: `begin`, then `log` for every record when it is written, then `close`. An error of
    a logger does not end the run: it is reported, and the logger gets nothing more."""

    @abstractmethod
    def begin(self, run: LoggedRun) -> None:
        """Begin a run or go on with one; may be called again without `close` after the death of a learner."""

    @abstractmethod
    def log(self, record: Record) -> None:
        """Log a record that was written to the run's events.jsonl."""

    @abstractmethod
    def close(self) -> None:
        """Close the logger; no more records follow."""


@final
class FunctionLogger(Logger):
    """A logger that calls a function with every record. If the function returns True, the run stops at the next round,
    with a checkpoint; its exceptions end the run."""

    def __init__(self, function: Callable[[Record], object]) -> None:
        self._function = function
        self.asked = False
        """True once the function has asked the run to stop."""

    def begin(self, run: LoggedRun) -> None:
        self.asked = False

    def log(self, record: Record) -> None:
        self.asked |= bool(self._function(record))

    def close(self) -> None:
        """Do nothing, since a function needs no closing."""


@final
class Scalars:
    """Turns records into points of curves: numbers by the names of curves, `train/cross_entropy` for example, over the
    frames trained by all learners."""

    def __init__(self, frames: int = 0) -> None:
        self._frames = frames  # of the last record that says it

    def of(self, record: Record) -> tuple[int, Mapping[str, float]]:
        """Return (frames, numbers by curve) of a record; no numbers if it is not drawn."""
        numbers = self._numbers(record)
        return self._frames, numbers

    def _numbers(self, record: Record) -> Mapping[str, float]:
        """Return the named numbers of a record, none for records without any."""
        match record:
            case CurvePoint():
                self._frames = record.frames
                found = {
                    "cross_entropy": record.loss,
                    "learning_rate": record.learning_rate,
                    "gradient_norm": record.gradient_norm,
                    "frames_per_second": record.frames_per_second,
                    "staleness": record.staleness,
                }
                return {f"within_epochs/{name}": value for name, value in found.items() if value is not None}
            case Segment():
                self._frames = record.frames
                return {
                    "train/cross_entropy": record.loss,
                    "train/accuracy": record.accuracy,
                    "train/frames_per_second": record.frames_per_second,
                    "train/learning_rate": record.learning_rate,
                }
            case Staleness():
                return {"train/staleness": record.mean}
            case Evaluation():
                self._frames = record.frames
                return {
                    f"{record.split}/cross_entropy": record.cross_entropy,
                    f"{record.split}/accuracy": record.accuracy,
                    "consensus_distance": record.consensus_distance,
                }
            case Decoded():
                return {f"{record.split}/wer": record.wer}
            case _:
                return {}


def flat(recipe: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the options of a recipe by dotted key."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found
