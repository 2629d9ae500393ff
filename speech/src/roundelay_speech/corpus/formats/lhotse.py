"""Reading of Lhotse manifests: recordings with supervisions, or cuts; JSON lines, packed with gzip or not.

A file is named `[PREFIX_]KIND[_PART].jsonl[.gz]`, KIND one of recordings, supervisions, cuts; the files of one part
together are a split. Where there are cuts they are read, and nothing else. Every supervision is an utterance: its times
in its recording, its own id. Parts that an utterance has no place for are lost: `custom` fields, alignments, features.

Paths of audio are relative to the corpus folder. Samples that are in no file as they are, of mixed cuts, transforms or
commands, are made by the package lhotse, where it is installed (see `lhotse_loading`). A recording whose channels are
in several files becomes one recording per file, named with its first channel. Without a speaker, the recording's id is
the speaker.
"""

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import BYTE_ORDER_MARK
from roundelay.core.progress import Progress, Silent
from roundelay_speech.audio.reading import AudioError, audio_length, bad_audio
from roundelay_speech.corpus.formats.lhotse_loading import FILES_ALONE, LhotseOptions, load_cut, one_channel, special
from roundelay_speech.data.manifest import Utterance, problems_of, repeated
from roundelay_speech.data.problems import BadPolicy, LeftOut, Unusable, counted, listing

_NAME = re.compile(r"(?:.+[_-])?(?P<kind>recordings|supervisions|cuts)(?:[_-](?P<part>.+?))?\.jsonl(?:\.gz)?")
_LONGEST_LINE = 1 << 26  # bytes; a cut of an hour with word alignments is a few MB
_OVERSHOOT = 0.5  # s that a supervision may end after its recording, as for Kaldi's segments


@dataclass(frozen=True)
class _RecordingFile:
    """A file of a recording."""

    recording_id: str
    path: str
    channels: tuple[int, ...]
    sampling_rate: int
    num_samples: int


