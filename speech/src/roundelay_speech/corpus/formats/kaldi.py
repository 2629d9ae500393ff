"""Reading of Kaldi data directories.

`wav.scp`, `text`, `utt2spk`, and where they exist `segments`, `spk2gender`, `utt2lang`, `spk2utt`, `utt2dur`,
`reco2dur`; or features instead of audio: `feats.scp`, and where they exist `cmvn.scp` and `frame_shift`.

Paths are relative to the corpus folder (`root`). A line of `wav.scp` is a plain file, of any format that libsndfile
reads, or, where that was allowed, a pipe (`sox ... |`); a position in an archive (`foo.ark:123`) is refused. Times of
`segments` are rounded to the sample grid; a segment may end up to half a second after its recording and is cut there,
as Kaldi's extract-segments does.

Without audio, an utterance's `path` is where its features are, and its samples are frames.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay_speech.audio.pipes import Failed, Pipes, run_pipes
from roundelay_speech.audio.reading import AudioError, audio_shape, bad_audio, read_audio
from roundelay_speech.corpus.checks import channel_remarks
from roundelay_speech.corpus.formats.matrices import GivenFeatures, check_features
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy, LeftOut, Unusable, counted, listing
from roundelay_speech.kaldi_io.tables import (
    Stretch,
    Table,
    completed,
    disagreements,
    durations,
    inverse_problems,
    optional_table,
    read_table,
    refusal,
    stretches,
    stretches_of,
)

_OVERSHOOT = 0.5  # s; the default of extract-segments
_DURATION_SLACK = 0.1  # s; durations are written with two or three decimals, and frames leave out the edges
_FRAME_SHIFT_MS = 10.0
_DECODED_SECONDS = 4 * 3600.0  # of audio, that is decoded to find all faults; half a minute's work


@dataclass(frozen=True)
class KaldiOptions:
    """Options of reading a data directory."""

    on_bad: BadPolicy = "error"
    pipes: Pipes | None = None  # None: commands are refused
    features: bool = False  # take those of feats.scp though there is wav.scp; without wav.scp they are taken anyway
    frame_shift_ms: float | None = None  # of feats.scp; None: the file `frame_shift` says so, or 10
    channel: int | None = None  # of recordings with several, where `segments` names none; None: the first
    words: bool = True  # False: for recognition alone, so words and speakers may be missing


@dataclass(frozen=True)
class DataDir:
    """The content of a Kaldi data directory: utterances, features given with them, and utterances left out."""

    utterances: list[Utterance]  # sorted by id, with absolute paths
    left_out: list[LeftOut]  # under `skip`, with reasons
    matrices: GivenFeatures | None = None  # when features are given
    remarks: list[str] = field(default_factory=list)  # on oddities that can be used


@dataclass(frozen=True)
class _Files:
    """The tables of a data directory."""

    text: Table
    speakers: Table
    segments: Table | None
    genders: Table | None
    languages: Table | None
    of_utterances: tuple[Table, dict[str, float]] | None  # utt2dur
    of_recordings: tuple[Table, dict[str, float]] | None  # reco2dur


def read_data_dir(
    directory: Path, root: Path, options: KaldiOptions = KaldiOptions(), progress: Progress | None = None
) -> DataDir:
    """Read the utterances of a Kaldi data directory; under `skip`, those with an empty transcript or without audio are
    left out.

    Raises:
        UserError: a file is missing or faulty, or files disagree, under either policy; under `error`, transcripts are
            empty, audio or a matrix of features is missing or unreadable. Everything wrong is listed together with
            file:line.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; expected a Kaldi data directory (wav.scp, text, utt2spk).")
    progress = progress or Silent()
    problems: list[str] = []
    given = (directory / "feats.scp").exists() and (options.features or not (directory / "wav.scp").exists())
    if options.features and not given:
        problems.append(f"{directory / 'feats.scp'}: no such file")
    wav = None if given and not (directory / "wav.scp").exists() else read_table(directory / "wav.scp", problems)
    feats = read_table(directory / "feats.scp", problems) if given else None
    segments = optional_table(directory / "segments", problems)
    places = _places(wav, feats, segments, problems)
    tables = [table for table in (segments or wav, feats) if table is not None]
    files = _files(directory, segments, problems, None if options.words else (tables[0], places))
    problems += disagreements(files.text, files.speakers, *tables)
    problems += inverse_problems(files.speakers, optional_table(directory / "spk2utt", problems))
    if wav is not None:
        refused = [(name, refusal(value, options.pipes is not None)) for name, value in wav.values.items()]
        problems += [f"{wav.at(name)}: {name} {reason}" for name, reason in refused if reason is not None]
    matrices = _matrices(directory, root, options, (wav, feats), files.speakers, problems)
    _refuse(directory, problems)
    reasons: dict[str, str] = {}
    shapes: dict[str, tuple[int, int]] = {}
    if matrices is not None and feats is not None:
        shapes, faults = check_features(matrices.features, root, progress)
        reasons |= {name: f"{feats.at(name)}: {fault}" for name, fault in faults.items()}
    lengths = _lengths(wav, root, options.pipes, progress) if wav is not None else {}
    shift = matrices.frame_shift_ms if matrices is not None else 0.0
    utterances, left_out = list[Utterance](), list[LeftOut]()
    for name in sorted(files.text.values):
        try:
            if name in reasons:
                raise Unusable(reasons[name])
            if options.words and not files.text.values[name]:
                raise Unusable(f"{files.text.at(name)}: empty transcript")
            if wav is not None:
                extent = _in_recording(name, places[name], lengths, wav, files)
            else:
                assert feats is not None
                extent = _in_frames(name, places[name], shapes[name][0], shift, feats, files, root)
            _check_duration(name, extent, files, shapes.get(name), shift, feats)
            utterances.append(_utterance(name, places[name], extent, files, options.channel))
        except Unusable as unusable:
            left_out.append(LeftOut(name, f"{name}: {unusable}"))
    if left_out and options.on_bad == "error":
        left_out += _undecodable(utterances, progress) if wav is not None else []
        raise bad_audio(left_out, len(files.text.values), directory)
    return DataDir(utterances, left_out, matrices, _channels(utterances, places, lengths, options, directory))


