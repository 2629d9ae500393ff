"""Kaldi data directories: `wav.scp`, `text`, `utt2spk`, and where they exist `segments`, `spk2gender`, `utt2lang`.

Read: paths of `wav.scp` are relative to the corpus folder (`root`), and plain files: a pipe (`sox ... |`) or an archive
position (`foo.ark:123`) is refused. Times of `segments` are rounded to the sample grid. Written: the same, sorted as
Kaldi sorts, with `spk2utt`. Reading what was written gives the same utterances, sorted by id.
"""

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.speech.audio import AudioError, audio_length
from roundelay.speech.corpus.manifest import Utterance, problems_of, repeated
from roundelay.speech.culprits import BadPolicy, LeftOut, counted, listing

_ARCHIVE_POSITION = re.compile(r".*:\d+")


@dataclass(frozen=True)
class _Table:
    """One of the files: key -> the rest of its line, and the line it is on."""

    path: Path
    values: Mapping[str, str]
    lines: Mapping[str, int]

    def at(self, key: str) -> str:
        return f"{self.path}:{self.lines[key]}"


@dataclass(frozen=True)
class _Stretch:
    """Where an utterance is: a recording, and times in seconds (end below 0: to the end)."""

    recording: str
    start: float = 0.0
    end: float = -1.0
    channel: int = 0


def read_data_dir(directory: Path, root: Path) -> list[Utterance]:
    """Read a Kaldi data directory; utterances come sorted by id, with absolute paths.

    Raises:
        UserError: a file is missing or faulty, files disagree, transcripts are empty, audio is missing or unreadable.
            Everything wrong is listed together with file:line.
    """
    return read_data_dir_by(directory, root, "error")[0]


def read_data_dir_by(directory: Path, root: Path, on_bad: BadPolicy) -> tuple[list[Utterance], list[LeftOut]]:
    """`read_data_dir`, where under `skip` utterances with an empty transcript or without audio are left out.

    Files that contradict each other are an error under either policy.

    Returns:
        The utterances, and those left out with the reason.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; expected a Kaldi data directory (wav.scp, text, utt2spk).")
    problems: list[str] = []
    wav = _table(directory / "wav.scp", problems)
    text = _table(directory / "text", problems, may_be_empty=True)
    speakers = _table(directory / "utt2spk", problems)
    segments = _optional_table(directory / "segments", problems)
    genders = _optional_table(directory / "spk2gender", problems)
    languages = _optional_table(directory / "utt2lang", problems)
    stretches = _stretches(wav, segments, problems)
    problems += _disagreements(text, speakers, wav if segments is None else segments)
    problems += _not_plain(wav)
    if problems:
        raise UserError(f"{directory}: {counted(len(problems), 'fault')} in the data directory:\n{listing(problems)}")
    lengths = {recording: _length(root / path) for recording, path in wav.values.items()}
    utterances: list[Utterance] = []
    left_out: list[LeftOut] = []
    for name in sorted(text.values):
        stretch = stretches[name]
        length = lengths[stretch.recording]
        speaker = speakers.values[name]
        if isinstance(length, str):
            left_out.append(LeftOut(name, f"{name}: {wav.at(stretch.recording)}: {length}"))
            continue
        if not text.values[name]:
            left_out.append(LeftOut(name, f"{name}: {text.at(name)}: empty transcript"))
            continue
        rate, samples = length
        first = round(stretch.start * rate)
        last = samples if stretch.end < 0 else round(stretch.end * rate)
        if not 0 <= first < last:
            where = (segments or wav).at(name)
            left_out.append(
                LeftOut(name, f"{name}: {where}: from {stretch.start:g} to {stretch.end:g} s there is not one sample")
            )
            continue
        utterances.append(
            Utterance(
                id=name,
                recording_id=stretch.recording,
                path=os.path.abspath(root / wav.values[stretch.recording]),
                start=first / rate,
                duration=(last - first) / rate,
                channel=stretch.channel,
                sampling_rate=rate,
                num_samples=last - first,
                speaker=speaker,
                text=" ".join(text.values[name].split()),
                gender=genders.values.get(speaker) if genders else None,
                language=languages.values.get(name) if languages else None,
            )
        )
    if left_out and on_bad == "error":
        raise UserError(
            f"{directory}: {len(left_out)} of {counted(len(text.values), 'utterance')} cannot be used. Mend these "
            "entries, or leave them out (`--on-bad-audio skip`):\n"
            f"{listing([culprit.reason for culprit in left_out])}"
        )
    return utterances, left_out


def write_data_dir(directory: Path, utterances: Sequence[Utterance], root: Path) -> None:
    """Write a Kaldi data directory; paths below `root` are written relative to it.

    `segments` is written when an utterance is not exactly one recording.

    Raises:
        UserError: the utterances do not fit Kaldi's format (a path that looks like a pipe, two genders of one speaker,
            ...), all are listed; audio is missing (its length decides about `segments`); the disk is full.
    """
    problems = [f"{u.id}: {problem}" for u in utterances for problem in problems_of(u)]
    problems += [f"{name}: the id occurs more than once" for name in repeated(u.id for u in utterances)]
    paths: dict[str, str] = {}
    genders: dict[str, str | None] = {}
    for u in utterances:
        path = _relative(u.path, root)
        if _refusal(path) is not None or path.strip() != path:
            problems.append(f"{u.id}: Kaldi would not read the path {u.path!r} as a plain file; rename the file")
        if paths.setdefault(u.recording_id, path) != path:
            problems.append(f"{u.id}: its recording {u.recording_id} is in {path} and in {paths[u.recording_id]}")
        if u.speed != 1:
            problems.append(f"{u.id}: a copy at speed {u.speed:g}, which has no audio of its own; leave it out")
        if genders.setdefault(u.speaker, u.gender) != u.gender:
            problems.append(f"{u.id}: its speaker {u.speaker} has the genders {genders[u.speaker]} and {u.gender}")
    if problems:
        raise UserError(f"{directory}: these utterances do not fit a Kaldi data directory:\n{listing(problems)}")
    ordered = sorted(utterances, key=lambda u: u.id)
    lengths = {recording: _length(root / path) for recording, path in paths.items()}
    if unread := [length for length in lengths.values() if isinstance(length, str)]:
        raise UserError(f"{directory}: audio is missing or unreadable:\n{listing(unread)}")
    whole = all(
        u.id == u.recording_id
        and u.start == 0
        and u.channel == 0
        and lengths[u.recording_id] == (u.sampling_rate, u.num_samples)
        for u in ordered
    )
    tables: dict[str, Mapping[str, str]] = {
        "wav.scp": paths,
        "text": {u.id: u.text for u in ordered},
        "utt2spk": {u.id: u.speaker for u in ordered},
        "spk2utt": {s: " ".join(u.id for u in ordered if u.speaker == s) for s in {u.speaker for u in ordered}},
        "segments": {} if whole else {u.id: _segment(u) for u in ordered},
        "spk2gender": {speaker: gender for speaker, gender in genders.items() if gender is not None},
        "utt2lang": {u.id: u.language for u in ordered if u.language is not None},
    }
    for name, table in tables.items():
        if table:
            write_text(directory / name, "".join(f"{key} {table[key]}\n" for key in sorted(table)))
        else:
            (directory / name).unlink(missing_ok=True)


def _segment(utterance: Utterance) -> str:
    # repr: the shortest digits that read back as the same number, so that no sample is lost.
    end = (utterance.start_sample + utterance.num_samples) / utterance.sampling_rate
    fields = f"{utterance.recording_id} {utterance.start!r} {end!r}"
    return f"{fields} {utterance.channel}" if utterance.channel else fields


def _relative(path: str, root: Path) -> str:
    absolute, base = os.path.abspath(root / path), os.path.abspath(root)
    return os.path.relpath(absolute, base) if absolute.startswith(base.rstrip("/") + "/") else absolute


def _table(path: Path, problems: list[str], may_be_empty: bool = False) -> _Table:
    """Read `KEY REST` lines; faults go to `problems`."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        problems.append(f"{path}: no such file")
        return _Table(path, values, lines)
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8 text (byte {error.start})")
        return _Table(path, values, lines)
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split(maxsplit=1)
        if not fields:
            continue
        key, value = fields[0], fields[1].strip() if len(fields) == 2 else ""
        if key in values:
            problems.append(f"{path}:{number}: {key} is already on line {lines[key]}")
        elif not value and not may_be_empty:
            problems.append(f"{path}:{number}: {key} has nothing beside it")
        values.setdefault(key, value)
        lines.setdefault(key, number)
    if not values:
        problems.append(f"{path}: is empty")
    return _Table(path, values, lines)


