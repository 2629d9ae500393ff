"""Trainings on hosts made of network namespaces: `roundelay train`, and the news that its files tell; a script that
calls `roundelay.attach`, and the notes that its learners leave.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.core.files import parse_json
from roundelay.core.live import Live, read_live
from roundelay.core.records import EVENTS, CurvePoint, Record, RunStarted, Segment, from_mapping, of_kind, read_events
from roundelay_lab.namespaces.hosts import Hosts
from roundelay_lab.storm.hosted import HostedCommand, Look, StormCommand
from roundelay_lab.storm.notes import LABEL, NOTE_NAME, note_of


@final
@dataclass(frozen=True)
class TrainingCommand(StormCommand):
    """The command `roundelay train` of a recipe, for all hosts."""

    recipe: str = ""  # name, or file
    options: tuple[str, ...] = ()  # further words of the command

    @property
    def spares_the_first(self) -> tuple[str, ...]:
        return () if self.peers else ("crash", "cut")

    def told(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "options": [*self.options], **super().told()}

    def on(self, hosts: Hosts) -> "HostedTraining":
        return HostedTraining(hosts, self)


@final
class HostedTraining(HostedCommand):
    """A training by `roundelay train` while it runs on hosts."""

    def __init__(self, hosts: Hosts, command: TrainingCommand) -> None:
        super().__init__(hosts, command)
        words = [sys.executable, "-m", "roundelay", "train", command.recipe, "--exp", str(command.exp.resolve())]
        self._words = [*words, *command.options]
        self._tail = EventsTail(command.exp)

    def start(self, host: int) -> None:
        self.processes[host] = [self._run(host, self._words, 0, self.command.learners)]

    def takes_part(self, host: int) -> bool:
        return bool(self._forks(host))  # the server is started once the first host has answered

    def _forks(self, host: int) -> dict[int, int]:
        """Return the processes of a host's fork server, itself and learners among them, with the parent of each."""
        parents: dict[int, int] = {}
        for process in self.hosts.processes(host):
            with suppress(OSError):
                if b"forkserver" in Path(f"/proc/{process}/cmdline").read_bytes():
                    stat = Path(f"/proc/{process}/stat").read_text()
                    parents[process] = int(stat.rpartition(")")[2].split()[1])
        return parents

    def learner(self, host: int, choice: float) -> int | None:
        parents = self._forks(host)
        found = sorted(process for process, parent in parents.items() if parent in parents)
        return found[min(int(choice * len(found)), len(found) - 1)] if found else None

    def look(self) -> Look:
        records = self._tail.new()
        label = next((record.label for record in records if isinstance(record, RunStarted)), "")
        counted = tuple(record.frames for record in records if isinstance(record, CurvePoint | Segment))
        live = self._live()
        ended = all(self.status(host) is not None for host in self.processes)
        living = None if live is None or live.living is None else tuple(live.living)
        return Look(counted, () if ended else living, label, work_of(self._tail.segments()) if ended else ())

    def _live(self) -> Live | None:
        """Return the present state of the run; None if it has not written any."""
        with suppress(UserError):  # damaged: the next one is not
            return read_live(self.command.exp)
        return None


def work_of(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the work of each learner that entered the model, by rank: the number of means it took part in, if all
    learners take means; else frames. Work after a learner's last mean before its death is in no model."""
    whole: list[int] = []
    for segment in segments:
        work = segment.learner_means if any(segment.learner_means) else segment.learner_frames
        whole += [0] * (len(work) - len(whole))
        for rank, number in enumerate(work):
            whole[rank] += number
    return tuple(whole)


@final
class EventsTail:
    """A reader of new records of `events.jsonl`, which may be cut when a run goes back to a checkpoint."""

    def __init__(self, exp: Path) -> None:
        self._path, self._read, self._known = exp / EVENTS, 0, set[str]()

    def segments(self) -> Sequence[Segment]:
        """Return the segments that are in the log now."""
        try:
            return of_kind(read_events(self._path), Segment)
        except UserError:
            return []

    def new(self) -> Sequence[Record]:
        """Return the new records since the last call, in order."""
        try:
            size = self._path.stat().st_size
            if size < self._read:
                self._read = 0
            if size == self._read:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[Record] = []
        for line in whole.decode("utf-8", "replace").splitlines():
            if line in self._known:
                continue
            self._known.add(line)
            with suppress(ValueError, TypeError, AttributeError):
                record = from_mapping(parse_json(line))
                found += [record] if record is not None else []
        return found


@final
@dataclass(frozen=True)
class ScriptCommand(StormCommand):
    """The command that runs a script with arguments once for every learner."""

    words: tuple[str, ...] = ()

    @property
    def spares_the_first(self) -> tuple[str, ...]:
        """Kinds of faults that end the first host's learners: its process ends with the last, and so does every session
        that no other host may lead."""
        if self.peers:
            return ()
        return ("crash", "cut", "kill") if self.learners == 1 else ("crash", "cut")

    @property
    def first_comes_back(self) -> bool:
        return True

    def told(self) -> dict[str, Any]:
        return {"script": [*self.words], **super().told()}

    def on(self, hosts: Hosts) -> "HostedScript":
        return HostedScript(hosts, self)


@final
class HostedScript(HostedCommand):
    """A script while its learners run on hosts."""

    def __init__(self, hosts: Hosts, command: ScriptCommand) -> None:
        super().__init__(hosts, command)
        self._words = command.words
        self._labelled = False

    def start(self, host: int) -> None:
        learners, folder = self.command.learners, self.command.exp.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        others = [one for one in self.processes if one != host]
        if host == 0 and all(self.status(one) is not None for one in others):  # all begin anew, or from a save
            for note in folder.glob("*.note"):
                note.unlink()
        words = [sys.executable, "-m", "roundelay_lab.storm.noted", str(folder), *self._words]
        self.processes[host] = [self._run(host, words, local, learners) for local in range(learners)]

    def learner(self, host: int, choice: float) -> int | None:
        running = [process.pid for process in self.processes[host] if process.poll() is None]
        return running[min(int(choice * len(running)), len(running) - 1)] if running else None

    def look(self) -> Look:
        notes = {}
        for rank in range(self.command.hosts * self.command.learners):
            with suppress(OSError):
                if note := note_of((self.command.exp / NOTE_NAME.format(rank=rank)).read_bytes()):
                    notes[rank] = note
        living: tuple[int, ...] | None = None
        if all(self.status(host) is not None for host in range(self.command.hosts)):
            living = ()
        elif notes:  # the learner with most steps has looked last, or about
            living = max(notes.values(), key=lambda note: note.at).living
        counted = (sum(note.steps for note in notes.values()),) if any(note.steps for note in notes.values()) else ()
        work = tuple(note.steps for _, note in sorted(notes.items()))
        return Look(counted, living, self._label(), work)

    def _label(self) -> str:
        if self._labelled:
            return ""
        label = label_of(self.command.exp)
        self._labelled = bool(label)
        return label


def label_of(exp: Path) -> str:
    """Return the strategy of a script's session, in words; "" before the session is attached."""
    with suppress(OSError):
        return (exp / LABEL).read_text(encoding="utf-8")
    return ""
