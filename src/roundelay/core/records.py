"""The schema of everything a run writes: `events.jsonl` (a record per line) and `results.json` (one summary).

Every record has `kind` (the class, in snake case), `wall_s` (seconds since the run first started, interruptions left
out) and `virtual_s` (simulated seconds, null on real learners). Units are in the names. Readers ignore fields they do
not know, so fields may be added; none is renamed or given another meaning without raising SCHEMA.

A record's last field is `crc32`, eight hexadecimal digits: the CRC-32 of its line without that field. `results.json`
has `checksums` (see core/checksums.py). Files of earlier versions have neither; only the types of their fields are held
to this schema.

A number that is NaN or infinite, such as the loss of a run that diverged, is written as null, which JSON has, and read
as NaN wherever a field must be a number.
"""

import dataclasses
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from roundelay.core.checksums import FileCheck, read_sums, write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import json_line, open_regular, parse_json

SCHEMA = 1
EVENTS = "events.jsonl"
PHONES_FILE = "phones.json"  # of a decoded split: phones of wrong words
UTTERANCES_FILE = "utterances.jsonl"  # of a decoded split: words against words

SPAN_KINDS = ("gradient", "update", "exchange", "mean", "minibatch")
"""Activities of a timeline: computing a gradient; the strategy's own code, with its step; an exchange or
fetch, waits for rows included; a mean or a gathering, waits for the others included; a wait for a minibatch."""

R = TypeVar("R", bound="Record")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records: the time."""

    wall_s: float
    virtual_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Facts of a run that its first record and its results have in common."""

    schema: int = SCHEMA
    strategy: str  # "adpsgd"
    label: str  # "adpsgd random-ring", for people
    runtime: str  # "procs" or "sim"
    learners: int
    seed: int
    commit: str
    machine: str
    parameters: int
    minibatch_frames: int  # total over all learners
    started_from: str = ""  # the model it began with, in words; empty: one of its own
    minibatch_per_learner: bool = False  # given for every learner; else for all of them
    minibatch_sequences: int | None = None  # total over all learners, where it was given in sequences
    examples: str = "frames"  # its unit
    measured: str = "cross-entropy"  # its losses: means of this
    right: str = "accuracy"  # the share that is counted beside them
    rate: str = "as-is"  # treatment of the learning rate where there are several learners


@dataclass(frozen=True, kw_only=True)
class RunStarted(RunIdentity, Record):
    """The first record, and again after every resume."""

    train_frames: int
    resumed: bool = False


@dataclass(frozen=True, kw_only=True)
class Segment(Record):
    """One stretch of training between two evaluations."""

    epoch: int  # from 0
    learning_rate: float  # of its last round
    frames: int  # trained so far, all learners, since the beginning of the run
    loss: float  # mean training cross-entropy of this segment, nats per frame
    accuracy: float  # mean training frame accuracy of this segment, 0 to 1
    frames_per_second: float
    learner_frames: list[int]  # of this segment, by rank
    learner_steps: list[int]  # minibatches of this segment, by rank
    # Real learners only: where the seconds of this segment went, by rank.
    learner_gradient_s: list[float] = field(default_factory=list)  # computing gradients
    learner_update_s: list[float] = field(default_factory=list)  # local updates, and the strategy's own arithmetic
    learner_exchange_s: list[float] = field(default_factory=list)  # exchanges and fetches, waits for rows included
    learner_mean_s: list[float] = field(default_factory=list)  # means, waits for the others included
    learner_means: list[int] = field(default_factory=list)  # means taken part in
    gatherings: int = 0  # that closed, of strategies with a quorum or a guard; the rest by rank
    learner_gathered: list[int] = field(default_factory=list)  # contributions that counted
    learner_late: list[int] = field(default_factory=list)  # contributions that came after their gathering had closed
    learner_left_out: list[int] = field(default_factory=list)  # contributions that the guard left out
    # Frames of this segment that no learner trained, by the rank of the learner whose part they were (synchronous
    # strategies), or of the first one of the host whose shards they are in; empty: none. The frames trained in the
    # segments of an epoch and those missing from them are the epoch.
    learner_missing: list[int] = field(default_factory=list)
    learner_rate_factors: list[float] = field(default_factory=list)  # mean factor on the learning rate; empty: 1


