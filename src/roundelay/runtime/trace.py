"""Traces: a run on real processes, recorded in enough detail to make it happen again.

A trace is a folder:
    rank-R.bin    32 bytes an event of learner R, in its own order, written at once (they survive a kill)
    carried-R.bin the same of changes of row R by exchanges with other hosts, while its learner went on
    trace.jsonl   the parent's part: the commands, and digests of the states after them; of an attached
                  session, which has no parent, each learner's facts when it begins and when it leaves
    trace-R.jsonl the same of the learners of one of several hosts, the first of which is R: so the folders of all hosts
                  can be laid into one

Rows carry versions, and every event says which versions it met. Between two learners nothing else is needed: the
versions order their events as far as it matters. A gradient is a pure function of snapshot and minibatch, so gradients
are not recorded, only each one's loss and hashes of it and its point, which tell where a repetition first differs.

Legend: P parameters, L learners.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.core.files import json_line, parse_json, unwritable
from roundelay.core.flat import CHUNK
from roundelay.runtime.base import ClusterState, of_centre
from roundelay.runtime.gathering import LEARNT

UNRECORDED = "was this run recorded (`train --record`, `attach(..., record=DIR)`)?"
TRACE_VERSION = 1


class Use(IntEnum):
    """The use that an event makes of a row: none, read, or written."""

    NONE = 0
    READ = 1
    WRITTEN = 2


class Access(NamedTuple):
    """The uses that an event makes of the learner's own row, and of the peer's."""

    mine: Use = Use.NONE
    theirs: Use = Use.NONE

    @property
    def number(self) -> float:
        """Both uses as one number."""
        return float(self.mine + 4 * self.theirs)

    @classmethod
    def from_number(cls, number: float) -> "Access":
        """Return the access with this `number`.

        Raises:
            ValueError, OverflowError: no access has this number.
        """
        theirs, mine = divmod(int(number), 4)
        return cls(Use(mine), Use(theirs))


class Kind(IntEnum):
    """The kind of a learner's event. `mine` and `theirs` are versions before the event."""

    BEGIN = 1  # mine: number of the command; value: of threads, 0: as the parent says
    DRAW = 2  # mine: the minibatch, or a negative number, see procs/memory/arena.py
    READ = 3  # snapshot of the own row
    GRAD = 4  # mine: the minibatch; value: its summed loss
    STEP = 5
    REPLACE = 6
    EXCHANGE = 7  # peer
    FETCH = 8  # peer; theirs
    GONE = 9  # an effect on the row of peer that did not happen, peer being dead
    JOIN = 10  # a new learner took over the row of peer; mine, theirs
    REACH = 11  # any other effect on the row of peer; of each row that it meets the version; value: its access
    COME = 12  # came to a gathering; value: 1 if its contribution counts, else 0
    MET = 13  # its gathering was over, or to be closed; value: 1 if this learner closed it, else 0
    PIECE = 14  # drew from a pass that attached learners share; peer: the sampler; mine: the minibatch, or -1
    HASH = 15  # a gradient; mine, theirs: hashes of the point and of it; value: its weight; peer: its minibatch, or -1
    ASKED = 16  # for an exchange with row peer, of another host; mine: number of the request
    ANSWERED = 17  # took the answer; mine; theirs: the version in it, or -1; value: looks for it, 0: waited
    AWAY = 18  # an effect on the row of peer that did not happen: one of the two is under way to another host
    # Of a row that takes part in an exchange with another host, rather than of its learner:
    BIDDEN = 19  # that exchange begins, which learner peer has asked for; mine: number of the request
    SENT = 20  # went to row peer; mine; theirs: number of the exchange; value: of its terms, -1: they are with peer
    TAKEN = 21  # was changed by that exchange; peer, mine, theirs as in SENT
    # Of a learner:
    VISITED = 22  # an exchange with the centre, peer, of another host, of which the answer is here


ACCESS = {
    Kind.READ: Access(mine=Use.READ),
    Kind.STEP: Access(mine=Use.WRITTEN),
    Kind.REPLACE: Access(mine=Use.WRITTEN),
    Kind.EXCHANGE: Access(Use.WRITTEN, Use.WRITTEN),
    Kind.FETCH: Access(theirs=Use.READ),
    Kind.JOIN: Access(Use.WRITTEN, Use.READ),
    Kind.ANSWERED: Access(mine=Use.READ),
    Kind.SENT: Access(mine=Use.READ),
    Kind.TAKEN: Access(mine=Use.WRITTEN),
    Kind.VISITED: Access(Use.WRITTEN, Use.WRITTEN),
}
"""Access of the kinds that always have the same one, unless that is none. A row that is written may also be read."""


