"""A prepared corpus written for others: Kaldi data directories, Lhotse manifests.

One folder (Kaldi) or one set of files (Lhotse) for each split, and the lexicon as `lexicon.txt`, so that `roundelay
prepare` reads the same back. Audio stays where it is and is named by absolute paths; utterances that `prepare` left out
are not written, nor are copies at other speeds or warps, which have no audio of their own.

Reading the files gives the same utterances, sorted by id.
"""

import dataclasses
import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, refuse_ours, write_text
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import AudioError, audio_length
from roundelay_speech.bindings import soundfile
from roundelay_speech.data.manifest import Utterance, problems_of, repeated
from roundelay_speech.data.problems import listing
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.kaldi_io.objects import write_archive
from roundelay_speech.kaldi_io.tables import refusal
from roundelay_speech.lexicon.lexicon import write_lexicon
from roundelay_speech.prepared import PREPARED_LEXICON, Corpus


@dataclass(frozen=True)
class Exported:
    """The summary of an exported split."""

    split: str
    folder: Path
    utterances: int
    frames: int | None = None  # None: no features were written


def export_kaldi(
    corpus: Corpus, out: Path, progress: Progress, *, features: bool = False, splits: Sequence[str] = ()
) -> list[Exported]:
    """Write Kaldi data directories OUT/SPLIT and OUT/lexicon.txt.

    With `features` also `feats.ark` and `feats.scp` (the stored features, float32, without normalisation), `cmvn.ark`
    and `cmvn.scp` (per speaker), `utt2num_frames` and `frame_shift`. A corpus without audio has them anyway.

    Raises:
        UserError: utterances that do not fit Kaldi's format, audio or features missing, a full disk.
    """
    refuse_ours(out)
    written: list[Exported] = []
    store = corpus.features() if features or not corpus.audio else None
    for split in _chosen(corpus, splits):
        folder = out / split
        utterances = [
            dataclasses.replace(u, path=os.path.abspath(corpus.folder / u.path)) for u in _spoken(corpus, split)
        ]
        write_data_dir(folder, utterances, out, audio=corpus.audio)
        frames = None if store is None else _write_features(folder, utterances, store, progress)
        written.append(Exported(split, folder, len(utterances), frames))
    if not corpus.unlabelled:
        write_lexicon(out / PREPARED_LEXICON, corpus.lexicon)
    return written


def export_lhotse(corpus: Corpus, out: Path, *, splits: Sequence[str] = ()) -> list[Exported]:
    """Write OUT/{recordings,supervisions,cuts}_SPLIT.jsonl.gz and OUT/lexicon.txt.

    Raises:
        UserError: a corpus without audio, audio missing, a full disk.
    """
    refuse_ours(out)
    if not corpus.audio:
        raise UserError(
            f"{corpus.folder}: this corpus has features and no audio, and Lhotse's recordings are audio. Write it with "
            "`roundelay export kaldi`."
        )
    written: list[Exported] = []
    for split in _chosen(corpus, splits):
        utterances = _spoken(corpus, split)
        write_part(out, split, utterances, corpus.folder)
        written.append(Exported(split, out, len(utterances)))
    if not corpus.unlabelled:
        write_lexicon(out / PREPARED_LEXICON, corpus.lexicon)
    return written


def _chosen(corpus: Corpus, splits: Sequence[str]) -> list[str]:
    if unknown := [split for split in splits if split not in corpus.splits]:
        raise UserError(f"--split {unknown[0]}: {corpus.folder} has the splits {', '.join(corpus.splits)}.")
    return list(splits or corpus.splits)


def _spoken(corpus: Corpus, split: str) -> list[Utterance]:
    return [u for u in corpus.splits[split] if not u.copied]


def _write_features(folder: Path, utterances: Sequence[Utterance], store: FeatureStore, progress: Progress) -> int:
    """Write the features of a split; return the number of frames."""
    ordered = sorted(utterances, key=lambda u: u.id)
    place = Path(os.path.abspath(folder))
    progress.start(f"writing features of {folder.name}", len(ordered))

    def matrices() -> Any:
        for u in ordered:
            yield u.id, np.ascontiguousarray(store.get(u.id))
            progress.advance()

    try:
        write_archive(place / "feats.ark", matrices(), scp=folder / "feats.scp")
    finally:
        progress.finish()
    frames: dict[str, int] = {}
    for u in ordered:
        frames[u.speaker] = frames.get(u.speaker, 0) + store.frames(u.id)
    sums = ((speaker, _sums(store, speaker, count)) for speaker, count in sorted(frames.items()))
    write_archive(place / "cmvn.ark", sums, scp=folder / "cmvn.scp")
    write_text(folder / "utt2num_frames", "".join(f"{u.id} {store.frames(u.id)}\n" for u in ordered))
    write_text(folder / "frame_shift", f"{store.frame_shift:g}\n")
    return sum(frames.values())


def _sums(store: FeatureStore, speaker: str, frames: int) -> npt.NDArray[np.float64]:
    """Return the statistics of a speaker as Kaldi has them, 2 x (F + 1): sums and the number of frames, sums of squares
    and 0.

    They are the store's, weighted by the frames of this split, so that all splits together add up to the store's.
    """
    index = store.speakers.names.index(speaker)
    mean = store.speakers.mean[index].astype(np.float64)
    square = np.square(store.speakers.std[index].astype(np.float64)) + np.square(mean)
    return np.stack([np.append(mean * frames, frames), np.append(square * frames, 0.0)])


def write_data_dir(directory: Path, utterances: Sequence[Utterance], root: Path, audio: bool = True) -> None:
    """Write a Kaldi data directory; paths below `root` are written relative to it.

    `segments` is written when an utterance is not exactly one recording, `text` when there are words. Without `audio`
    there is no `wav.scp`, and utterances keep their own places; `export` writes their features.

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
    """Return (sampling rate, samples), or the fault of the file."""
    try:
        return audio_length(path)
    except AudioError as error:
        return str(error)


def write_part(folder: Path, part: str, utterances: Sequence[Utterance], audio_folder: Path) -> None:
    """Write Lhotse's `recordings_PART`, `supervisions_PART`, `cuts_PART`, each `.jsonl.gz`; audio paths are absolute.

    Every utterance is a cut with one supervision, both of its id and its length.

    Raises:
        UserError: an utterance could not be read back, a recording in two files, audio missing or at another rate; all
            are listed. The disk is full.
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