@dataclass(frozen=True, kw_only=True)
class CurvePoint(Record):
    """A look into a running segment, some hundred an epoch. Means are over the minibatches trained since the last point
    of the epoch, or since the segment began."""

    epoch: int  # from 0
    frames: int  # trained so far, all learners, since the beginning of the run
    learning_rate: float  # of the round reached
    loss: float  # mean training cross-entropy, nats per frame
    frames_per_second: float  # virtual seconds in a simulation
    staleness: float  # mean age of gradients when they were applied, in versions of the learner's own row
    gradient_norm: float | None = None  # mean Euclidean norm of applied gradients, of one in fifty; null: of none
    consensus_distance: float | None = None  # over some of the parameters, while they change; null: not known


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """The model that would be kept, on held-out frames."""

    epoch: int  # -1: before training
    split: str
    frames: int  # trained so far
    cross_entropy: float  # nats per frame
    accuracy: float  # 0 to 1
    consensus_distance: float  # root mean square over parameters and learners of (row - mean of rows)
    accepted: bool  # False: the schedule went back to the model before this epoch


@dataclass(frozen=True, kw_only=True)
class Staleness(Record):
    """Age of gradients when they were applied, in versions of the learner's own row, over one segment."""

    epoch: int
    histogram: list[int]  # histogram[s] = gradients with staleness s; the last bin collects all above
    largest: int
    mean: float


@dataclass(frozen=True, kw_only=True)
class Exchanges(Record):
    """Counts of exchanges in one segment: matrix[i][j] = exchanges that learner i began with row j."""

    epoch: int
    matrix: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten(Record):
    """The state after this segment is on disk."""

    epoch: int
    file: str


@dataclass(frozen=True, kw_only=True)
class LearnerLost(Record):
    """A learner died. Under an asynchronous strategy the others go on. The record stays in the log also if the run goes
    back to an earlier checkpoint."""

    rank: int
    reason: str
    replaced: bool = False  # another was started in its place
    # Trained by all learners since the last checkpoint, to be trained again, where the run ends by it, or goes back.
    # Where others go on, `learner_missing` of the segment has the frames that stay untrained for want of it.
    frames_lost: int = 0


@dataclass(frozen=True, kw_only=True)
class LearnerJoined(Record):
    """A new learner took a lost one's place."""

    rank: int
    copied: int | None  # whose parameters it began with; null: the centre's


@dataclass(frozen=True, kw_only=True)
class HostLost(Record):
    """A host was killed, or could not be reached any more, with all its learners; the others go on."""

    host: int
    ranks: list[int]
    reason: str
    redrawn: int = 0  # minibatches it had drawn and not trained, which others drew again
    missing: int = 0  # frames of its learners' parts that no learner has trained in this segment, or since it came back


@dataclass(frozen=True, kw_only=True)
class HostJoined(Record):
    """A host took a lost one's place."""

    host: int
    ranks: list[int]
    copied: int | None  # whose parameters its learners began with; null: the centre's


@dataclass(frozen=True, kw_only=True)
class Links(Record):
    """Traffic between hosts in one segment. Each of `links` is one host's view: the bytes that `host` sent to `peer`
    and received from it, and the seconds for which its learners' requests to `peer` were under way."""

    epoch: int
    links: list[dict[str, float]]  # host, peer, sent_bytes, received_bytes, waited_s
    refused: int = 0  # connections closed so far because of their content: strangers, malformed frames
    # The form of rows that learners of the first host exchange, in words, by the number of the other host.
    rows: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Timeline(Record):
    """Activities of each learner at the beginning of one of a run's first segments; of several hosts, only those of the
    first."""

    epoch: int
    kinds: list[str]  # SPAN_KINDS
    # By rank, spans in the order of time: index into `kinds`, first and last second since the first
    # span of all learners. Empty: not known.
    lanes: list[list[list[float]]]


@dataclass(frozen=True, kw_only=True)
class CheckpointDamaged(Record):
    """A checkpoint was not as it had been written, and the run went back to an older one."""

    file: str
    reason: str
    instead: str  # the checkpoint that the run went on from


@dataclass(frozen=True, kw_only=True)
class LearnersChanged(Record):
    """The run went on from a checkpoint with another number of learners, or under another strategy."""

    before: int
    after: int
    what: str  # the treatment of their state


@dataclass(frozen=True, kw_only=True)
class Interrupted(Record):
    """A signal stopped the run; a checkpoint was written."""

    epoch: int
    frames: int
    why: str = ""  # the signal's name, SIGTERM for example, where one was heard


