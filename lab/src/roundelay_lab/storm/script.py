"""A training script of anybody's, which calls `roundelay.attach`, on hosts; and the notes that its learners leave."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from roundelay_lab.namespaces.hosts import Hosts
from roundelay_lab.storm.hosted import HostedCommand, Look, StormCommand
from roundelay_lab.storm.notes import LABEL, NOTE_NAME, note_of


@final
@dataclass(frozen=True)
class ScriptCommand(StormCommand):
    """A script and its arguments, run once for every learner."""

    words: tuple[str, ...] = ()

    @property
    def spares_the_first(self) -> tuple[str, ...]:
        """The first host's process ends with its last learner, and with it every session that nobody else may lead."""
        if self.peers:
            return ()
        return ("crash", "cut", "kill") if self.learners == 1 else ("crash", "cut")

    @property
    def first_comes_back(self) -> bool:
        return True

    @property
    def comes_back(self) -> bool:
        """A host whose learners have all ended does, under asynchronous strategies."""
        return True

    def told(self) -> dict[str, Any]:
        return {
            "script": [*self.words],
            "hosts": self.hosts,
            "learners": self.learners,
            "link": self.link,
            "peers": self.peers,
        }

    def on(self, hosts: Hosts) -> "HostedScript":
        return HostedScript(hosts, self)


@final
class HostedScript(HostedCommand):
    """A script while it runs."""

    def __init__(self, hosts: Hosts, command: ScriptCommand) -> None:
        super().__init__(hosts, command)
        self._words = command.words
        self._labelled = False

    def start(self, host: int) -> None:
        learners, folder = self.command.learners, self.command.exp.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        others = [one for one in self.processes if one != host]
        if host == 0 and all(self.status(one) is not None for one in others):  # all begin anew, or from what was saved
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
        elif notes:  # whoever has taken most steps has looked last, or about
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
    """Return the strategy of a script's session, in words; empty before it has attached."""
    with suppress(OSError):
        return (exp / LABEL).read_text(encoding="utf-8")
    return ""