def _refuse(directory: Path, problems: Sequence[str]) -> None:
    """Raise a UserError that lists all problems, if there are any."""
    if problems:
        ways = {
            "text": "`--unlabelled`, or `roundelay evaluate MODEL --data DIR`, recognises speech without transcripts.",
            "utt2spk": "It has a line `UTTERANCE SPEAKER` for each; name a speaker that is not known as the utterance.",
        }
        hint = "".join(f"\n{way}" for name, way in ways.items() if f"{directory / name}: no such file" in problems)
        faults = f"{counted(len(problems), 'fault')} in the data directory:\n{listing(problems)}{hint}"
        raise UserError(f"{directory}: {faults}")


def _channels(
    utterances: Sequence[Utterance],
    places: Mapping[str, Stretch],
    lengths: Mapping[str, "_Recording | str"],
    options: KaldiOptions,
    directory: Path,
) -> list[str]:
    """Return remarks on recordings with several channels when no option chose one."""
    if options.channel is not None:
        return []
    found = {name: lengths.get(place.recording) for name, place in places.items() if place.channel is None}
    several = {name: one.channels for name, one in found.items() if isinstance(one, _Recording) and one.channels > 1}
    return channel_remarks(utterances, several, Path(), str(directory))


def _undecodable(utterances: Sequence[Utterance], progress: Progress) -> list[LeftOut]:
    """Return utterances of the first hours that look sound but cannot be decoded. This is checked only if something
    must be mended anyway, so that all is mended at once."""
    found: list[LeftOut] = []
    seconds = 0.0
    progress.start("looking for further faults", len(utterances))
    for u in utterances:
        if seconds > _DECODED_SECONDS:
            break
        seconds += u.duration
        try:
            read_audio(u, Path())
        except AudioError as error:
            found.append(LeftOut(u.id, str(error)))
        progress.advance()
    progress.finish()
    return found


