"""The present state of a run that goes on, from its directory. Needs neither torch nor the run's own machine."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from roundelay.core.errors import UserError
from roundelay.core.live import ENDED_WELL, INTERRUPTED, RUN_FAILED, TRAINING, HostSeen, Live, LostSeen, read_live
from roundelay.core.minibatch import recorded_text
from roundelay.core.records import (
    EVENTS,
    CheckpointWritten,
    Evaluation,
    LearnerJoined,
    LearnerLost,
    Record,
    Results,
    RunStarted,
    Segment,
    of_kind,
    read_events,
)
from roundelay.core.slow import slow
from roundelay.reports.numbers import MISSING, percent, plain, seconds, short
from roundelay.reports.runs import Wording, together, wording_of

R = TypeVar("R", bound=Record)
SILENT_SECONDS = 60.0
"""Seconds without a word from another host after which a run does not count as alive."""


class Life(Enum):
    """State of the process that trains a run."""

    RUNNING = "running"
    SILENT = "silent"  # on another host, and nothing was heard for long
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"  # it said so itself
    DEAD = "dead"  # it could not say so
    UNKNOWN = "unknown"  # of an earlier version, which wrote nothing of the present

    @property
    def well(self) -> bool:
        """True if the user needs to do nothing."""
        return self in (Life.RUNNING, Life.FINISHED)


@dataclass(frozen=True)
class Status:
    """State of a run at one moment."""

    folder: Path
    life: Life
    live: Live | None
    age_s: float | None  # of the facts in `live`
    start: RunStarted | None  # the last start
    segment: Segment | None  # the last complete one
    evaluation: Evaluation | None
    checkpoint: CheckpointWritten | None
    lost: tuple[LostSeen, ...]  # whose places are empty still
    deaths: int  # recorded since the run began, places taken again included

    @property
    def wording(self) -> Wording:
        """Words for the units that the run counts and measures."""
        if self.live is not None and self.live.label:
            return Wording(examples="steps")
        return Wording() if self.start is None else wording_of(self.start)

    def to_json(self) -> dict[str, Any]:
        """Return the state as a mapping, for machines."""
        records = ("start", "segment", "evaluation", "checkpoint")
        told: dict[str, Record | None] = {name: getattr(self, name) for name in records}
        return {
            "folder": str(self.folder),
            "life": self.life.value,
            "well": self.life.well,
            "age_s": self.age_s,
            "live": self.live and self.live.to_json(),
            "deaths": self.deaths,
            "lost": [dataclasses.asdict(one) for one in self.lost],
            **{name: record and dataclasses.asdict(record) for name, record in told.items()},
        }


def read_status(folder: Path, now: float) -> Status:
    """Return the state of a run, from its directory, at `now`, seconds since 1970.

    Raises:
        UserError: `folder` is no run directory, or is damaged; names the file.
    """
    events = folder / EVENTS
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such folder. Give the directory that `roundelay train --exp DIR` or `roundelay launch "
            "--live DIR` writes."
        )
    live = read_live(folder)
    if live is None and not events.exists():
        raise UserError(f"{folder}: not a run directory, or nothing has begun there ({EVENTS} is missing).")
    records = read_events(events) if events.exists() else []
    if (folder / Results.FILE).exists():
        Results.read(folder)  # a damaged one is named
    age = None if live is None else max(0.0, now - live.written_at)

    return Status(
        folder,
        _life(folder, live, age),
        live,
        age,
        _last(records, RunStarted),
        _last(records, Segment),
        _last(records, Evaluation),
        _last(records, CheckpointWritten),
        _lost(records, live),
        len(of_kind(records, LearnerLost)),
    )


def runs_below(folder: Path) -> list[Path]:
    """Return the run directories in a folder that is not one itself, as `roundelay compare` leaves them, by name."""

    def is_run(path: Path) -> bool:
        return (path / EVENTS).exists() or (path / Live.FILE).exists()

    return [] if is_run(folder) or not folder.is_dir() else sorted(filter(is_run, folder.iterdir()))


def _last(records: list[Record], cls: type[R]) -> R | None:
    found = of_kind(records, cls)
    return found[-1] if found else None


def _life(folder: Path, live: Live | None, age: float | None) -> Life:
    if (folder / Results.FILE).exists():
        return Life.FINISHED
    if live is None or age is None:
        return Life.UNKNOWN
    if live.doing in (INTERRUPTED, RUN_FAILED, ENDED_WELL):
        return Life(live.doing)
    lives = live.process_lives()
    if lives is None:
        return Life.RUNNING if age < SILENT_SECONDS else Life.SILENT
    return Life.RUNNING if lives else Life.DEAD


def _lost(records: list[Record], live: Live | None) -> tuple[LostSeen, ...]:
    """Return learners lost and not replaced: in earlier segments by the records, in this one by `live.json`."""
    empty: dict[int, LostSeen] = {}
    for record in records:
        if isinstance(record, RunStarted):
            empty.clear()  # with all its learners
        elif isinstance(record, LearnerLost):
            empty[record.rank] = LostSeen(rank=record.rank, reason=record.reason, replaced=record.replaced)
        elif isinstance(record, LearnerJoined):
            empty.pop(record.rank, None)
    if live is None:
        return tuple(empty.values())
    empty |= {one.rank: one for one in live.lost}
    if live.living is not None:
        empty = {rank: lost for rank, lost in empty.items() if rank not in live.living}
        for rank in set(range(live.learners)) - set(live.living) - set(empty):
            empty[rank] = LostSeen(rank=rank, reason="not said yet")
    return tuple(empty[rank] for rank in sorted(empty))


# For people -----------------------------------------------------------------------------------------------------------


def headline(status: Status) -> list[str]:
    """Return the main facts of a run for people, a line each."""
    lines = [f"{status.folder}: {_sentence(status)}"]
    start, live, segment, found = status.start, status.live, status.segment, status.evaluation
    words = status.wording
    if start is not None:
        learners = f"{start.learners} learner{'s' * (start.learners > 1)}"
        lines.append(
            f"{start.label}, {learners} on {start.runtime}, seed {start.seed}, {short(start.parameters)} parameters"
        )
        lines.append(f"minibatch: {recorded_text(start)}")
    if live is not None and live.label:
        lines.append(f"{live.label}, {live.steps:,} steps of all")
    if live is not None and live.doing == TRAINING and status.life in (Life.RUNNING, Life.SILENT):
        speed = MISSING if live.frames_per_second is None else f"{live.frames_per_second:,.0f}"
        lines.append(
            f"now: {speed} {words.examples}/s, {'' if live.label else f'loss {plain(live.loss)}, '}"
            f"staleness {plain(live.staleness, 1)}, consensus distance {_distance(live.consensus_distance)}"
        )
    if segment is not None:
        lines.append(
            f"epoch {segment.epoch + 1}: {segment.frames_per_second:,.0f} {words.examples}/s, loss {segment.loss:.3f}"
        )
    if found is not None:
        when = f"after epoch {found.epoch + 1}" if found.epoch >= 0 else "before training"
        lines.append(
            f"{found.split} {when}: {words.loss} {found.cross_entropy:.4f}, {words.right} {percent(found.accuracy)}, "
            f"consensus distance {_distance(found.consensus_distance)}" + ("" if found.accepted else " (taken back)")
        )
    if status.checkpoint is not None:
        lines.append(f"last checkpoint: {status.checkpoint.file}")
    for one in status.lost:
        lines.append(f"lost: learner {one.rank}, {one.reason}" + ("; another is starting" if one.replaced else ""))
    if live is not None:
        lines += [f"{sentence[0].upper()}{sentence[1:]}" for sentence in slow(live.spent).values()]
    if status.deaths:
        lines.append(f"{status.deaths} death{'s' * (status.deaths > 1)} recorded since the run began")
    return lines


def _distance(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g}"


def _sentence(status: Status) -> str:
    life, live = status.life, status.live
    age = f", heard {seconds(status.age_s)} ago" if status.age_s is not None else ""
    resume = "The same `roundelay train` goes on from the last checkpoint."
    if live is not None and live.label:
        resume = "The same command begins again, or goes on from the last save where the script says resume=."
    if life is Life.FINISHED:
        return "finished."
    if live is None:
        return "its directory says nothing of the present: written by an earlier version, or about to start."
    where, doing = f"{live.host}, process {live.process}", live.doing
    epoch = "its loop" if live.label else f"epoch {live.epoch + 1}"
    if live.doing == TRAINING and live.epoch_of:
        doing += (
            f" {epoch}, {percent(live.epoch_frames / live.epoch_of, 0)} of {live.epoch_of:,} {status.wording.examples}"
        )
    return {
        Life.INTERRUPTED: f"interrupted in {epoch}. {resume}",
        Life.FAILED: f"failed in {epoch}: {live.why or 'see what it says'}",
        Life.DEAD: f"dead: {where} ended without a word in {epoch}{age}. {resume}",
        Life.SILENT: f"silent: it was {doing} on {where}{age}. Look there whether that process lives.",
    }.get(life, f"{doing} ({where}{age})")


def grid_headline(folder: Path, found: Sequence[Status]) -> str:
    """Return a line such as `exp/grid: 3 runs, 2 finished, 1 running`."""
    counts = Counter(one.life.value for one in found)
    states = ", ".join(f"{counts[life.value]} {life.value}" for life in Life if counts[life.value])
    return f"{folder}: {len(found)} run{'s' * (len(found) > 1)}, {states}"


def grid_rows(found: Sequence[Status]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and a row for each run: its state, the epochs completed, and the result of the last evaluation."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        e, epochs = one.evaluation, MISSING if one.segment is None else f"{one.segment.epoch + 1}"
        said = (MISSING, MISSING) if e is None else (f"{e.cross_entropy:.4f}", percent(e.accuracy))
        rows.append((one.folder.name, one.life.value, epochs, *said))
    words = together(one.wording for one in found)
    return ["run", "state", "epochs", words.loss, words.right], rows


def learner_rows(status: Status) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and a row for each learner."""
    live = status.live
    if live is None or not (live.learner_speed or live.living is not None):
        return [], []
    names = {rank: host.name for host in live.hosts for rank in host.ranks}
    lost = {one.rank for one in status.lost}
    columns = ["learner", *(["host"] if names else []), "state", f"{status.wording.examples}/s", "last minibatch"]
    rows = []
    for rank in range(live.learners):
        speed = f"{live.learner_speed[rank]:,.0f}" if rank < len(live.learner_speed) else MISSING
        idle = f"{seconds(live.learner_idle_s[rank])} ago" if rank < len(live.learner_idle_s) else MISSING
        state = "lost" if rank in lost else "lives"
        rows.append((f"{rank}", *([names.get(rank, MISSING)] if names else []), state, speed, idle))
    return columns, rows


def host_rows(status: Status) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and a row for each host, if there are several."""
    hosts: list[HostSeen] = status.live.hosts if status.live is not None else []
    columns = ["host", "learners", "state", "last heard", "MB sent to it", "MB received"]
    shown = any(host.rows for host in hosts)
    rows: list[tuple[str, ...]] = [
        (
            host.name,
            ", ".join(map(str, host.ranks)),
            "lives" if host.alive else "lost",
            f"{seconds(host.heard_s)} ago",
            f"{host.sent_bytes / 1e6:,.1f}",
            f"{host.received_bytes / 1e6:,.1f}",
            *([host.rows or MISSING] if shown else []),
        )
        for host in hosts
    ]
    return [*columns, *(["rows go as"] if shown else [])] if hosts else [], rows
