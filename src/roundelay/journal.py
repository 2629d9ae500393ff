"""Writes down what a run does while it trains: records in `events.jsonl`, and the same curves for TensorBoard."""

import dataclasses
import errno
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from roundelay.core.records import (
    Evaluation,
    Exchanges,
    HostJoined,
    HostLost,
    LearnerJoined,
    LearnerLost,
    Links,
    Record,
    Segment,
    Staleness,
)
from roundelay.core.state import Statistics
from roundelay.run_directory import EVENTS, append
from roundelay.runtime.base import Lost, Outcome, staleness_summary
from roundelay.saving import Position, Room


class Journal:
    """The log of the run in directory `exp`.

    Args:
        time: the fields of a record that say when it was.
        purge_step: of TensorBoard: what it knows from there on will be written again.
    """

    def __init__(self, exp: Path, room: Room, time: Callable[[], dict[str, Any]], purge_step: int | None) -> None:
        self._exp, self._room, self._time = exp, room, time
        self._writer: SummaryWriter | None = SummaryWriter(str(exp / "tensorboard"), purge_step=purge_step)
        self._deaths: Counter[tuple[int, str]] = Counter()  # said in this segment: rank and reason

    def close(self) -> None:
        """Finish what TensorBoard reads."""
        if self._writer is not None:
            with suppress(OSError):  # a full disk: the log has all that is in the curves
                self._writer.close()

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return (self._exp / EVENTS).stat().st_size

    def say(self, record: Record) -> None:
        """Add a record; waits for room on a full disk.

        Raises:
            UserError: the disk stays full, or cannot be written.
        """
        self._room.wait_for(lambda: append(self._exp, record), self._exp)

    def begin_segment(self) -> None:
        """Begins a segment none of whose learners has died yet."""
        self._deaths.clear()

    def lose(self, lost: Lost, frames: int = 0) -> None:
        """A learner has died in this segment; said at once, since the segment may never come to its end. What was said
        of a death before is not said again."""
        self._deaths[lost.rank, lost.reason] += 1
        self.say(
            LearnerLost(**self._time(), rank=lost.rank, reason=lost.reason, replaced=lost.replaced, frames_lost=frames)
        )

    def lose_all(self, lost: tuple[Lost, ...]) -> None:
        """Reports all who have died in this segment so far, in order; each death is reported once."""
        said: Counter[tuple[int, str]] = Counter()
        for one in lost:
            said[one.rank, one.reason] += 1
            if said[one.rank, one.reason] > self._deaths[one.rank, one.reason]:
                self.lose(one)

    def has_said(self, rank: int, reason: str) -> bool:
        """True if this death of this segment was reported already."""
        return (rank, reason) in self._deaths

    def segment(self, epoch: int, rate: float, outcome: Outcome, now: Position) -> None:
        """A stretch of training has ended; `now` counts it already."""
        counts, statistics, time = outcome.counts, outcome.counts.statistics, self._time()
        seconds = outcome.virtual_seconds if outcome.virtual_seconds is not None else outcome.wall_seconds
        speed = statistics.frames / max(seconds, 1e-9)
        self.lose_all(outcome.lost)
        for joined in outcome.joined:
            self.say(LearnerJoined(**time, rank=joined.rank, copied=joined.copied))
        for gone in outcome.hosts_lost:
            undone = {"redrawn": gone.redrawn, "missing": gone.missing}
            self.say(HostLost(**time, host=gone.host, ranks=[*gone.ranks], reason=gone.reason, **undone))
        for back in outcome.hosts_joined:
            self.say(HostJoined(**time, host=back.host, ranks=[*back.ranks], copied=back.copied))
        self.say(
            Segment(
                **time,
                epoch=epoch,
                learning_rate=rate,
                frames=now.frames,
                loss=statistics.mean_loss,
                accuracy=statistics.accuracy,
                frames_per_second=speed,
                learner_frames=counts.frames.tolist(),
                learner_steps=counts.steps.tolist(),
                **_spent(outcome),
            )
        )
        histogram, largest, mean = staleness_summary(counts)
        self.say(Staleness(**time, epoch=epoch, histogram=histogram, largest=largest, mean=mean))
        self.say(Exchanges(**time, epoch=epoch, matrix=counts.exchanges.tolist()))
        if outcome.traffic:
            links = [dataclasses.asdict(traffic) for traffic in outcome.traffic]
            self.say(Links(**time, epoch=epoch, links=links, refused=outcome.refused))
        for name, value in (
            ("train/cross_entropy", statistics.mean_loss),
            ("train/accuracy", statistics.accuracy),
            ("train/frames_per_second", speed),
            ("train/staleness", mean),
            ("train/learning_rate", rate),
        ):
            self._draw(name, value, now.frames)

    def evaluation(
        self, split: str, found: Statistics, epoch: int, frames: int, distance: float, accepted: bool
    ) -> None:
        """The model was evaluated; `distance` is the consensus distance."""
        self.say(
            Evaluation(
                **self._time(),
                epoch=epoch,
                split=split,
                frames=frames,
                cross_entropy=found.mean_loss,
                accuracy=found.accuracy,
                consensus_distance=distance,
                accepted=accepted,
            )
        )
        self._draw(f"{split}/cross_entropy", found.mean_loss, frames)
        self._draw(f"{split}/accuracy", found.accuracy, frames)
        self._draw("consensus_distance", distance, frames)

    def _draw(self, name: str, value: float, frames: int) -> None:
        """A point of a curve, while TensorBoard's thread can write: on a full disk it ends, and with it the curves of
        this call, for the log has them too."""
        if self._writer is None:
            return
        try:
            self._writer.add_scalar(name, value, frames)
        except OSError as error:  # met by the thread, and raised here
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._writer = None


def _spent(outcome: Outcome) -> dict[str, Any]:
    """Seconds the learners spent, by activity; empty where seconds are virtual."""
    if outcome.virtual_seconds is not None:
        return {}
    seconds = {name: getattr(outcome.counts, name) for name in ("gradient_s", "update_s", "exchange_s", "mean_s")}
    rounded = {f"learner_{name}": [round(value, 6) for value in array.tolist()] for name, array in seconds.items()}
    return {**rounded, "learner_means": outcome.counts.means.tolist()}
