"""The sound of utterances of decoded runs, for the report: found in the runs' corpora."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.core.errors import UserError

if TYPE_CHECKING:
    from roundelay.reports.mistakes import HeardUtterance, Listen
    from roundelay_speech.data.manifest import Utterance
    from roundelay_speech.prepared import Corpus

CTM = "hyp.ctm"


def listener(runs: Sequence[Path], corpus: Path | None) -> "Listen":
    """Return a function that finds the sound of an utterance of one of these runs.

    Args:
        corpus: the prepared corpus; None: that of each run, as its recipe names it.

    Raises:
        UserError: a corpus is missing, or has no audio.
    """
    corpora = {run: _corpus_of(run, corpus) for run in runs}

    def listen(run: Path, split: str, name: str) -> "HeardUtterance | None":
        return _heard(corpora[run], run, split, name)

    return listen


@lru_cache(maxsize=8)
def _opened(folder: Path) -> "Corpus":
    from roundelay_speech.prepared import load_corpus

    return load_corpus(folder)


def _corpus_of(run: Path, given: Path | None) -> "Corpus":
    from roundelay_speech.recipes.recipe import kept_recipe

    try:
        corpus = _opened(kept_recipe(run).corpus if given is None else given)
    except UserError as error:
        raise UserError(f"{run}: --audio needs its corpus (--corpus DIR says where it is). {error}") from None
    if not corpus.audio:
        raise UserError(f"{corpus.folder}: was prepared from features, so there is no audio for --audio.")
    return corpus


def _heard(corpus: "Corpus", run: Path, split: str, name: str) -> "HeardUtterance | None":
    """Return an utterance's audio, spectrogram and timed words for a page, or None if the split lacks it."""
    from roundelay.reports.mistakes import HeardUtterance
    from roundelay_speech.audio.reading import read_audio
    from roundelay_speech.audio.sound import flac, spectrogram_png

    utterance = next((u for u in corpus.splits.get(split, ()) if u.id == name), None)
    if utterance is None:
        return None
    samples = read_audio(utterance, corpus.folder)
    rate = utterance.sampling_rate
    timed = _timed(run, split, utterance)
    words = "Below it the words as they were recognised, at their times." if timed else ""
    note = f"Frequencies from 0 to {rate // 2000} kHz. {words}".strip()
    return HeardUtterance(
        flac(samples, rate), "audio/flac", spectrogram_png(samples, rate), len(samples) / rate, timed, note
    )


def _timed(run: Path, split: str, utterance: "Utterance") -> tuple[tuple[str, float, float], ...]:
    """Return the words of an utterance with beginnings and ends in seconds, if noted (decode.ctm=true)."""
    from roundelay_speech.scoring.formats.ctm import read_ctm
    from roundelay_speech.scoring.summary import place_of

    file = run / "decode" / split / CTM
    if not file.is_file():
        return ()
    place = place_of(utterance)
    inside = [
        word
        for word in read_ctm(file).get((place.file, place.channel), ())
        if place.start <= word.midpoint <= place.start + utterance.duration
    ]
    return tuple((w.word, w.start - place.start, w.start + w.duration - place.start) for w in inside)
