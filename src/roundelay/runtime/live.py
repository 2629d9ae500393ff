"""The file `live.json`, kept up to date while a run, or a session of a user's loop, trains: for `roundelay status`."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from roundelay.core.live import (
    EVALUATING,
    INTERRUPTED,
    RUN_FAILED,
    STARTING,
    TRAINING,
    Live,
    LostSeen,
    whoami,
    write_live,
)
from roundelay.core.slow import Spent
from roundelay.runtime.base import Glance, wall_clock
from roundelay.runtime.clocks import unix_clock

EVERY_SECONDS = 5.0
"""Seconds between two writings while only numbers change."""
SPENT_SECONDS = 60.0
"""Learners' seconds are of the last so many, or up to twice as many."""
AT_MOST_EVERY = 1.0
"""Fewest seconds between writings when more changes: epochs of toy problems take milliseconds."""


class LiveFile:
    """The writer of a run's `live.json`. As a context manager it notes an exception that ends the run.

    Args:
        folder: folder of the file.
        epoch_of: number of frames of an epoch.
        label: strategy, in words, of a session, which trains from the beginning and counts progress in steps.
    """

    def __init__(self, folder: Path, learners: int, epoch_of: int = 0, label: str = "") -> None:
        self._folder, doing = folder, TRAINING if label else STARTING
        self._now = Live(written_at=0.0, **whoami(), doing=doing, learners=learners, epoch_of=epoch_of, label=label)
        self._written = -AT_MOST_EVERY  # on the wall clock
        self._changed = True
        self._before: tuple[float, int, Sequence[int]] | None = None  # time, frames, and by rank, when last written
        self._seen: dict[int, tuple[int, float]] = {}  # by rank: frames, and since when so many
        self._done = 0  # frames of this epoch in earlier segments
        self._marks: list[tuple[float, Sequence[Spent]]] = []  # the last two minutes' beginnings: time, and by rank

    def train(self, epoch: int, done: int) -> None:
        """Note that training of an epoch begins, or goes on after `done` frames of it."""
        self._done, self._before, self._seen, self._marks = done, (wall_clock(), 0, ()), {}, []
        self._change(doing=TRAINING, epoch=epoch, epoch_frames=done, lost=[])

    def look(self, glance: Glance) -> None:
        """Note the progress of the segment; called a few times a second."""
        now = wall_clock()
        for rank, frames in enumerate(glance.learner_frames):
            if self._seen.get(rank, (-1, 0.0))[0] != frames:
                self._seen[rank] = frames, now
        lost = [LostSeen(rank=one.rank, reason=one.reason, replaced=one.replaced) for one in glance.lost]
        hosts = list(glance.hosts)
        living = None if glance.living is None else list(glance.living)
        known = self._now
        session = bool(known.label)
        self._changed |= known.loss is None or (known.lost, known.living) != (lost, living)
        self._changed |= [host.alive for host in known.hosts] != [host.alive for host in hosts]
        self._now = dataclasses.replace(
            known,
            epoch_frames=0 if session else self._done + glance.frames,
            steps=glance.steps if session else 0,
            loss=glance.loss,
            staleness=glance.staleness,
            consensus_distance=glance.consensus_distance,
            living=living,
            lost=lost,
            hosts=hosts,
            learner_idle_s=[round(now - since, 3) for _, since in self._seen.values()],
            spent=self._spent(now, glance.spent),
        )
        if now - self._written >= (AT_MOST_EVERY if self._changed else EVERY_SECONDS):
            done = glance.steps if session else glance.frames
            self._now = dataclasses.replace(self._now, **self._speed(now, done, glance.learner_frames))
            self._before = now, done, glance.learner_frames
            self._write()

    def evaluate(self) -> None:
        """Note that the model is evaluated."""
        self._change(doing=EVALUATING)

    def finish(self) -> None:
        """Note that the run has finished; its results say the rest."""
        with suppress(OSError):
            (self._folder / Live.FILE).unlink(missing_ok=True)

    def interrupt(self) -> None:
        """Note that the user has stopped the run."""
        self.end(INTERRUPTED)

    def _speed(self, now: float, done: int, by_rank: Sequence[int]) -> Mapping[str, Any]:
        """Return the fields on speed since the file was last written."""
        if self._before is None:
            return {}
        then, frames, before = self._before
        seconds = max(now - then, 1e-9)
        each = [round((n - b) / seconds, 3) for n, b in zip(by_rank, before or [0] * len(by_rank), strict=True)]
        return {"frames_per_second": round((done - frames) / seconds, 3), "learner_speed": each}

    def _spent(self, now: float, spent: Sequence[Spent]) -> list[Spent]:
        """Return what learners have spent since the minute before this one began, or since the first look."""
        if not self._marks or now - self._marks[-1][0] >= SPENT_SECONDS:
            self._marks = [*self._marks[-1:], (now, spent or ())]
        return [one.since(before) for one, before in zip(spent, self._marks[0][1], strict=True)]

    def _change(self, **fields: Any) -> None:
        self._now, self._changed = dataclasses.replace(self._now, **fields), True
        if wall_clock() - self._written >= AT_MOST_EVERY:
            self._write()

    def end(self, how: str, why: str = "") -> None:
        """Note the end of the run, as one of the words of core/live.py, and the reason."""
        self._now = dataclasses.replace(self._now, doing=how, why=why)
        self._write()

    def _write(self) -> None:
        write_live(self._folder, dataclasses.replace(self._now, written_at=unix_clock()))
        self._written, self._changed = wall_clock(), False

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.end(RUN_FAILED, str(error) or type(error).__name__)
