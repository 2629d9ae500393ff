"""The files of a Kaldi data directory as tables, and their references to each other."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.files import BYTE_ORDER_MARK, not_utf8

_ARCHIVE_POSITION = re.compile(r".*:\d+")


@dataclass(frozen=True)
class Table:
    """A file of a data directory as a table: by key the rest of the line, and the line's number."""

    path: Path
    values: Mapping[str, str]
    lines: Mapping[str, int]
    readable: bool = True  # False: there is nothing to compare with other tables

    def at(self, key: str) -> str:
        return f"{self.path}:{self.lines[key]}"


@dataclass(frozen=True)
class Stretch:
    """The part of a recording that is an utterance: times in seconds (end below 0: to the end)."""

    recording: str
    start: float = 0.0
    end: float = -1.0
    channel: int | None = None  # None: nothing names one


def read_table(path: Path, problems: list[str], may_be_empty: bool = False) -> Table:
    """Read a table of lines `KEY REST`; faults are added to `problems`."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    data = b""
    try:
        data = path.read_bytes()
        text = data.decode().removeprefix(BYTE_ORDER_MARK)
    except FileNotFoundError:
        problems.append(f"{path}: no such file")
        return Table(path, values, lines, readable=False)
    except UnicodeDecodeError as error:
        problems.append(f"{path}:{not_utf8(data, error)}")
        return Table(path, values, lines, readable=False)
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror or error})")
        return Table(path, values, lines, readable=False)
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split(maxsplit=1)
        if not fields:
            continue
        key, value = fields[0], fields[1].strip() if len(fields) == 2 else ""
        if "\0" in line:
            problems.append(f"{path}:{number}: {key!r}: a zero byte in the line; this is no text")
            continue
        if BYTE_ORDER_MARK in line:
            problems.append(
                f"{path}:{number}: {line[:60]!r}: a byte order mark (U+FEFF) inside the file; were files joined? "
                "Remove it"
            )
            key, value = key.replace(BYTE_ORDER_MARK, ""), value.replace(BYTE_ORDER_MARK, "")
        if key in values:
            problems.append(f"{path}:{number}: {key} is already on line {lines[key]}")
        elif not value and not may_be_empty:
            problems.append(f"{path}:{number}: {key} has nothing beside it")
        values.setdefault(key, value)
        lines.setdefault(key, number)
    if not values:
        problems.append(f"{path}: is empty")
    return Table(path, values, lines, readable=bool(values))


def optional_table(path: Path, problems: list[str]) -> Table | None:
    """Read a table; return None if there is no such file."""
    return read_table(path, problems) if path.exists() else None


def durations(path: Path, problems: list[str]) -> tuple[Table, dict[str, float]] | None:
    """Read `utt2dur` or `reco2dur`: key -> seconds; None if there is no such file."""
    table = optional_table(path, problems)
    if table is None:
        return None
    found: dict[str, float] = {}
    for key, value in table.values.items():
        try:
            found[key] = float(value)
            if not (found[key] >= 0 and math.isfinite(found[key])):
                raise ValueError
        except ValueError:
            problems.append(f"{table.at(key)}: {key}: not a number of seconds but `{value}`")
    return table, found


def stretches(recordings: Table, segments: Table | None, problems: list[str]) -> dict[str, Stretch]:
    """Return the place of each utterance; without `segments` every key of `recordings` is one utterance."""
    if segments is None:
        return {name: Stretch(name) for name in recordings.values}
    found = stretches_of(segments, problems)
    for name, stretch in found.items() if recordings.readable else ():
        if stretch.recording not in recordings.values:
            problems.append(
                f"{segments.at(name)}: {name} is cut from {stretch.recording}, which is not in {recordings.path.name}"
            )
    return found


def stretches_of(segments: Table, problems: list[str]) -> dict[str, Stretch]:
    """Parse the lines of `segments`: utterance -> its place."""
    found: dict[str, Stretch] = {}
    for name, rest in segments.values.items():
        fields = rest.split()
        try:
            recording, start, end = fields[0], float(fields[1]), float(fields[2])
            channel = int(fields[3]) if len(fields) > 3 else None
            if len(fields) > 4 or start < 0 or (channel or 0) < 0 or not math.isfinite(start + end):
                raise ValueError
        except (ValueError, IndexError):
            problems.append(f"{segments.at(name)}: {name}: not `RECORDING START END [CHANNEL]` but `{rest}`")
            continue
        if 0 <= end <= start:
            problems.append(f"{segments.at(name)}: {name} ends at {end:g} s, not after its start at {start:g} s")
        found[name] = Stretch(recording, start, end, channel)
    return found


def completed(path: Path, like: Table, values: Mapping[str, str], problems: list[str]) -> Table:
    """Read the table in a file, if there is one, completed by `values` for keys of `like` that it lacks."""
    found = read_table(path, problems, may_be_empty=True) if path.exists() else Table(path, {}, {})
    return Table(path, {**values, **found.values}, {**like.lines, **found.lines}, found.readable)


def disagreements(*tables: Table) -> list[str]:
    """Return problems on utterances that are not in all of these tables."""
    return [
        f"{one.at(name)}: {name} is in {one.path.name} but not in {other.path.name}"
        for one, other in itertools.permutations([table for table in tables if table.readable], 2)
        for name in one.values
        if name not in other.values
    ]


def inverse_problems(speakers: Table, inverse: Table | None) -> list[str]:
    """Return problems where `spk2utt`, if given, is not the inverse of `utt2spk`."""
    if inverse is None or not (speakers.readable and inverse.readable):
        return []
    found: dict[str, str] = {}
    problems: list[str] = []
    for speaker, rest in inverse.values.items():
        for name in rest.split():
            found[name] = speaker
            if speakers.values.get(name) != speaker:
                there = f"of {speakers.values[name]}" if name in speakers.values else "not"
                problems.append(f"{inverse.at(speaker)}: {name} is of {speaker}, but {there} in {speakers.path.name}")
    absent = [name for name in speakers.values if name not in found]
    problems += [f"{speakers.at(name)}: {name} is not in {inverse.path.name}" for name in absent]
    return problems


def refusal(value: str, pipes: bool = False) -> str | None:
    """Return the reason why a value of wav.scp is refused; None for a plain path, and for a command if `pipes` allows
    commands."""
    if value.startswith("|") or (value.endswith("|") and not pipes):
        allow = "" if value.startswith("|") else ", or allow it with `--allow-pipes`"
        return (
            f"is a pipe (`{value}`), and commands in data files are not run: run it yourself and name the file it "
            f"makes{allow}"
        )
    if value.endswith("|"):
        return None
    if value == "-":
        return "is the standard input; name a file"
    if _ARCHIVE_POSITION.fullmatch(value):
        return f"is a position in an archive (`{value}`); write the audio to files of its own, e.g. with wav-copy"
    return None


def symbol_table(names: Iterable[str]) -> str:
    """Return the contents of a symbol table (words.txt, phones.txt): a name and its number a line, from 0."""
    return "".join(f"{name} {number}\n" for number, name in enumerate(names))