def _optional_table(path: Path, problems: list[str]) -> _Table | None:
    return _table(path, problems) if path.exists() else None


def _stretches(wav: _Table, segments: _Table | None, problems: list[str]) -> dict[str, _Stretch]:
    """Utterance -> where it is; without `segments` every recording is one utterance."""
    if segments is None:
        return {name: _Stretch(name) for name in wav.values}
    found: dict[str, _Stretch] = {}
    for name, rest in segments.values.items():
        fields = rest.split()
        try:
            recording, start, end = fields[0], float(fields[1]), float(fields[2])
            channel = int(fields[3]) if len(fields) > 3 else 0
            if len(fields) > 4 or start < 0 or channel < 0 or not math.isfinite(start + end):
                raise ValueError
        except (ValueError, IndexError):
            problems.append(f"{segments.at(name)}: {name}: not `RECORDING START END [CHANNEL]` but `{rest}`")
            continue
        if 0 <= end <= start:
            problems.append(f"{segments.at(name)}: {name} ends at {end:g} s, not after its start at {start:g} s")
        if recording not in wav.values:
            problems.append(f"{segments.at(name)}: {name} is cut from {recording}, which is not in {wav.path.name}")
        found[name] = _Stretch(recording, start, end, channel)
    return found


def _disagreements(text: _Table, speakers: _Table, audio: _Table) -> list[str]:
    """Utterances that are not in all three files."""
    return [
        f"{one.at(name)}: {name} is in {one.path.name} but not in {other.path.name}"
        for one, other in itertools.permutations((text, speakers, audio), 2)
        for name in one.values
        if name not in other.values
    ]


def _not_plain(wav: _Table) -> list[str]:
    refused = [(name, _refusal(value)) for name, value in wav.values.items()]
    return [f"{wav.at(name)}: {name} {reason}" for name, reason in refused if reason is not None]


def _refusal(value: str) -> str | None:
    """Why a value of wav.scp is not taken; None for a plain path."""
    if value.endswith("|") or value.startswith("|"):
        return (
            f"is a pipe (`{value}`), and commands in data files are not run: run it yourself and name the file it makes"
        )
    if value == "-":
        return "is the standard input; name a file"
    if _ARCHIVE_POSITION.fullmatch(value):
        return f"is a position in an archive (`{value}`); write the audio to files of its own, e.g. with wav-copy"
    return None


def _length(path: Path) -> tuple[int, int] | str:
    """(sampling rate, samples), or what is wrong with the file."""
    try:
        return audio_length(path)
    except AudioError as error:
        return str(error)
