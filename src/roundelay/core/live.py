"""`live.json`: what a run is doing just now, for `roundelay status`.

Written anew a few times a minute, never read by the run itself, gone when it has finished; lasting records are in
`events.jsonl`.
"""

import dataclasses
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from roundelay.core.checksums import Damaged, read_sums, with_checksums
from roundelay.core.errors import UserError
from roundelay.core.files import json_line
from roundelay.core.records import known
from roundelay.core.slow import Spent

TRAINING, EVALUATING, STARTING = "training", "evaluating", "starting"
_REMEDY = "Delete it; a living run writes it again."
INTERRUPTED, RUN_FAILED, ENDED_WELL = "interrupted", "failed", "finished"


@dataclass(frozen=True, kw_only=True)
class HostSeen:
    """The state of one host, as the host that leads the run sees it."""

    name: str
    ranks: list[int]  # of its learners
    alive: bool = True
    heard_s: float = 0.0  # seconds since it was last heard of
    sent_bytes: int = 0  # to it, by the host that leads, since they met
    received_bytes: int = 0
    rows: str = ""  # the form of rows exchanged with it by learners of the host that leads, in words


@dataclass(frozen=True, kw_only=True)
class LostSeen:
    """A learner lost in the running segment."""

    rank: int
    reason: str
    replaced: bool = False


@dataclass(frozen=True, kw_only=True)
class Live:
    """The state of a run at one moment, content of live.json. Lists are by rank."""

    FILE: ClassVar[str] = "live.json"

    written_at: float  # seconds since 1970
    host: str
    process: int  # that leads the run, on that host
    started: int  # when that process started, as its kernel counts; tells it from a later one of the same number
    doing: str  # one of the words above
    why: str = ""  # it failed
    epoch: int = 0  # from 0
    epoch_frames: int = 0  # trained of this epoch
    epoch_of: int = 0  # frames of an epoch
    learners: int = 0
    loss: float | None = None  # of this segment so far, nats per frame
    staleness: float | None = None  # mean over this segment so far
    frames_per_second: float | None = None  # lately
    consensus_distance: float | None = None  # over some of the parameters, while they change
    living: list[int] | None = None  # ranks; null where the runtime does not tell
    learner_speed: list[float] = field(default_factory=list)  # frames per second, lately
    learner_idle_s: list[float] = field(default_factory=list)  # since the last minibatch was counted
    lost: list[LostSeen] = field(default_factory=list)
    hosts: list[HostSeen] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)  # in the last minute or two
    label: str = ""  # of a session of a user's loop, whose steps are counted: its strategy, in words
    steps: int = 0  # of such a session, of all learners

    def to_json(self) -> dict[str, Any]:
        """Return the state as a plain mapping, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Live":
        """Return the state in a mapping from `to_json`; unknown keys are ignored."""
        fields = known(cls, value)
        fields["lost"] = [LostSeen(**known(LostSeen, one)) for one in value.get("lost", ())]
        fields["spent"] = [Spent(**known(Spent, one)) for one in value.get("spent", ())]
        fields["hosts"] = [HostSeen(**known(HostSeen, one)) for one in value.get("hosts", ())]
        return cls(**fields)

    def process_lives(self) -> bool | None:
        """Return True if the process that wrote this state lives; None on another host, which cannot know."""
        if self.host != platform.node():
            return None
        return started_at(self.process) == self.started


def read_live(exp: Path) -> Live | None:
    """Return the present state that a run directory records; None if it has none.

    Raises:
        UserError: the file is damaged.
    """
    path = exp / Live.FILE
    try:
        return Live.from_json(read_sums(path, _REMEDY)[0])
    except Damaged:
        if not path.exists():
            return None
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not what a run writes ({error}). {_REMEDY}") from error


def write_live(exp: Path, live: Live) -> None:
    """Write the present state into a run directory, whole or not at all. The file is not flushed to the disk, since it
    is of no use after a crash; that a disk cannot be written is left to others to report."""
    temporary = exp / f".{Live.FILE}.{os.getpid()}.part"
    try:
        temporary.write_text(json_line(with_checksums(live.to_json())) + "\n", encoding="utf-8")
        os.replace(temporary, exp / Live.FILE)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def started_at(process: int) -> int:
    """Return the start time of a process of this host, in ticks since the host started; 0 if there is no such
    process."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return 0
    fields = stat.rpartition(b")")[2].split()  # the name before it may contain anything
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def whoami() -> dict[str, Any]:
    """Return the fields of `Live` that name the process which writes it."""
    return {"host": platform.node(), "process": os.getpid(), "started": started_at(os.getpid())}
