"""Speech, labelled or not: splits of a prepared corpus; a Kaldi data directory, or a folder of recordings, as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.audio.recordings import one_word
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir
from roundelay_speech.corpus.formats.recordings import RecordingOptions, has_recordings, read_recordings
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.prepared import CORPUS, TRAIN, has_words, load_corpus

WAV = "wav.scp"


@dataclass(frozen=True)
class SpeechData:
    """Speech to recognise or to learn from: utterances by split, with or without words."""

    folder: Path  # that relative paths of audio begin at
    splits: Mapping[str, Sequence[Utterance]]  # that are recognised
    others: Sequence[Utterance] = ()  # utterances of the same corpus that are not; their speakers may be the same


def read_speech(
    data: Path, splits: Sequence[str], source: Path | None, progress: Progress, recordings: RecordingOptions
) -> SpeechData:
    """Read the speech in a folder.

    Args:
        splits: splits of a prepared corpus; empty: all but its training split.
        source: the folder where paths in wav.scp begin; None: the data directory, the folder above or the working
            directory, wherever the first file is.
        recordings: options of reading a folder of recordings.

    Raises:
        UserError: no speech in the folder; no such split; files that cannot be used.
    """
    if (data / CORPUS).is_file():
        return _of_corpus(data, splits)
    is_kaldi = (data / WAV).is_file()
    if not is_kaldi and not has_recordings(data):
        what = f"neither {CORPUS} nor {WAV} is in it, nor a recording" if data.exists() else "no such folder"
        raise UserError(f"{data}: {what}. Give a prepared corpus, a Kaldi data directory or a folder of recordings.")
    if splits:
        what = "a Kaldi data directory" if is_kaldi else "a folder of recordings"
        raise UserError(f"{data}: {what} is one split: leave --split out.")
    if not is_kaldi:
        return SpeechData(
            Path(), {one_word(data.resolve().name): read_recordings(data, recordings, progress).utterances}
        )
    read = read_data_dir(data, source or root_of(data), KaldiOptions(words=False), progress)
    return SpeechData(Path(), {data.resolve().name: read.utterances})


def read_training_speech(
    data: Path, splits: Sequence[str], source: Path | None, progress: Progress, recordings: RecordingOptions
) -> SpeechData:
    """Read the speech in a folder to learn from, as `read_speech`, but without `splits` take a prepared corpus's
    training split, or all if it has none.

    Raises:
        UserError: as `read_speech`; some utterances have words, and others not.
    """
    if not splits and (data / CORPUS).is_file():
        there = load_corpus(data).splits
        splits = [TRAIN] if TRAIN in there else list(there)
    found = read_speech(data, splits, source, progress, recordings)
    has_words(data.name, [u for some in found.splits.values() for u in some])
    return found


def _of_corpus(data: Path, splits: Sequence[str]) -> SpeechData:
    corpus = load_corpus(data)
    if not corpus.audio:
        raise UserError(f"{data}: its features were given, and there is no audio to hear. Give a corpus with audio.")
    chosen = splits or corpus.held_out
    if unknown := [name for name in chosen if name not in corpus.splits]:
        raise UserError(f"{data} has no split {', '.join(unknown)}, only {', '.join(corpus.splits)}.")
    if not chosen:
        raise UserError(f"{data}: no split but {TRAIN}. Name it: --split {TRAIN}")
    taken = {name: corpus.splits[name] for name in chosen}
    others = [u for name, some in corpus.splits.items() if name not in taken for u in some]
    return SpeechData(data, taken, others)


def root_of(data: Path) -> Path:
    """Return the folder where the first path in wav.scp begins, if it is found."""
    for line in (data / WAV).read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.partition(" ")[2].strip()
        for root in (data, data.resolve().parent, Path()):
            if path and (root / path).is_file():
                return root
        break
    return data
