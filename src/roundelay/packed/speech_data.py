"""Speech to be recognised, labelled or not: splits of a prepared corpus, or a Kaldi data directory as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.speech.corpus.formats.kaldi import KaldiOptions, read_data_dir_with
from roundelay.speech.data.manifest import Utterance
from roundelay.speech.prepared import CORPUS, TRAIN, load_corpus

WAV = "wav.scp"


@dataclass(frozen=True)
class SpeechData:
    """Utterances by split; those without words are for recognition alone.

    Attributes:
        folder: that relative paths of audio begin at.
        splits: that are recognised.
        others: utterances of the same corpus that are not; their speakers may be the same.
    """

    folder: Path
    splits: Mapping[str, Sequence[Utterance]]
    others: Sequence[Utterance] = ()


def read_speech(data: Path, splits: Sequence[str], source: Path | None, progress: Progress) -> SpeechData:
    """The speech in a folder.

    Args:
        splits: of a prepared corpus; none: all but its training split.
        source: what paths in wav.scp begin at; None: the data directory, the folder above or the working directory,
            wherever the first file is.

    Raises:
        UserError: neither a prepared corpus nor a Kaldi data directory; no such split; files that cannot be used.
    """
    if (data / CORPUS).is_file():
        return _of_corpus(data, splits)
    if not (data / WAV).is_file():
        what = "no such folder" if not data.exists() else f"neither {CORPUS} nor {WAV} is in it"
        raise UserError(f"{data}: {what}. Give a prepared corpus, or a Kaldi data directory.")
    if splits:
        raise UserError(f"{data}: a Kaldi data directory is one split: leave --split out.")
    read = read_data_dir_with(data, source or _root(data), KaldiOptions(words=False), progress)
    return SpeechData(Path(), {data.resolve().name: read.utterances})


def _of_corpus(data: Path, splits: Sequence[str]) -> SpeechData:
    corpus = load_corpus(data)
    if not corpus.audio:
        raise UserError(f"{data}: its features were given, and there is no audio to hear. Give a corpus with audio.")
    chosen = splits or [name for name in corpus.splits if name != TRAIN]
    if unknown := [name for name in chosen if name not in corpus.splits]:
        raise UserError(f"{data} has no split {', '.join(unknown)}, only {', '.join(corpus.splits)}.")
    if not chosen:
        raise UserError(f"{data}: no split but {TRAIN}. Name it: --split {TRAIN}")
    taken = {name: corpus.splits[name] for name in chosen}
    others = [u for name, some in corpus.splits.items() if name not in taken for u in some]
    return SpeechData(data, taken, others)


def _root(data: Path) -> Path:
    """The folder that the first path in wav.scp begins at, if it is found."""
    for line in (data / WAV).read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.partition(" ")[2].strip()
        for root in (data, data.resolve().parent, Path()):
            if path and (root / path).is_file():
                return root
        break
    return data
