"""A prepared corpus written for others: Kaldi data directories, Lhotse manifests.

One folder (Kaldi) or one set of files (Lhotse) for each split, and the lexicon as `lexicon.txt`, so that
`roundelay prepare` reads back what was written. Audio stays where it is and is named by absolute paths; utterances that
`prepare` left out are not written, nor are copies at other speeds or warps, which have no audio of their own.
"""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import refuse_ours, write_text
from roundelay.core.progress import Progress
from roundelay_speech.corpus.formats.kaldi_writing import write_data_dir
from roundelay_speech.corpus.formats.lhotse_writing import write_part
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.kaldi_io.writing import write_archive
from roundelay_speech.lexicon.lexicon import write_lexicon
from roundelay_speech.prepared import PREPARED_LEXICON, Corpus


@dataclass(frozen=True)
class Exported:
    """Summary of a split as it was written."""

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
    """Return the number of frames."""
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

    They are the store's, weighted with the frames of this split: added up over all splits they are the store's again.
    """
    index = store.speakers.names.index(speaker)
    mean = store.speakers.mean[index].astype(np.float64)
    square = np.square(store.speakers.std[index].astype(np.float64)) + np.square(mean)
    return np.stack([np.append(mean * frames, frames), np.append(square * frames, 0.0)])
