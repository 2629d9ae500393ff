"""The manifest: one utterance per line of JSON, with Lhotse's field names.

All times are in seconds and lie on the sample grid: `start` and `duration` times `sampling_rate` are whole numbers (to
within rounding), and `num_samples` is the length of the utterance, not of the recording it was cut from.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay_speech.data.problems import counted, listing

DISTORTIONS = ("noise", "telephone", "room", "level")
"""Kinds of copies that sound otherwise (audio/distortion.py)."""


@dataclass(frozen=True)
class Utterance:
    """One stretch of speech by one speaker, its words, and where its samples are."""

    id: str
    recording_id: str
    path: str  # absolute, or relative to the manifest's folder
    start: float  # s, in the recording
    duration: float  # s
    channel: int  # from 0
    sampling_rate: int  # Hz
    num_samples: int  # of this utterance
    speaker: str
    text: str  # words with single blanks between them
    gender: str | None = None
    language: str | None = None
    speed: float = 1.0  # that the recording is played at: the utterance lasts duration / speed
    subset: str | None = None  # part of the corpus that is scored apart: swb, callhm; clean, other
    distortion: str = ""  # one of DISTORTIONS; empty: as recorded
    warp: float = 1.0  # of the frequencies of its filterbanks: above 1, a shorter vocal tract than the speaker's

    @property
    def words(self) -> list[str]:
        """The transcript, word by word."""
        return self.text.split()

    @property
    def copied(self) -> str:
        """Kind of copy of a recording that this utterance is, in words; "" for the recording itself."""
        if self.speed != 1:
            return f"a copy at speed {self.speed:g}"
        if self.distortion:
            return f"a copy with {self.distortion}"
        return f"a copy at warp {self.warp:g}" if self.warp != 1 else ""

    @property
    def start_sample(self) -> int:
        """Number of the first sample in the recording."""
        return round(self.start * self.sampling_rate)


_TYPES: Mapping[str, tuple[type, ...]] = {
    name: (float, int) if hint is float else get_args(hint) or (hint,)
    for name, hint in get_type_hints(Utterance).items()
}
_MOST = 2**48  # beyond any sound; numbers of JSON have no end
_SURROGATE = re.compile("[\ud800-\udfff]")
_OPTIONAL = {field.name for field in dataclasses.fields(Utterance) if field.default is not dataclasses.MISSING}
_WANTED = {str: "text", float: "a number", int: "a whole number"}


def write_manifest(path: Path, utterances: Sequence[Utterance], *, words: bool = True) -> None:
    """Write the utterances in their order, atomically; with `words` False their transcripts may be empty.

    Raises:
        UserError: `read_manifest` would refuse some utterances; lists all.
    """
    problems = [f"{utterance.id}: {problem}" for utterance in utterances for problem in problems_of(utterance, words)]
    problems += [f"{name}: the id occurs more than once" for name in repeated(u.id for u in utterances)]
    if problems:
        raise UserError(f"{path}: these utterances cannot be written:\n{listing(problems)}")
    records = [dataclasses.asdict(u) for u in utterances]
    for record in records:
        for name, usual in (("speed", 1), ("warp", 1), ("distortion", "")):
            if record[name] == usual:
                del record[name]
    lines = [json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records]
    write_text(path, "".join(line + "\n" for line in lines))


def read_manifest(path: Path, *, words: bool = True) -> list[Utterance]:
    """Read and check a manifest; unknown fields are ignored, since Lhotse has more. With `words` False transcripts may
    be empty.

    Raises:
        UserError: missing file; broken JSON, missing or mistyped fields, impossible times, repeated ids, empty
            transcripts. Everything wrong is listed together, each with file:line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Make it with `roundelay prepare`.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    utterances: list[Utterance] = []
    problems: list[str] = []
    lines_of: dict[str, int] = {}
    # Not splitlines(): a transcript may hold U+2028 and the like, which JSON leaves as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        utterance, faults = _parse(line)
        if utterance is not None:
            faults += problems_of(utterance, words)
            if utterance.id in lines_of:
                faults.append(f"the id {utterance.id} is already on line {lines_of[utterance.id]}")
            lines_of.setdefault(utterance.id, number)
            utterances.append(utterance)
        problems += [f"{path}:{number}: {fault}" for fault in faults]
    if problems:
        raise UserError(
            f"{path}: {counted(len(problems), 'fault')} in the manifest; mend or delete these:\n{listing(problems)}"
        )
    return utterances


