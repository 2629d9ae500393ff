"""Writing of Kaldi data directories, sorted as Kaldi sorts, with `spk2utt`.

Reading what was written gives the same utterances, sorted by id.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay_speech.audio.reading import AudioError, audio_length
from roundelay_speech.data.manifest import Utterance, problems_of, repeated
from roundelay_speech.data.problems import listing
from roundelay_speech.kaldi_io.tables import (
    refusal,
)


def write_data_dir(directory: Path, utterances: Sequence[Utterance], root: Path, audio: bool = True) -> None:
    """Write a Kaldi data directory; paths below `root` are written relative to it.

    `segments` is written when an utterance is not exactly one recording, `text` when there are words. Without `audio`
    there is no `wav.scp`, and utterances are where they say they are; `export` writes their features.

    Raises:
        UserError: the utterances do not fit Kaldi's format (a path that looks like a pipe, two genders of one speaker,
            ...), all are listed; audio is missing (its length decides about `segments`); the disk is full.
    """
    words = any(u.words for u in utterances)
    problems = [f"{u.id}: {problem}" for u in utterances for problem in problems_of(u, words)]
    problems += [f"{name}: the id occurs more than once" for name in repeated(u.id for u in utterances)]
    paths: dict[str, str] = {}
    genders: dict[str, str | None] = {}
    for u in utterances:
        if audio:
            path = _relative(u.path, root)
            if refusal(path) is not None or path.strip() != path:
                problems.append(f"{u.id}: Kaldi would not read the path {u.path!r} as a plain file; rename the file")
            if paths.setdefault(u.recording_id, path) != path:
                problems.append(f"{u.id}: its recording {u.recording_id} is in {path} and in {paths[u.recording_id]}")
        if u.copied:
            problems.append(f"{u.id}: {u.copied}, which has no audio of its own; leave it out")
        if genders.setdefault(u.speaker, u.gender) != u.gender:
            problems.append(f"{u.id}: its speaker {u.speaker} has the genders {genders[u.speaker]} and {u.gender}")
    if problems:
        raise UserError(f"{directory}: these utterances do not fit a Kaldi data directory:\n{listing(problems)}")
    ordered = sorted(utterances, key=lambda u: u.id)
    of_speaker: dict[str, list[str]] = {}
    for u in ordered:
        of_speaker.setdefault(u.speaker, []).append(u.id)
    lengths = {recording: _length(root / path) for recording, path in paths.items()}
    if unread := [length for length in lengths.values() if isinstance(length, str)]:
        raise UserError(f"{directory}: audio is missing or unreadable:\n{listing(unread)}")
    whole = all(
        u.id == u.recording_id
        and u.start == 0
        and u.channel == 0
        and (not audio or lengths[u.recording_id] == (u.sampling_rate, u.num_samples))
        for u in ordered
    )
    tables: dict[str, Mapping[str, str]] = {
        "wav.scp": paths,
        "text": {u.id: u.text for u in ordered} if words else {},
        "utt2spk": {u.id: u.speaker for u in ordered},
        "spk2utt": {speaker: " ".join(names) for speaker, names in of_speaker.items()},
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


def _length(path: Path) -> tuple[int, int] | str:
    """Return (sampling rate, samples), or what is wrong with the file."""
    try:
        return audio_length(path)
    except AudioError as error:
        return str(error)
