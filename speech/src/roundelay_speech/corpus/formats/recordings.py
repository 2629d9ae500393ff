"""Reading of a folder of recordings: of any kind, with their words beside them or without words.

    DIR/NAME.wav     a recording, known by its ending; also in folders below DIR
    DIR/NAME.txt     its words; or
    DIR/text         words of all of them, a line `NAME words` each

A recording with words is an utterance, and so is one without that lasts up to 40 s. A longer one is cut at pauses, as
`roundelay transcribe` does it. The recordings of a folder below DIR are one speaker's; of those in DIR itself each has
a speaker of its own, unless they are taken for one.

Recordings that libsndfile cannot read (m4a, video) are converted by ffmpeg, where it is installed, and kept as WAV.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.files import read_text
from roundelay.core.progress import Progress, tracked
from roundelay_speech.audio.activity import FRAMES_PER_SECOND, Cutting, Energies, cut, smoothed
from roundelay_speech.audio.reading import AudioError, audio_shape, bad_audio, hushed
from roundelay_speech.audio.recordings import is_recording, one_word, recordings_below, unique_names
from roundelay_speech.audio.sound import open_sound
from roundelay_speech.bindings import soundfile
from roundelay_speech.corpus.checks import channel_remarks
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy, LeftOut, counted, listing
from roundelay_speech.kaldi_io.tables import read_table

TEXT = "text"
_HELD = Cutting()
_WORDS_ENDING = ".txt"


@dataclass(frozen=True)
class RecordingOptions:
    """Options of reading a folder of recordings."""

    converted: Path  # where WAVs go of recordings that libsndfile cannot read
    on_bad: BadPolicy = "error"
    channel: int | None = None  # of recordings with several, from 0; None: the first, which is said
    together: bool = False  # recordings that lie in the folder itself are one speaker's


@dataclass(frozen=True)
class RecordingFolder:
    """The content of a folder of recordings: utterances with absolute paths, those left out, and oddities."""

    utterances: list[Utterance]
    left_out: list[LeftOut] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def read_recordings(folder: Path, options: RecordingOptions, progress: Progress) -> RecordingFolder:
    """Read a folder of recordings.

    Raises:
        UserError: there is no folder, or no recording in it; a line of `text` names no recording; under `error`,
            recordings cannot be used (lists all).
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected recordings in it.")
    named = unique_names([(path.stem, path) for path in recordings_below(folder)])
    words = _words(folder, named)
    found, left_out, channels = list[Utterance](), list[LeftOut](), dict[str, int]()
    for name, path in tracked(progress, f"reading {folder.name}", named.items()):
        try:
            some, several = _utterances(name, path, folder, words.get(name, ""), options)
            found += some
            channels |= dict.fromkeys((u.id for u in some), several)
        except AudioError as error:
            left_out.append(LeftOut(name, f"{name}: {error}"))
    if left_out and options.on_bad == "error":
        raise bad_audio(left_out, len(named), folder, "recording")
    remarks = channel_remarks(found, channels, Path(), str(folder)) if options.channel is None else []
    return RecordingFolder(found, left_out, remarks)


def _words(folder: Path, named: Mapping[str, Path]) -> dict[str, str]:
    """Return the words of recordings that have any, by name."""
    found = {}
    for name, path in named.items():
        beside = path.with_suffix(_WORDS_ENDING)
        if beside.is_file():
            found[name] = " ".join(read_text(beside, "the words of a recording are expected").split())
    if not (folder / TEXT).is_file():
        return found
    problems: list[str] = []
    table = read_table(folder / TEXT, problems, may_be_empty=True)
    known = {one_word(path.stem): name for name, path in named.items()} | {name: name for name in named}
    for key, text in table.values.items():
        names = [known[form] for form in (key, one_word(key), one_word(Path(key).stem)) if form in known]
        if names:
            found[names[0]] = text
        else:
            problems.append(f"{table.at(key)}: no recording of the name {key}")
    if problems:
        raise UserError(f"{folder}: {counted(len(problems), 'fault')}:\n{listing(problems)}")
    return found


def _utterances(
    name: str, path: Path, folder: Path, words: str, options: RecordingOptions
) -> tuple[list[Utterance], int]:
    """Return the utterances of a recording, and its number of channels.

    Raises:
        AudioError: the recording cannot be used.
    """
    file = _readable(name, path.absolute(), options.converted)
    rate, samples, channels = audio_shape(file)
    channel = options.channel or 0
    if channel >= channels:
        raise AudioError(f"{path}: has {counted(channels, 'channel')}, no channel {channel} (counted from 0)")
    inside = path.parent.relative_to(folder).parts
    speaker = "-".join(map(one_word, inside)) or (one_word(folder.resolve().name) if options.together else name)

    def utterance(own: str, first: int, length: int) -> Utterance:
        return Utterance(
            id=own,
            recording_id=name,
            path=str(file),
            start=first / rate,
            duration=length / rate,
            channel=channel,
            sampling_rate=rate,
            num_samples=length,
            speaker=speaker,
            text=" ".join(words.split()),
        )

    if words or samples <= _HELD.longest * rate:
        return [utterance(name, 0, samples)], channels
    pieces = _pieces(file, channel, rate, samples)
    if not pieces:
        raise AudioError(f"{path}: it has no speech")
    return [
        utterance(f"{name}-{100 * first // rate:07d}-{100 * (first + length) // rate:07d}", first, length)
        for first, length in pieces
    ], channels


def _pieces(path: Path, channel: int, rate: int, samples: int) -> list[tuple[int, int]]:
    """Cut a channel at pauses; return first sample and number of samples of each piece."""
    energies, level = Energies(rate), []
    with open_sound(path) as sound:
        for block in sound.blocks:
            level.append(energies.push(np.ascontiguousarray(block[:, channel])))
    whole = np.concatenate(level)

    def at(frame: int) -> int:
        return samples if frame == len(whole) else frame * rate // FRAMES_PER_SECOND

    return [(at(first), at(after) - at(first)) for first, after in cut(smoothed(whole), _HELD)]


def _readable(name: str, path: Path, converted: Path) -> Path:
    """Return the recording's file, or a WAV made of it.

    Raises:
        AudioError: the file cannot be read.
    """
    try:
        with hushed(path), soundfile.SoundFile(path):
            return path
    except (soundfile.LibsndfileError, OSError):
        pass
    target = (converted / f"{name.replace('/', '@')}.wav").absolute()
    if target.is_file() and target.stat().st_mtime >= path.stat().st_mtime:
        return target
    part = target.with_suffix(".part")
    with open_sound(path) as sound:
        target.parent.mkdir(parents=True, exist_ok=True)
        with soundfile.SoundFile(part, "w", sound.rate, sound.channels, "PCM_16", format="RF64") as file:
            for block in sound.blocks:
                file.write(np.clip(block, -1.0, 1.0))
    part.rename(target)
    return target


def has_recordings(folder: Path) -> bool:
    """Return True if there is a recording in the folder or below it."""
    return any(map(is_recording, folder.rglob("*")))


def standing_splits(source: Path, usual: Sequence[str], whole: bool) -> dict[str, str]:
    """Return the splits of a folder by default: folders of the usual names; else, with `whole`, the folder as one."""
    found = {split: split for split in usual if (source / split).is_dir()}
    return found or ({one_word(source.resolve().name): "."} if whole else {})