@dataclass(frozen=True)
class TraceEvent:
    """One event of a trace."""

    kind: Kind
    peer: int = -1
    mine: int = -1
    theirs: int = -1
    value: float = 0.0

    @property
    def access(self) -> Access:
        """Uses that the event makes of the two rows.

        Raises:
            ValueError, OverflowError: the event is damaged.
        """
        return Access.from_number(self.value) if self.kind is Kind.REACH else ACCESS.get(self.kind, Access())

    def __str__(self) -> str:  # noqa: PLR0911, PLR0912 one return a kind
        match self.kind:
            case Kind.DRAW:
                return f"draw minibatch {self.mine}" if self.mine >= 0 else "draw nothing"
            case Kind.GRAD:
                return f"gradient of minibatch {self.mine} with loss {self.value!r}"
            case Kind.EXCHANGE | Kind.VISITED:
                return f"exchange of row at version {self.mine} with row {self.peer} at version {self.theirs}"
            case Kind.FETCH | Kind.JOIN:
                return f"{self.kind.name.lower()} of row {self.peer} at version {self.theirs}"
            case Kind.REACH:
                rows = ((f"row {self.peer}", self.access.theirs, self.theirs), ("own row", self.access.mine, self.mine))
                return "effect on " + " and ".join(
                    f"{row} at version {version}, {use.name.lower()}" for row, use, version in rows if use
                )
            case Kind.GONE:
                return f"miss row {self.peer}, whose learner is dead"
            case Kind.ASKED | Kind.BIDDEN:
                return f"{self.kind.name.lower()} for an exchange with row {self.peer}"
            case Kind.ANSWERED:
                return f"answer of row {self.peer}: " + (f"version {self.theirs}" if self.theirs >= 0 else "none")
            case Kind.AWAY:
                return f"miss row {self.peer}, or the own one, which is under way to another host"
            case Kind.SENT | Kind.TAKEN:
                done = self.kind.name.lower()
                return f"row at version {self.mine} {done} in exchange {self.theirs} with row {self.peer}"
            case Kind.COME:
                return "come to a gathering with what " + ("counts" if self.value else "is left out")
            case Kind.MET:
                return "close a gathering" if self.value else "go on from a gathering"
            case Kind.PIECE:
                return f"minibatch {self.mine} of sampler {self.peer}"
            case Kind.HASH:
                gradient, point = (f"{number % (1 << 64):016x}" for number in (self.theirs, self.mine))
                of = f"of minibatch {self.peer}" if self.peer >= 0 else f"of weight {self.value:g}"
                return f"gradient {gradient} {of} at parameters {point}"
        return f"{self.kind.name.lower()} at version {self.mine}"


_FORMAT = struct.Struct("<iiqqd")


class Trace(Protocol):
    """A recorder of one learner's events."""

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None:
        """Note an event; see `Kind` for the numbers."""


class NoTrace:
    """A recorder that drops all events, for runs that are not recorded."""

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None: ...


NO_TRACE: Trace = NoTrace()


CHUNK_WORDS = CHUNK // 2
"""Words of 64 bits in a chunk."""


def hash_of(vector: Tensor) -> int:
    """Return a hash of 64 bits of a vector (P,), which differs where a single element differs. The words of each chunk
    are summed, and the sums hashed, which is as fast as the vector can be read; the order of words within a chunk is
    not looked at."""
    even = vector.numel() // 2 * 2
    words, last = vector[:even].view(torch.int64), vector[even:].view(torch.int32).long()
    whole = words.numel() // CHUNK_WORDS * CHUNK_WORDS
    sums = torch.cat([words[:whole].view(-1, CHUNK_WORDS).sum(1), words[whole:].sum()[None], last])
    return int.from_bytes(hashlib.blake2b(sums.cpu().numpy().tobytes(), digest_size=8).digest(), "little", signed=True)


def note_gradient(trace: Trace, point: Tensor, gradient: Tensor, weight: float, minibatch: int = -1) -> None:
    """Note in `trace` a gradient (P,), its weight, the point (P,) where it was computed, and the number of its
    minibatch in the plan (-1: it is of no plan)."""
    trace.note(Kind.HASH, minibatch, hash_of(point), hash_of(gradient), weight)