@dataclass(frozen=True, kw_only=True)
class Decoded(Record):
    """A split was decoded and scored."""

    split: str
    wer: float  # percent
    errors: dict[str, int]  # ins, del, sub, ref
    acoustic_scale: float
    real_time_factor: float
    epoch: int | None = None  # of the model, from 0, with the seconds of its evaluation; null: the one left


@dataclass(frozen=True, kw_only=True)
class Finished(Record):
    """The last record of a run that came to its end."""

    frames: int
    reason: str  # why the schedule stopped


RECORD_KINDS: tuple[type[Record], ...] = tuple(Record.__subclasses__())
"""All kinds of records, those defined above."""

LASTING: tuple[type[Record], ...] = (LearnerLost, LearnerJoined, HostLost, HostJoined, CheckpointDamaged)
"""Records of events of processes, hosts and files. They stay when a run goes back to an older checkpoint, while
those of the training since are dropped, for it is trained again."""


def kind_of(record: Record | type[Record]) -> str:
    """Return the name of a record's kind in files: `checkpoint_written` for `CheckpointWritten`."""
    cls = record if isinstance(record, type) else type(record)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


BY_KIND: Mapping[str, type[Record]] = {kind_of(cls): cls for cls in RECORD_KINDS}


_SUM = '"crc32"'
_LAST_FIELD = re.compile(rb',("[^"]*"):"([^"]*)"}$')
_EIGHT_DIGITS = re.compile(rb"[0-9a-f]{8}")


def to_line(record: Record) -> str:
    """Return a record as one line of JSON; `kind` comes first, `crc32` last."""
    plain = json_line({"kind": kind_of(record), **dataclasses.asdict(record)})
    return f'{plain[:-1]},{_SUM}:"{zlib.crc32(plain.encode()):08x}"}}'


def _sum_fault(line: bytes) -> str:
    """Return the fault of a line's checksum; "" if it fits, or if an earlier version wrote none."""
    last = _LAST_FIELD.search(line)
    if last is None:
        return ""
    name, value = last.groups()
    if name == _SUM.encode():
        fits = value == b"%08x" % zlib.crc32(line[: last.start()] + b"}")
    else:
        fits = _EIGHT_DIGITS.fullmatch(value) is None  # no other field ends a record so: it is the name that is damaged
    return "" if fits else "its checksum does not fit its content"


def from_mapping(value: Mapping[str, Any]) -> Record | None:
    """Return the record a mapping describes; None for a kind this version does not know (written by a newer one)."""
    cls = BY_KIND.get(str(value.get("kind")))
    if cls is None:
        return None
    return cls(**known(cls, value))


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def known(cls: type, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of dataclass `cls` that `value` has; null is NaN where the field must be a number."""
    hints = _hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    return {name: _number(value[name], hints[name]) for name in names if name in value}


def _number(value: Any, hint: Any) -> Any:
    """Return a JSON value as its type hint says; null for a float is NaN."""
    if hint is float:
        return float("nan") if value is None else value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list and isinstance(value, list):
        return [_number(item, arguments[0]) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _number(item, arguments[1]) for key, item in value.items()}
    return value


def read_events(path: Path) -> list[Record]:
    """Return all records of an `events.jsonl`.

    A last line cut short by a kill is dropped; the run that wrote it repeats that segment on resume.

    Raises:
        UserError: the file is missing, or a line is damaged; names file and line.
    """
    try:
        with open_regular(path) as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Is {path.parent} a run directory?") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    last = lines.pop()
    if last and not _cut_short(last):
        lines.append(last)
    return list(_parse(path, lines))


def verify_events(folder: Path) -> Iterator[FileCheck]:
    """Hold the lines of all logs of runs below `folder` to their checksums."""
    for path in sorted(folder.rglob(EVENTS)):
        try:
            read_events(path)
        except UserError as error:
            yield FileCheck(path, str(error))
        else:
            yield FileCheck(path, "")


def _cut_short(line: bytes) -> bool:
    """Return True if a last line without a line end was cut short: it is no JSON, nor JSON with something behind it."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.msg != "Extra data"
    except (ValueError, RecursionError):
        return False
    return False


def _parse(path: Path, lines: list[bytes]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        try:
            if fault := _sum_fault(line):
                raise ValueError(fault)
            if (record := from_mapping(parse_json(line))) is not None:
                check(record)
                yield record
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}:{number}: damaged, not a record ({error}). Restore the file; or delete the line, and what it "
                "told is missing."
            ) from error


