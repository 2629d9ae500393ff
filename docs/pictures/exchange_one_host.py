"""One exchange on one host, and another that comes meanwhile: what the code of rows does with locks and versions.

Two real exchanges are made with locks and versions that write down what happens to them; the picture shows their notes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _ink import arrow, box, element, line, paragraph, picture, text

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Exchange
from roundelay.core.flat import CHUNK
from roundelay.runtime.rows import Row, reach

LOW, HIGH = 1, 3
"""Ranks of the two learners. The one of the higher rank begins."""
CHUNKS = 2
X = {"learner 1": 96.0, "row 1": 336.0, "row 3": 578.0, "learner 3": 814.0}
HUE = {LOW: "amber", HIGH: "blue"}
WIDTH, TOP, STEP = 910.0, 124.0, 30.0


@dataclass(frozen=True)
class Note:
    """An event of a row or a rule, and the learner that caused it."""

    what: str
    learner: int
    rank: int = -1
    value: Any = None


class Waits(Exception):
    """A lock is taken."""


class NotingLock:
    """The lock of a row."""

    def __init__(self, rank: int, notes: "Notes") -> None:
        self._rank, self._notes, self._holder = rank, notes, -1

    def acquire(self) -> None:
        if self._holder >= 0:
            self._notes.add("wait", self._rank)
            raise Waits
        self._holder = self._notes.learner
        self._notes.add("lock", self._rank)

    def try_acquire(self) -> bool:
        if self._holder >= 0:
            return False
        self.acquire()
        return True

    def release(self) -> None:
        self._holder = -1
        self._notes.add("unlock", self._rank)


class Notes:
    """Events so far, and the learner whose turn it is."""

    def __init__(self) -> None:
        self.learner, self.list = HIGH, list[Note]()

    def add(self, what: str, rank: int = -1, value: Any = None) -> None:
        self.list.append(Note(what, self.learner, rank, value))


class NotingVersions(np.ndarray[Any, Any]):
    """Versions, in half mutations."""

    notes: Notes

    def __setitem__(self, rank: Any, value: Any) -> None:
        super().__setitem__(rank, value)
        self.notes.add("version", int(rank), int(value))


def happened() -> list[Note]:
    """Learner 3 exchanges with learner 1; while it does, learner 1 begins an exchange with learner 3."""
    notes = Notes()
    versions = np.zeros(4, np.int64).view(NotingVersions)
    np.ndarray.__setitem__(versions, slice(None), [0, 24, 0, 34])
    versions.notes = notes
    rows = {r: Row(r, torch.full((CHUNKS * CHUNK,), float(r)), versions, NotingLock(r, notes)) for r in (LOW, HIGH)}

    def rule(mine: torch.Tensor, theirs: torch.Tensor) -> None:
        before, number = f"{theirs[0]:g} and {mine[0]:g}", 1 + sum(note.what == "chunk" for note in notes.list)
        pair_average_(mine, theirs)
        notes.add("chunk", value=f"chunk {number}: {before} become {theirs[0]:g} and {mine[0]:g}")
        if number == 1:
            notes.learner = LOW
            try:
                reach(rows[LOW], rows[HIGH], Exchange(HIGH, pair_average_))
            except Waits:
                notes.learner = HIGH

    reach(rows[HIGH], rows[LOW], Exchange(LOW, rule))
    notes.learner = LOW
    reach(rows[LOW], rows[HIGH], Exchange(HIGH, pair_average_))
    return notes.list


def _version(halves: int) -> str:
    return f"{halves // 2}" + ("½" if halves % 2 else "")


def _bars(notes: list[Note], at: list[float]) -> str:
    """Locks held, and the wait for one."""
    drawn = []
    since: dict[str, tuple[float, int]] = {}
    for note, y in zip(notes, at, strict=True):
        if note.what == "wait":
            since["wait"] = (y, note.learner)
        if note.what == "lock":
            since[f"row {note.rank}"] = (y, note.learner)
            if since.get("wait", (0, -1))[1] == note.learner:
                begin, _ = since.pop("wait")
                x = X[f"learner {note.learner}"]
                drawn += [box(x - 6, begin, 12, y - begin, "grey", 4)]
                drawn += [text("waits", x + 14, (begin + y) / 2 + 4, "small quiet")]
        if note.what == "unlock":
            begin, learner = since.pop(f"row {note.rank}")
            drawn.append(box(X[f"row {note.rank}"] - 6, begin, 12, y - begin, HUE[learner], 4))
    return "".join(drawn)


def _event(note: Note, y: float) -> str:
    hue, asker = HUE[note.learner], X[f"learner {note.learner}"]
    if note.what == "chunk":
        middle = (X["row 1"] + X["row 3"]) / 2
        both = arrow(middle, y, X["row 1"] + 8, y, f"{hue}-line", f"{hue}-mark")
        both += arrow(middle, y, X["row 3"] - 8, y, f"{hue}-line", f"{hue}-mark")
        return both + text(note.value, middle, y - 6, "small", "middle")
    x = X[f"row {note.rank}"]
    if note.what == "version":
        left = note.rank == LOW
        mark = element("circle", cx=x, cy=y, r=3.2, class_=f"{hue}-mark")
        return mark + text(
            f"version {_version(note.value)}", x + (-14 if left else 14), y + 4, "small", "end" if left else "start"
        )
    side = 8 if asker > x else -8
    words = {"lock": f"lock row {note.rank}", "unlock": f"unlock row {note.rank}", "wait": f"lock row {note.rank}?"}
    ends = (asker - side, y, x + side, y) if note.what != "unlock" else (x + side, y, asker - side, y)
    style = f"{hue}-line dashed" if note.what == "wait" else f"{hue}-line"
    where = X["learner 3"] - 20 if asker > x else X["learner 1"] + 20
    return arrow(*ends, style, f"{hue}-mark") + text(
        words[note.what], where, y - 6, "small", "end" if asker > x else "start"
    )


def draw() -> str:
    """The picture."""
    notes = happened()
    own = [note for note in notes if note.learner == HIGH]
    shown = [note for note in notes if note in own or note.what in ("lock", "wait", "unlock")]
    at = [TOP + STEP * (n + 1) for n in range(len(shown))]
    bottom = at[-1] + 24
    parts = []
    for name, x in X.items():
        hue = "grey" if name.startswith("row") else HUE[int(name[-1])]
        parts += [line((x, TOP - 4), (x, bottom), class_="rule"), box(x - 52, TOP - 32, 104, 28, hue)]
        parts.append(text(name, x, TOP - 13, anchor="middle"))
    parts.append(_bars(shown, at))
    parts += [_event(note, y) for note, y in zip(shown, at, strict=True)]
    said = [
        "Whoever needs two rows takes the lock of the lower rank first. All do, so two learners that want each other",
        "never deadlock. A version counts half mutations: a half is left behind by a writer that was killed.",
    ]
    return picture(
        WIDTH,
        bottom + 24,
        "One exchange on one host, and another that comes meanwhile",
        paragraph(said, 28, 60, "small quiet"),
        *parts,
    )
