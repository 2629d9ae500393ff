"""Writing of Lhotse manifests: recordings, supervisions and cuts of one part, JSON lines packed with gzip."""

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write
from roundelay_speech.audio.reading import AudioError, audio_length
from roundelay_speech.bindings import soundfile
from roundelay_speech.data.manifest import Utterance, problems_of, repeated
from roundelay_speech.data.problems import listing


def write_part(folder: Path, part: str, utterances: Sequence[Utterance], audio_folder: Path) -> None:
    """Write `recordings_PART`, `supervisions_PART` and `cuts_PART`, each `.jsonl.gz`; paths of audio are absolute.

    Every utterance is a cut with one supervision, both of its id and its length.

    Raises:
        UserError: an utterance that could not be read back, a recording in two files, audio missing or at another rate;
            all are listed. The disk is full.
    """
    problems = [f"{u.id}: {problem}" for u in utterances for problem in problems_of(u)]
    problems += [f"{name}: the id occurs more than once" for name in repeated(u.id for u in utterances)]
    problems += [f"{u.id}: {u.copied}, which has no audio of its own" for u in utterances if u.copied]
    recordings: dict[str, dict[str, Any]] = {}
    paths: dict[str, str] = {}
    for u in utterances:
        path = os.path.abspath(audio_folder / u.path)
        if paths.setdefault(u.recording_id, path) != path:
            problems.append(f"{u.id}: its recording {u.recording_id} is in {path} and in {paths[u.recording_id]}")
        if u.recording_id not in recordings:
            try:
                recordings[u.recording_id] = _recording(u.recording_id, path)
            except AudioError as error:
                problems.append(f"{u.id}: {error}")
                continue
        found = recordings[u.recording_id]
        ends = u.start_sample + u.num_samples
        if found["sampling_rate"] != u.sampling_rate or ends > found["num_samples"] or u.channel >= _channels(found):
            problems.append(
                f"{u.id}: {path} does not have channel {u.channel} of it at {u.sampling_rate} Hz to its end"
            )
    if problems:
        raise UserError(f"{folder}: these utterances cannot be Lhotse's:\n{listing(problems)}")
    ordered = sorted(utterances, key=lambda u: u.id)
    supervisions = [_supervision(u, u.start) for u in ordered]
    cuts = [
        {
            "id": u.id,
            "start": u.start,
            "duration": u.duration,
            "channel": u.channel,
            "supervisions": [_supervision(u, 0.0)],
            "recording": recordings[u.recording_id],
            "type": "MonoCut",
        }
        for u in ordered
    ]
    _write_lines(folder / f"recordings_{part}.jsonl.gz", [recordings[name] for name in sorted(recordings)])
    _write_lines(folder / f"supervisions_{part}.jsonl.gz", supervisions)
    _write_lines(folder / f"cuts_{part}.jsonl.gz", cuts)


def _recording(name: str, path: str) -> dict[str, Any]:
    rate, samples = audio_length(Path(path))
    channels = list(range(soundfile.info(path).channels))
    return {
        "id": name,
        "sources": [{"type": "file", "channels": channels, "source": path}],
        "sampling_rate": rate,
        "num_samples": samples,
        "duration": samples / rate,
        "channel_ids": channels,
    }


def _channels(recording: Mapping[str, Any]) -> int:
    return len(recording["channel_ids"])


def _supervision(u: Utterance, start: float) -> dict[str, Any]:
    optional = {"language": u.language, "speaker": u.speaker, "gender": u.gender}
    return {
        "id": u.id,
        "recording_id": u.recording_id,
        "start": start,
        "duration": u.duration,
        "channel": u.channel,
        "text": u.text,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    # Without a time in its head, the same records make the same file.
    with atomic_write(path) as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        for record in records:
            packed.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