def _parse(line: str) -> tuple[Utterance | None, list[str]]:
    """Parse a line of the manifest; return the utterance, or the line's faults."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return None, [f"not valid JSON at column {error.colno} ({error.msg})"]
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        return None, [f"not valid JSON ({error})"]
    if not isinstance(record, dict):
        return None, ["not a JSON object"]
    faults = [fault for name in _TYPES if (fault := _mistyped(record, name))]
    if faults:
        return None, faults
    fields: dict[str, Any] = {name: record[name] for name in _TYPES if name in record}
    fields |= {"start": float(fields["start"]), "duration": float(fields["duration"])}
    return Utterance(**fields | {"text": " ".join(fields["text"].split())}), []


def _mistyped(record: Mapping[str, Any], name: str) -> str | None:
    if name not in record:
        return None if name in _OPTIONAL else f"no field `{name}`"
    value = record[name]
    # bool is an int to Python, but never meant.
    if isinstance(value, _TYPES[name]) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) >= _MOST:
            return f"`{name}` is a number of {value.bit_length()} bits"
        return None
    return f"`{name}` is {json.dumps(value)[:80]}, not {_WANTED[_TYPES[name][0]]}"


def problems_of(utterance: Utterance, words: bool = True) -> list[str]:
    """Return the problems with the values of an utterance; empty if it is sound. With `words` False, it may lack a
    transcript."""
    u = utterance
    found = [
        f"`{name}` is {value!r}: it must be one word, without blanks"
        for name, value in (("id", u.id), ("recording_id", u.recording_id), ("speaker", u.speaker))
        if not is_one_word(value)
    ]
    if not u.path.strip() or any(character in u.path for character in "\n\0"):
        found.append(f"`path` is {u.path!r}")
    found += [
        f"`{name}` holds half of a character (a lone surrogate)"
        for name in _TYPES
        if isinstance(value := getattr(u, name), str) and _SURROGATE.search(value)
    ]
    if u.distortion and u.distortion not in DISTORTIONS:
        found.append(f"`distortion` is {u.distortion!r}: it must be one of {', '.join(DISTORTIONS)}")
    if words and not u.text.split():
        found.append(f"{u.id} has an empty transcript")
    found += [
        f"`{name}` is {value}: it must be {wanted}"
        for name, value, sound, wanted in (
            ("start", u.start, 0 <= u.start < _MOST, "0 or more seconds"),
            ("duration", u.duration, 0 < u.duration < _MOST, "more than 0 seconds"),
            ("channel", u.channel, 0 <= u.channel < _MOST, "0 or more"),
            ("sampling_rate", u.sampling_rate, 0 < u.sampling_rate < _MOST, "more than 0 Hz"),
            ("num_samples", u.num_samples, 0 < u.num_samples < _MOST, "more than 0"),
            ("speed", u.speed, 0.5 <= u.speed <= 2, "0.5 to 2"),
            ("warp", u.warp, 0.5 <= u.warp <= 2, "0.5 to 2"),
        )
        if not sound
    ]
    if not found and abs(u.duration * u.sampling_rate - u.num_samples) > 1:
        found.append(f"`duration` {u.duration} s at {u.sampling_rate} Hz is not `num_samples` {u.num_samples}")
    return found


def is_one_word(name: str) -> bool:
    """Return True if a name fits where blanks separate fields: Kaldi's files, trn files."""
    return name.split() == [name] and "\0" not in name


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in order of their second occurrence."""
    seen: set[str] = set()
    again: dict[str, None] = {}
    for name in names:
        if name in seen:
            again[name] = None
        seen.add(name)
    return list(again)