@dataclass(frozen=True)
class _Extent:
    """Position of an utterance in its file, in samples, or in frames where there is no audio."""

    path: str
    rate: int
    first: int
    samples: int


@dataclass(frozen=True)
class _Recording:
    """A file with audio."""

    path: str
    rate: int
    samples: int
    channels: int


def _files(
    directory: Path, segments: Table | None, problems: list[str], unsaid: tuple[Table, Mapping[str, Stretch]] | None
) -> _Files:
    """Read the tables of a data directory. With `unsaid`, a table of all utterances and their places, words and
    speakers may be missing: then there are no words, and each recording has a speaker of its own."""
    if unsaid is None:
        text = read_table(directory / "text", problems, may_be_empty=True)
        speakers = read_table(directory / "utt2spk", problems)
    else:
        every, places = unsaid
        text = completed(directory / "text", every, dict.fromkeys(every.values, ""), problems)
        recordings = {name: places[name].recording for name in every.values if name in places}
        speakers = completed(directory / "utt2spk", every, recordings, problems)
    return _Files(
        text,
        speakers,
        segments,
        optional_table(directory / "spk2gender", problems),
        optional_table(directory / "utt2lang", problems),
        durations(directory / "utt2dur", problems),
        durations(directory / "reco2dur", problems),
    )


def _places(wav: Table | None, feats: Table | None, segments: Table | None, problems: list[str]) -> dict[str, Stretch]:
    if wav is not None:
        return stretches(wav, segments, problems)
    if segments is not None:
        return stretches_of(segments, problems)
    return {name: Stretch(name) for name in (feats.values if feats is not None else ())}