def check(record: "Record | Results | WordErrors") -> None:
    """Check that every field of a record has its declared type, since edited JSON may hold anything.

    Raises:
        ValueError: a field has another type; names the field.
    """
    cls: type = type(record)
    hints = _hints(cls)
    for one in dataclasses.fields(record):
        value = getattr(record, one.name)
        if not _fits(value, hints[one.name]):
            shown = repr(value) if len(repr(value)) < 40 else repr(value)[:40] + "..."
            raise ValueError(f"{one.name} is {shown}, a value that this field cannot have")


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint is float and isinstance(value, int):
        return abs(value) < 1 << 1000  # beyond, float() overflows
    if hint is int and isinstance(value, int):
        return abs(value) < 1 << 63  # no count is larger, and sums and means of larger ones overflow
    return isinstance(value, hint)


def of_kind(records: Iterable[Record], cls: type[R]) -> list[R]:
    """Return those of `records` that are of class `cls`, in order."""
    return [record for record in records if isinstance(record, cls)]


@dataclass(frozen=True, kw_only=True)
class WordErrors:
    """Word errors of one split, as counts; `wer` in percent."""

    wer: float
    ins: int
    del_: int
    sub: int
    ref: int
    utterances: int
    acoustic_scale: float
    interval: list[float] | None = None  # 95 %, percent, from a bootstrap over utterances; None where there are too few
    subsets: dict[str, "WordErrors"] = field(default_factory=dict)  # by name, where the split has parts

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "WordErrors":
        """Return the word errors in a mapping from JSON, with the key `del`; unknown keys are ignored."""
        fields = known(cls, {("del_" if key == "del" else key): item for key, item in value.items()})
        parts = fields.get("subsets", {})
        return cls(**fields | {"subsets": {name: cls.from_json(part) for name, part in parts.items()}})


def _call_deletions_del(errors: dict[str, Any]) -> None:
    errors["del"] = errors.pop("del_")
    for part in errors["subsets"].values():
        _call_deletions_del(part)


@dataclass(frozen=True, kw_only=True)
class Results(RunIdentity):
    """The summary of one run for machines, `results.json`."""

    FILE: ClassVar[str] = "results.json"

    name: str  # the run directory's own name
    corpus: str
    epochs: int
    frames_seen: int
    frame_cross_entropy: dict[str, float]  # by split, nats per frame
    frame_accuracy: dict[str, float]  # by split, 0 to 1
    wall_seconds: float
    virtual_seconds: float | None
    staleness: dict[str, float]  # mean, largest (versions of the own row)
    consensus_distance: float
    stopped: str
    gatherings: dict[str, int] = field(default_factory=dict)  # closed; contributions that counted, late, left_out
    work: float | None = None  # steps the model has moved by, over those of the learner with the most
    wer: dict[str, WordErrors] = field(default_factory=dict)  # by split; filled by decode and score

    def to_json(self) -> dict[str, Any]:
        """Return the results as a plain mapping; the key `del_` is written `del`."""
        value = dataclasses.asdict(self)
        for errors in value["wer"].values():
            _call_deletions_del(errors)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Results":
        """Return the results in a mapping from `to_json`; unknown keys are ignored."""
        fields = known(cls, value)
        fields["wer"] = {split: WordErrors.from_json(errors) for split, errors in value.get("wer", {}).items()}
        return cls(**fields)

    def write(self, exp: Path) -> None:
        """Write `results.json` into the run directory `exp`."""
        write_checked(exp / self.FILE, self.to_json())

    @classmethod
    def read(cls, exp: Path) -> "Results":
        """Read `results.json` of the run directory `exp`.

        Raises:
            UserError: the file is missing or damaged; says where.
        """
        path = exp / cls.FILE
        told, _ = read_sums(path, "Restore it; or delete it, and `roundelay train` writes it again.")
        try:
            results = cls.from_json(told)
            check(results)
        except (TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{path}: not the results of a run ({error}). Restore the file.") from None
        for split, errors in results.wer.items():
            for name, some in ((split, errors), *((f"{split} {part}", e) for part, e in errors.subsets.items())):
                try:
                    check(some)
                except ValueError as error:
                    raise UserError(f"{path}: wer of {name!r}: {error}. Restore the file.") from None
                if some.interval is not None and len(some.interval) != 2:
                    raise UserError(f"{path}: wer of {name!r}: the interval has not two ends. Restore the file.")
        return results
