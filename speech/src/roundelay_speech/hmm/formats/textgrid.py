"""Praat's TextGrids, as the Montreal Forced Aligner writes them: intervals with a text, in tiers.

Praat reads only values that stand free: numbers, texts in quotes (a quote inside is doubled) and flags (`<exists>`). So
the long form (`xmin = 0.5`) and the short one (`0.5`) are one sequence of values:

    "ooTextFile" "TextGrid" start end <exists> tiers ["IntervalTier" name start end intervals [start end text] ...]

All times are in seconds. Phones of a TextGrid that is imported are cut into three states here.

Legend: T frames of one utterance.
"""

import codecs
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.progress import Progress, tracked
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.alignment import AlignSummary
from roundelay_speech.hmm.formats.interchange import Foreign, ImportConfig, write_import
from roundelay_speech.hmm.formats.kaldi_tying import POSITION
from roundelay_speech.hmm.topology import SILENCE, STATES
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.prepared import Corpus

_TOKEN = re.compile(r'"((?:[^"]|"")*)"|<([^<>\s]*)>|([^\s"]\S*)|(")')
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_TOGETHER = 1e-3  # s: intervals that end and begin this close to each other meet


@dataclass(frozen=True)
class Interval:
    """A labelled interval from `start` to `end` in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Tier:
    """A tier of a TextGrid: successive intervals without gaps."""

    name: str
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class TextGrid:
    """A TextGrid: its tiers of intervals, without those of points."""

    start: float
    end: float
    tiers: tuple[Tier, ...]


class _Values:
    """A reader of the free values of a TextGrid, one after the other."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._values: list[tuple[str | float, bool, int]] = []  # value, whether it is a flag, line
        line, last = 1, 0
        comment = -1  # line of a comment
        for found in _TOKEN.finditer(text):
            line += text.count("\n", last, found.start())
            last = found.start()
            if line == comment:
                continue
            quoted, flag, word, odd = found.groups()
            if quoted is not None:
                self._values.append((quoted.replace('""', '"'), False, line))
            elif flag is not None:
                self._values.append((flag, True, line))
            elif odd:
                raise UserError(f"{path}:{line}: a text without its closing quote.")
            elif word.startswith("!"):
                comment = line
            elif _NUMBER.fullmatch(word):
                self._values.append((float(word), False, line))
        self._at = 0

    def fault(self, what: str) -> UserError:
        if self._at >= len(self._values):
            return UserError(f"{self._path}: cut short: expected {what} where the file ends. Get the file again.")
        value, _, line = self._values[self._at]
        return UserError(f"{self._path}:{line}: expected {what}, found {str(value)[:60]!r}.")

    def text(self, what: str) -> str:
        if self._at >= len(self._values) or not isinstance(self._values[self._at][0], str):
            raise self.fault(what)
        self._at += 1
        return str(self._values[self._at - 1][0])

    def number(self, what: str) -> float:
        if self._at >= len(self._values) or isinstance(self._values[self._at][0], str):
            raise self.fault(what)
        if not math.isfinite(value := float(self._values[self._at][0])):
            raise self.fault(what)
        self._at += 1
        return value

    def count(self, what: str) -> int:
        value = self.number(what)
        if not 0 <= value <= len(self._values) - self._at or value != int(value):
            self._at -= 1
            raise self.fault(f"{what}, not more than the file has left")
        return int(value)

    def line(self) -> int:
        """Return the line of the value that was read last."""
        return self._values[max(0, self._at - 1)][2]