def _matrices(
    directory: Path,
    root: Path,
    options: KaldiOptions,
    sources: tuple[Table | None, Table | None],
    speakers: Table,
    problems: list[str],
) -> GivenFeatures | None:
    """Return the places of features and statistics in archives; `cmvn.scp` may be by speaker or by utterance."""
    wav, feats = sources
    if feats is None:
        return None
    shift = options.frame_shift_ms
    if shift is None:
        shift = _FRAME_SHIFT_MS
        if (directory / "frame_shift").exists():
            try:
                shift = 1000 * float((directory / "frame_shift").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                problems.append(f"{directory / 'frame_shift'}: not a number of seconds")
    if not 0.1 <= shift <= 1000:
        where = directory / "frame_shift" if options.frame_shift_ms is None else "--frame-shift-ms"
        problems.append(f"{where}: frames every {shift:g} ms; a frame shift is between 0.1 and 1000 ms")
    statistics: dict[str, Sequence[str]] | None = None
    cmvn = optional_table(directory / "cmvn.scp", problems)
    if cmvn is not None:
        by_utterance = all(name in cmvn.values for name in feats.values)
        statistics = {}
        for name, speaker in speakers.values.items():
            key = name if by_utterance else speaker
            if key not in cmvn.values:
                if speaker not in statistics:
                    problems.append(f"{speakers.at(name)}: {speaker} is not in {cmvn.path.name}")
                    statistics[speaker] = ()
                continue
            statistics[speaker] = tuple(dict.fromkeys((*statistics.get(speaker, ()), cmvn.values[key])))
    return GivenFeatures(root, dict(feats.values), statistics, round(shift, 6), wav is not None)


def _lengths(wav: Table, root: Path, pipes: Pipes | None, progress: Progress) -> dict[str, _Recording | str]:
    """Return, for each recording, its file or its fault."""
    commands = {name: value for name, value in wav.values.items() if value.endswith("|")}
    made: Mapping[str, Path | Failed] = {}
    if commands and pipes is not None:
        made = run_pipes(commands, root, wav.path.stat().st_mtime, pipes, progress)
    found: dict[str, _Recording | str] = {}
    for recording, value in wav.values.items():
        file = made.get(recording, root / value)
        if isinstance(file, Failed):
            found[recording] = file.reason
            continue
        path = os.path.abspath(file)
        try:
            found[recording] = _Recording(path, *audio_shape(Path(path)))
        except AudioError as error:
            found[recording] = f"its command `{value}`: {error}" if recording in made else str(error)
    return found


def _in_recording(
    name: str, stretch: Stretch, lengths: Mapping[str, _Recording | str], wav: Table, files: _Files
) -> _Extent:
    """Return an utterance's samples in its recording. Raise `Unusable` if they do not lie in it."""
    recording = lengths[stretch.recording]
    if isinstance(recording, str):
        raise Unusable(f"{wav.at(stretch.recording)}: {recording}")
    rate = recording.rate
    where = (files.segments or wav).at(name)
    first = round(stretch.start * rate)
    last = recording.samples if stretch.end < 0 else round(stretch.end * rate)
    if recording.samples < last <= recording.samples + _OVERSHOOT * rate:
        last = recording.samples
    if last > recording.samples:
        ends = f"{stretch.end:g} s, its recording after {recording.samples / rate:g} s"
        raise Unusable(f"{where}: ends after {ends}")
    if not 0 <= first < last:
        raise Unusable(f"{where}: from {stretch.start:g} to {stretch.end:g} s there is not one sample")
    if files.of_recordings is not None:
        table, seconds = files.of_recordings
        expected = seconds.get(stretch.recording)
        if expected is not None and abs(expected - recording.samples / rate) > _DURATION_SLACK:
            lasts = f"lasts {recording.samples / rate:g} s, not {expected:g} s"
            raise Unusable(f"{table.at(stretch.recording)}: {recording.path} {lasts}; is it cut short?")
    return _Extent(recording.path, rate, first, last - first)


def _in_frames(
    name: str, stretch: Stretch, frames: int, shift: float, feats: Table, files: _Files, root: Path
) -> _Extent:
    """Return an utterance's extent in frames, without audio: the rate is that of frames, or a multiple of it that is a
    whole number."""
    multiple = next((m for m in range(1, 1001) if (1000 * m / shift).is_integer()), 1)
    rate = round(1000 * multiple / shift)
    if files.segments is not None and stretch.end >= 0:
        _compare(files.segments.at(name), stretch.end - stretch.start, frames, shift)
    return _Extent(
        os.path.abspath(root / feats.values[name]),
        rate,
        round(stretch.start * rate / multiple) * multiple,
        frames * multiple,
    )


def _utterance(name: str, place: Stretch, extent: _Extent, files: _Files, channel: int | None) -> Utterance:
    speaker = files.speakers.values[name]
    return Utterance(
        id=name,
        recording_id=place.recording,
        path=extent.path,
        start=extent.first / extent.rate,
        duration=extent.samples / extent.rate,
        channel=place.channel if place.channel is not None else channel or 0,
        sampling_rate=extent.rate,
        num_samples=extent.samples,
        speaker=speaker,
        text=" ".join(files.text.values[name].split()),
        gender=files.genders.values.get(speaker) if files.genders else None,
        language=files.languages.values.get(name) if files.languages else None,
    )


def _check_duration(
    name: str, extent: _Extent, files: _Files, shape: tuple[int, int] | None, shift: float, feats: Table | None
) -> None:
    """Check that durations in `utt2dur`, of the audio and of the features agree."""
    seconds = extent.samples / extent.rate
    if shape is not None and feats is not None:
        _compare(feats.at(name), seconds, shape[0], shift)
    if files.of_utterances is not None and name in files.of_utterances[1]:
        table, expected = files.of_utterances[0], files.of_utterances[1][name]
        if abs(expected - seconds) > _DURATION_SLACK + shift / 1000:
            raise Unusable(f"{table.at(name)}: lasts {seconds:g} s, not {expected:g} s; is it cut short?")


def _compare(where: str, seconds: float, frames: int, shift: float) -> None:
    if abs(seconds - frames * shift / 1000) > _DURATION_SLACK + shift / 1000:
        raise Unusable(
            f"{where}: lasts {seconds:g} s, but has {frames} frames, {frames * shift / 1000:g} s at {shift:g} ms each; "
            "is that the frame shift (`--frame-shift-ms`)?"
        )