class TraceWriter:
    """A writer of a learner's part of a trace. It is unbuffered: each event is a system call, of two microseconds.

    Args:
        new: True if the file must not exist yet.
        carried: True for the events of row `rank` in exchanges between hosts.

    Raises:
        OSError: the file cannot be written, or exists already.
    """

    def __init__(self, folder: Path, rank: int, new: bool = False, carried: bool = False) -> None:
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_EXCL if new else 0)
        self._path = _path(folder, rank, carried)
        self._file = os.open(self._path, how, 0o644)

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None:
        """Note an event.

        Raises:
            UserError: the disk is full, or the file cannot be written for another reason.
        """
        try:
            os.write(self._file, _FORMAT.pack(kind, peer, mine, theirs, value))
        except OSError as error:
            raise unwritable(self._path, error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def session_folder(record: Path, number: int) -> Path:
    """Return the folder of the trace of session `number`, from 0, in a record of a script's attached sessions."""
    return record / f"session-{number + 1}"


def _path(folder: Path, rank: int, carried: bool = False) -> Path:
    return folder / f"{'carried' if carried else 'rank'}-{rank}.bin"


def has_events(folder: Path, rank: int) -> bool:
    """Return True if `folder` has the file of the events of learner `rank`."""
    return _path(folder, rank).exists()


def read_events(folder: Path, rank: int, carried: bool = False) -> Iterator[TraceEvent]:
    """Yield the events of learner `rank` in order; with `carried` those of its row between hosts, which may have no
    file.

    Raises:
        UserError: the file is missing or not a trace; names it.
    """
    path = _path(folder, rank, carried)
    if carried and not path.exists():
        return
    data = _read(path)
    for number in range(len(data) // _FORMAT.size):
        kind, *rest = _FORMAT.unpack_from(data, number * _FORMAT.size)
        try:
            event = TraceEvent(Kind(kind), *rest)
            event.access  # noqa: B018 that it has one is checked here
        except (ValueError, OverflowError):
            raise UserError(f"{path}: event {number} is of unknown kind {kind}: damaged, or not a trace.") from None
        yield event


def exchange_of(row: int, event: TraceEvent) -> tuple[int, int]:
    """Return the row that travels, which is that of the lower rank, and the number of the exchange between hosts that
    an event of `row` belongs to."""
    return min(row, event.peer), event.theirs


ARRAY = np.dtype([("kind", "<i4"), ("peer", "<i4"), ("mine", "<i8"), ("theirs", "<i8"), ("value", "<f8")])
"""Type of an event in an array."""


def read_array(folder: Path, rank: int, carried: bool = False) -> NDArray[Any]:
    """Return the events of learner `rank`, or with `carried` of its row between hosts, as one array.

    Raises:
        UserError: the file is missing or not a trace; names it.
    """
    path = _path(folder, rank, carried)
    data = b"" if carried and not path.exists() else _read(path)
    events = np.frombuffer(data, ARRAY, len(data) // ARRAY.itemsize)
    if not np.isin(events["kind"], list(Kind)).all():
        raise UserError(f"{path}: has an event of unknown kind: damaged, or not a trace.")
    return events


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {UNRECORDED}") from error


Digests = dict[str, str]


def digests(state: ClusterState, living: tuple[int, ...]) -> Digests:
    """Return a short hash of every living learner's vectors and counters, and of the centre, by name. Spans that
    gatherings have learnt are left out, since a replay has no clock."""
    found = {}
    for name, value in state.vectors.items():
        if name == LEARNT:
            continue
        for rank in (0,) if of_centre(name) else living:
            found[name if of_centre(name) else f"{name} of learner {rank}"] = hashlib.blake2b(
                value[rank].contiguous().numpy().tobytes(), digest_size=8
            ).hexdigest()
    for name, numbers in state.integers.items():
        for rank in living:
            found[f"{name} of learner {rank}"] = str(numbers[rank])
    return found


ROWS_ON = "rows on"
"""Key, among the facts of a trace's start, of the type of device that held the rows; missing: the arena held them."""


HOSTS = "hosts"
"""Among the start's facts: the learners of each host, of several."""


class Recorder:
    """A writer of the parent's part of a trace, which appends to an existing one."""

    FILE = "trace.jsonl"

    def __init__(self, folder: Path, facts: Mapping[str, Any], initial: ClusterState) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        entries = list(read_entries(folder)) if (folder / self.FILE).exists() else []
        self.commands: int = sum(entry["what"] == "command" for entry in entries)
        self._known = [entry["digests"] for entry in entries if "digests" in entry]
        self._write("start", version=TRACE_VERSION, **facts, digests=self._digest(initial))

    def command(self, command: dict[str, Any]) -> int:
        """Note that learners are about to be told `command`; return its number."""
        self.commands += 1
        self._write("command", number=self.commands, **command)
        return self.commands

    def done(self, state: ClusterState, living: tuple[int, ...], lost: tuple[int, ...]) -> None:
        """Record the end of the last command, with digests of the state after it."""
        found = digests(state, living)
        self._known.append(found)
        self._write("done", number=self.commands, living=living, lost=lost, digests=found)

    def lost(self, ranks: Sequence[int]) -> None:
        """Note that the host of these learners is lost, or comes when the others have begun."""
        self._write("lost", ranks=ranks)

    def load(self, state: ClusterState) -> None:
        """Record that the state was replaced from outside: by an earlier one, or by one saved beside the trace."""
        found = self._digest(state)
        file = None
        if found not in self._known:
            file = f"state-{self.commands}.safetensors"
            data = {name: value.contiguous() for name, value in state.vectors.items()}
            (self._folder / file).write_bytes(save(data))
        self._known.append(found)
        self._write("load", file=file, integers=state.integers if file else None, digests=found)

    def _digest(self, state: ClusterState) -> Digests:
        return digests(state, tuple(range(len(state.vectors["row"]))))

    def _write(self, what: str, **entry: Any) -> None:
        write_entry(self._folder, what, **entry)


def entries_of_host(here: Sequence[int] | None) -> str:
    """Return the name of the file with the entries of the host of ranks `here`; None: there is one host."""
    return Recorder.FILE if here is None else f"trace-{here[0]}.jsonl"


def write_entry(folder: Path, what: str, into: str = Recorder.FILE, **entry: Any) -> None:
    """Append an entry to the file named `into`; several processes may append to it.

    Raises:
        UserError: the disk is full, or the file cannot be written for another reason.
    """
    line = json_line({"what": what, **entry}) + "\n"
    try:
        with open(folder / into, "ab", buffering=0) as file:
            file.write(line.encode())
    except OSError as error:
        raise unwritable(folder / into, error) from error


def read_entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of the parent's part of a trace, in order, or of all hosts' parts; a last line cut short by a
    kill is left out.

    Raises:
        UserError: a file is missing, or not a trace; names file and line.
    """
    for path in sorted(folder.glob("trace-*.jsonl")) or [folder / Recorder.FILE]:
        yield from _entries(path)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {UNRECORDED}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a trace: not UTF-8 text (byte {error.start}). Restore the file.") from error
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = parse_json(line)
            entry["what"]
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path}:{number}: not an entry of a trace.") from None
        if entry.get("version", TRACE_VERSION) != TRACE_VERSION:
            raise UserError(f"{path}:{number}: trace version {entry['version']}, this program reads {TRACE_VERSION}.")
        yield entry


def recorded_learners(folder: Path, entries: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the entries in which learners of an attached session describe themselves, by rank.

    Raises:
        UserError: the entries of some learners are missing.
    """
    found = {entry["rank"]: entry for entry in entries if entry["what"] == "learner"}
    if not found:
        raise UserError(f"{folder}: no learner has begun in this record.")
    learners = max(entry["learners"] for entry in found.values())
    if missing := sorted({*range(learners)} - {*found}):
        raise UserError(
            f"{folder}: the record of {learners} learners, of which {missing} are not in it: they have not begun, or "
            "were on another host, whose folder belongs into this one as well."
        )
    return found


def recorded_hosts(folder: Path) -> list[list[int]]:
    """Return the ranks of the learners of each host in the run whose trace is in `folder`; []: all were on one host.

    Raises:
        UserError: the file of the entries is missing, or not a trace; names it.
    """
    found: list[list[int]] = next(read_entries(folder), {}).get(HOSTS, [])
    return found


def load_state(folder: Path, entry: Mapping[str, Any]) -> ClusterState:
    """Return the state saved with a `load` entry.

    Raises:
        UserError: the state's file is missing or damaged.
    """
    path = folder / entry["file"]
    try:
        return ClusterState(load(path.read_bytes()), entry["integers"])
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error