def read_textgrid(path: Path) -> TextGrid:
    """Read a TextGrid, long or short, UTF-8 or UTF-16.

    Raises:
        UserError: the file is no TextGrid or cut short, or intervals overlap or leave gaps; names the line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    try:
        wide = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: neither UTF-8 nor UTF-16 text (byte {error.start}).") from None
    values = _Values(path, text)
    if values.text('"ooTextFile"') != "ooTextFile" or values.text('"TextGrid"') != "TextGrid":
        raise UserError(f'{path}:{values.line()}: not a TextGrid in text form (no "ooTextFile" "TextGrid").')
    start, end = values.number("its start"), values.number("its end")
    if values.text("<exists>") != "exists":
        raise UserError(f"{path}:{values.line()}: a TextGrid without tiers.")
    tiers = []
    for _ in range(values.count("the number of tiers")):
        kind, line = values.text("the class of a tier"), values.line()
        name = values.text("the name of a tier")
        values.number("a tier's start")
        values.number("a tier's end")
        size = values.count("the number of a tier's intervals")
        if kind == "IntervalTier":
            tiers.append(Tier(name, _intervals(path, values, size)))
        elif kind == "TextTier":
            for _ in range(size):
                values.number("the time of a point")
                values.text("the text of a point")
        else:
            raise UserError(f"{path}:{line}: a tier of the unknown class {kind[:60]!r}.")
    return TextGrid(start, end, tuple(tiers))


def _intervals(path: Path, values: _Values, size: int) -> tuple[Interval, ...]:
    found: list[Interval] = []
    for number in range(1, size + 1):
        start, end = values.number("an interval's start"), values.number("an interval's end")
        text = values.text("an interval's text")
        if end < start or (found and abs(start - found[-1].end) > _TOGETHER):
            raise UserError(
                f"{path}:{values.line()}: interval {number} from {start:g} to {end:g} s does not follow the one before."
            )
        found.append(Interval(start, end, text))
    return tuple(found)


def write_textgrid(path: Path, grid: TextGrid) -> None:
    """Write a TextGrid in the long form, times to the nanosecond."""
    write_text(path, textgrid_text(grid))


def textgrid_text(grid: TextGrid) -> str:
    """Return a TextGrid as text in the long form, times to the nanosecond."""
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', ""]
    lines += [
        f"xmin = {_seconds(grid.start)}",
        f"xmax = {_seconds(grid.end)}",
        "tiers? <exists>",
        f"size = {len(grid.tiers)}",
        "item []:",
    ]
    for number, tier in enumerate(grid.tiers, 1):
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(tier.name)}"]
        lines += [f"        xmin = {_seconds(grid.start)}", f"        xmax = {_seconds(grid.end)}"]
        lines += [f"        intervals: size = {len(tier.intervals)}"]
        for place, interval in enumerate(tier.intervals, 1):
            lines += [f"        intervals [{place}]:", f"            xmin = {_seconds(interval.start)}"]
            lines += [f"            xmax = {_seconds(interval.end)}", f"            text = {_quoted(interval.text)}"]
    return "\n".join(lines) + "\n"


def _seconds(value: float) -> float:
    return round(value, 9)


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def without_gaps(intervals: Sequence[Interval], start: float, end: float) -> list[Interval]:
    """Cut intervals to `start` and `end`, and fill gaps with empty ones."""
    inside = [
        Interval(max(i.start, start), min(i.end, end), i.text) for i in intervals if i.end > start and i.start < end
    ]
    if not inside:
        return [Interval(start, end, "")]
    filled = [inside[0]]
    for one, other in pairwise(inside):
        if other.start - one.end > _TOGETHER:
            filled.append(Interval(one.end, other.start, ""))
        filled.append(other)
    if filled[0].start > start:
        filled.insert(0, Interval(start, filled[0].start, ""))
    if filled[-1].end < end:
        filled.append(Interval(filled[-1].end, end, ""))
    return filled


_STRESS = re.compile(r"(.*[^0-2])[0-2]")
_SILENCES = frozenset({"", "sil", "sp", "<eps>"})


def import_textgrids(
    corpus: Corpus, store: FeatureStore, folder: Path, config: ImportConfig, out: Path, progress: Progress
) -> AlignSummary:
    """Import TextGrids: one for each utterance (ID.TextGrid) or recording, in `folder` or below it.

    Raises:
        UserError: a file is broken, or too many utterances are left out.
    """
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.TextGrid")):
        if path.stem in files:
            raise UserError(f"{path}: {files[path.stem]} is of the same name. Keep one of them.")
        files[path.stem] = path
    if not files:
        raise UserError(f"{folder}: no TextGrid here (*.TextGrid).")
    utterances = corpus.utterances
    read: dict[str, Foreign | str] = {}
    kept: tuple[Path, TextGrid] | None = None  # the utterances of a recording follow each other
    for u in tracked(progress, "importing TextGrids", utterances):
        own = files.get(u.id) or files.get(u.recording_id)
        if own is None:
            continue
        if kept is None or kept[0] != own:
            kept = own, read_textgrid(own)
        offset = 0.0 if own.stem == u.id else u.start
        read[u.id] = _from_grid(kept[1], u, offset, corpus.lexicon, store, config)
    return write_import(corpus, store, read, None, config, out, f"textgrid: {folder}")


def phone_tier(grid: TextGrid, speaker: str) -> Tier | None:
    """Return the tier of phones: `phones`, or the speaker's own (`SPEAKER - phones`) if there are several; None if
    there is none."""
    own = [tier for tier in grid.tiers if tier.name.lower() == "phones" or tier.name.lower().endswith("- phones")]
    named = [tier for tier in own if tier.name.lower() == f"{speaker} - phones".lower()]
    return named[0] if named else own[0] if len(own) == 1 else None


def phone_id(label: str, lexicon: Lexicon) -> int | None:
    """Return the id of a phone by its name, unchanged or without its position in the word or its stress; None if
    unknown."""
    if label.lower() in _SILENCES:
        return SILENCE
    names = [label]
    for pattern in (POSITION, _STRESS):
        names += [found[1] for name in names if (found := pattern.fullmatch(name))]
    return next((lexicon.phone_ids[name] for name in names if name in lexicon.phone_ids), None)


def _from_grid(
    grid: TextGrid, u: Utterance, offset: float, lexicon: Lexicon, store: FeatureStore, config: ImportConfig
) -> Foreign | str:
    """Return the alignment of an utterance by its TextGrid, or the reason that there is none."""
    tier = phone_tier(grid, u.speaker)
    if tier is None:
        return f"no tier `phones`, nor one `{u.speaker} - phones`"
    intervals = without_gaps(tier.intervals, offset, offset + u.duration)
    centres = offset + store.frame_times(store.frames(u.id))
    ends = np.searchsorted(centres, [i.end for i in intervals], side="right")
    ends[-1] = len(centres)
    phones: list[int] = []
    bounds: list[int] = []
    for interval, end in zip(intervals, ends.tolist(), strict=True):
        phone = phone_id(interval.text.strip(), lexicon)
        if phone is None:
            return f"phone {interval.text.strip()!r}, which the lexicon does not have"
        if phones and phone == phones[-1] == SILENCE:
            bounds[-1] = end
        elif phone != SILENCE or end > (bounds[-1] if bounds else 0):
            phones.append(phone)
            bounds.append(end)
    if not phones:
        return "no phones in its TextGrid"
    spread = at_least(bounds, STATES)
    if spread is None:
        return f"too short: {len(centres)} frames for {counted(len(phones), 'phone')}"
    return _with_states(phones, np.diff([0, *spread]), config.shares)


def at_least(bounds: Sequence[int], least: int) -> list[int] | None:
    """Move the ends of intervals as little as needed for each to have `least` frames; return None if there are too few
    frames."""
    total = bounds[-1]
    if total < least * len(bounds):
        return None
    moved: list[int] = []
    for end in bounds:
        moved.append(max(end, (moved[-1] if moved else 0) + least))
    moved[-1] = total
    for place in range(len(moved) - 2, -1, -1):
        moved[place] = min(moved[place], moved[place + 1] - least)
    return moved


def _with_states(phones: Sequence[int], sizes: npt.NDArray[np.int64], shares: Sequence[float]) -> Foreign:
    """Cut each phone into its states by their shares, each of at least a frame."""
    upto = np.cumsum(shares) / sum(shares)
    states = []
    for size in sizes.tolist():
        first = min(max(1, round(upto[0] * size)), size - 2)
        second = min(max(first + 1, round(upto[1] * size)), size - 1)
        states.append(np.repeat(np.arange(STATES, dtype=np.int8), [first, second - first, size - second]))
    return Foreign(np.repeat(np.array(phones, np.int16), sizes), np.concatenate(states))