@dataclass
class _Reading:
    """The state of reading a split: what has been read so far."""

    channel: int | None = None
    # cuts that lhotse must load: FILE:LINE, the cut, and the reason.
    special: list[tuple[str, Mapping[str, Any], str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    utterances: list[Utterance] = field(default_factory=list)
    checked: dict[tuple[str, int, int], str | None] = field(default_factory=dict)  # source -> its fault


def find_parts(source: Path) -> dict[str, dict[str, Path]]:
    """Return the parts in a folder, and in folders inside it (then FOLDER or FOLDER/PART): part -> kind -> file.

    Raises:
        UserError: no such folder, no manifests in it, or two files for the same.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; `--source` must name the folder of the Lhotse manifests.")
    parts: dict[str, dict[str, Path]] = {}
    for path in sorted([*source.glob("*.jsonl*"), *source.glob("*/*.jsonl*")]):
        matched = _NAME.fullmatch(path.name)
        if matched is None:
            continue
        inside = path.parent.relative_to(source).as_posix()
        part = "/".join(name for name in ("" if inside == "." else inside, matched["part"] or "") if name)
        there = parts.setdefault(part, {})
        if matched["kind"] in there:
            raise UserError(f"{path}: {there[matched['kind']].name} is of the same part; move one of them away.")
        there[matched["kind"]] = path
    parts = {part: kinds for part, kinds in parts.items() if "cuts" in kinds or len(kinds) == 2}
    if not parts:
        raise UserError(
            f"{source}: no Lhotse manifests here: neither cuts (`cuts_train.jsonl.gz`) nor recordings and supervisions "
            "(`recordings_train.jsonl.gz`, `supervisions_train.jsonl.gz`)."
        )
    return parts


def read_part(
    kinds: Mapping[str, Path],
    root: Path,
    on_bad: BadPolicy,
    options: LhotseOptions = FILES_ALONE,
    progress: Progress | None = None,
) -> tuple[list[Utterance], list[LeftOut]]:
    """Read the manifests of one part (see `find_parts`); utterances come sorted by id, with absolute paths.

    Returns:
        The utterances, and under `skip` those left out with the reason: empty transcripts, audio missing or not as the
        manifest says, times outside the recording, supervisions of several channels, records that need lhotse.

    Raises:
        UserError: files that are broken, records without a needed field, ids that occur twice; under `error` also
            every utterance that cannot be used. Everything wrong is listed with file:line.
    """
    reading = _Reading(options.channel)
    if "cuts" in kinds:
        where = kinds["cuts"]
        for at, record in _records(where, reading.faults):
            _guarded(reading, at, _cut, reading, at, record, root)
    else:
        where = kinds["supervisions"]
        recordings: dict[str, tuple[str, dict[str, Any]]] = {}
        for at, record in _records(kinds["recordings"], reading.faults):
            _guarded(reading, at, _keep_recording, recordings, at, record)
        for at, record in _records(where, reading.faults):
            _guarded(reading, at, _supervision_alone, reading, at, record, recordings, root)
    if not reading.faults:
        _load_special(reading, where, root, options, progress or Silent())
    again = repeated(u.id for u in reading.utterances)
    reading.faults.extend(f"{where}: the id {name} occurs more than once" for name in again)
    if reading.faults:
        raise UserError(
            f"{where}: {counted(len(reading.faults), 'fault')} in the manifests:\n{listing(reading.faults)}"
        )
    if reading.left_out and on_bad == "error":
        raise bad_audio(reading.left_out, len(reading.left_out) + len(reading.utterances), where)
    return sorted(reading.utterances, key=lambda u: u.id), reading.left_out


def _load_special(reading: _Reading, where: Path, root: Path, options: LhotseOptions, progress: Progress) -> None:
    if not reading.special:
        return
    since = where.stat().st_mtime
    progress.start("making audio with lhotse", len(reading.special))
    try:
        for at, cut, reason in reading.special:
            utterances, left_out = load_cut(at, cut, reason, root, since, options)
            reading.utterances += utterances
            reading.left_out += left_out
            progress.advance()
    finally:
        progress.finish()


class _Fault(Exception):
    """A record that is not in Lhotse's form."""


def _guarded(reading: _Reading, at: str, work: Callable[..., None], *arguments: object) -> None:
    """Call `work` on one record, and note its faults."""
    try:
        work(*arguments)
    except _Fault as fault:
        reading.faults.append(f"{at}: {fault}")


def _records(path: Path, faults: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `FILE:LINE` and object of every line; unreadable lines are noted in `faults`, and may end the reading."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    faults.append(f"{path}:{number}: a line of more than {_LONGEST_LINE} bytes")
                    return
                if not line.strip():
                    continue
                try:
                    record = json.loads(line.decode().removeprefix(BYTE_ORDER_MARK))
                except UnicodeDecodeError as error:
                    faults.append(f"{path}:{number}: not UTF-8 text (byte {error.start} of the line)")
                    continue
                except (ValueError, RecursionError) as error:
                    faults.append(f"{path}:{number}: not valid JSON ({error})")
                    continue
                if isinstance(record, dict):
                    yield f"{path}:{number}", record
                else:
                    faults.append(f"{path}:{number}: not a JSON object")
    except (OSError, EOFError, zlib.error) as error:
        faults.append(f"{path}:{number + 1}: cannot be read ({error})")


def _cut(reading: _Reading, at: str, cut: Mapping[str, Any], root: Path) -> None:
    name = _text(cut, "id")
    if (reason := special(cut)) is not None:
        reading.special.append((at, cut, reason))
        return
    start, channels = _seconds(cut, "start", True), _channels(cut)
    supervisions = cut.get("supervisions", [])
    if not isinstance(supervisions, list) or not all(isinstance(one, dict) for one in supervisions):
        raise _Fault("`supervisions` is not a list of objects")
    if not supervisions:
        reading.left_out.append(LeftOut(name, f"{name}: {at}: no supervision, so no transcript"))
    recording = cut.get("recording")
    for supervision in supervisions:
        if not isinstance(recording, dict):
            reading.left_out.append(LeftOut(_text(supervision, "id"), f"{name}: {at}: no recording, so no audio"))
            continue
        # Its times are relative to the cut; those of an utterance to the recording.
        _utterance(reading, at, supervision, start, channels, recording, root)


def _keep_recording(recordings: dict[str, tuple[str, dict[str, Any]]], at: str, recording: dict[str, Any]) -> None:
    name = _text(recording, "id")
    if name in recordings:
        raise _Fault(f"the recording {name} is already in {recordings[name][0]}")
    recordings[name] = (at, recording)


def _supervision_alone(
    reading: _Reading,
    at: str,
    supervision: Mapping[str, Any],
    recordings: Mapping[str, tuple[str, dict[str, Any]]],
    root: Path,
) -> None:
    """Add the utterance of a supervision that no cut has, or keep it for Lhotse to load."""
    named = _text(supervision, "recording_id")
    if named not in recordings:
        raise _Fault(f"its recording {named} is in no line of the recordings")
    recording = recordings[named][1]
    if (reason := special({"recording": recording})) is not None:
        channels = _channels({"channel": 0, **supervision})
        kind = "MonoCut" if isinstance(channels, int) else "MultiCut"
        whole = {"id": _text(supervision, "id"), "start": 0.0, "duration": _seconds(recording, "duration", False)}
        cut = {**whole, "channel": channels, "supervisions": [supervision], "recording": recording, "type": kind}
        reading.special.append((at, cut, reason))
        return
    _utterance(reading, at, supervision, 0.0, 0, recording, root)


def _utterance(
    reading: _Reading,
    at: str,
    supervision: Mapping[str, Any],
    offset: float,
    channels: int | list[int],
    recording: Mapping[str, Any],
    root: Path,
) -> None:
    """Add a supervision, moved by `offset` seconds, to the utterances read or to those left out."""
    name = _text(supervision, "id")
    try:
        named = channels if supervision.get("channel") is None else _channels(supervision)
        channel = one_channel(named, reading.channel)
        source = _source(recording, channel, root)
        key = (source.path, source.sampling_rate, source.num_samples)
        if key not in reading.checked:
            reading.checked[key] = _wrong_with(source)
        if (wrong := reading.checked[key]) is not None:
            raise Unusable(wrong)
        reading.utterances.append(_on_grid(name, supervision, offset, source, channel))
    except Unusable as unusable:
        reading.left_out.append(LeftOut(name, f"{name}: {at}: {unusable}"))


def _on_grid(
    name: str, supervision: Mapping[str, Any], offset: float, source: _RecordingFile, channel: int
) -> Utterance:
    """Return the utterance of a supervision, its start and end rounded to samples of its recording."""
    rate = source.sampling_rate
    start = offset + _seconds(supervision, "start", True)
    seconds = _seconds(supervision, "duration", False)
    if start < 0 or start + seconds > 1e9:
        raise Unusable(f"from {start:g} to {start + seconds:g} s is not in its recording")
    first = round(start * rate)
    last = first + round(seconds * rate)
    if source.num_samples < last <= source.num_samples + _OVERSHOOT * rate:
        last = source.num_samples
    if not first < last <= source.num_samples:
        length = source.num_samples / rate
        raise Unusable(f"from {start:g} to {start + seconds:g} s is not in its recording of {length:g} s")
    utterance = Utterance(
        id=name,
        recording_id=source.recording_id,
        path=source.path,
        start=first / rate,
        duration=(last - first) / rate,
        channel=source.channels.index(channel),
        sampling_rate=rate,
        num_samples=last - first,
        speaker=_optional_text(supervision, "speaker") or source.recording_id,
        text=" ".join((_optional_text(supervision, "text") or "").split()),
        gender=_optional_text(supervision, "gender"),
        language=_optional_text(supervision, "language"),
    )
    if not utterance.text:
        raise Unusable("empty transcript")
    if problems := problems_of(utterance):
        raise _Fault("; ".join(problems))
    return utterance


def _source(recording: Mapping[str, Any], channel: int, root: Path) -> _RecordingFile:
    """Return the file of a recording that has this channel."""
    name = _text(recording, "id")
    rate, samples = _whole(recording, "sampling_rate"), _whole(recording, "num_samples")
    sources = recording.get("sources")
    if not isinstance(sources, list) or not sources or not all(isinstance(one, dict) for one in sources):
        raise _Fault(f"`sources` of the recording {name} is not a list of objects")
    for one in sources:
        channels = one.get("channels")
        if not isinstance(channels, list) or not all(_is_whole(number) for number in channels):
            raise _Fault(f"`channels` of the recording {name} is not a list of whole numbers")
        if channel not in channels:
            continue
        _text(one, "type")  # a file; all else is special
        own = name if len(sources) == 1 else f"{name}_{channels[0]}"
        path = _text(one, "source")
        if "\0" in path:
            raise _Fault(f"the recording {name} is in {path!r}, which is not the name of a file")
        return _RecordingFile(own, os.path.abspath(root / path), tuple(channels), rate, samples)
    raise Unusable(f"its recording {name} has no channel {channel}")


def _wrong_with(source: _RecordingFile) -> str | None:
    """Return the difference between a file and its entry in the manifest; None if there is none."""
    try:
        rate, samples = audio_length(Path(source.path))
    except AudioError as error:
        return str(error)
    if (rate, samples) != (source.sampling_rate, source.num_samples):
        return (
            f"{source.path}: {samples} samples at {rate} Hz, in the manifest {source.num_samples} at "
            f"{source.sampling_rate} Hz; is it cut short, or another file?"
        )
    return None


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise _Fault(f"`{name}` is {json.dumps(value)[:80]}, not text" if name in record else f"no field `{name}`")
    return value


def _optional_text(record: Mapping[str, Any], name: str) -> str | None:
    return None if record.get(name) is None or record[name] == "" else _text(record, name)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


def _whole(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if not _is_whole(value):
        raise _Fault(f"`{name}` is {json.dumps(value)[:80]}, not a whole number from 0")
    return int(value or 0)


def _channels(record: Mapping[str, Any]) -> int | list[int]:
    """Return the channel, or the channels, of a cut or supervision."""
    named = record.get("channel")
    if isinstance(named, list) and named and all(_is_whole(one) for one in named):
        return [int(one) for one in named]
    return _whole(record, "channel")


def _seconds(record: Mapping[str, Any], name: str, any_sign: bool) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9 or math.isnan(value):
        raise _Fault(f"`{name}` is {json.dumps(value)[:80]}, not a number of seconds")
    if not any_sign and value <= 0:
        raise Unusable(f"`{name}` is {value}, not more than 0 seconds")
    return float(value)
