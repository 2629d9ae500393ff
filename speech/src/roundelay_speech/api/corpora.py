"""Corpora from Python: prepare, inspect, align."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from roundelay.core.configure import Overrides
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.strategy_text import did_you_mean
from roundelay.terminal import Bar
from roundelay_speech.api.recipes import load_recipe
from roundelay_speech.corpus.inspection.findings import Inspection
from roundelay_speech.corpus.inspection.inspect import InspectOptions, inspect_corpus
from roundelay_speech.corpus.named import prepare_named
from roundelay_speech.corpus.options import DEFAULTS, PrepareOptions
from roundelay_speech.corpus.readers import READERS
from roundelay_speech.corpus.readers.base import Request
from roundelay_speech.hmm.alignment import AlignSummary
from roundelay_speech.hmm.flat_start import train_alignments
from roundelay_speech.prepared import Corpus, load_corpus
from roundelay_speech.recipes.recipe import Recipe

INSPECTED = InspectOptions()


class Sources(TypedDict, total=False):
    """The places from which a corpus is read; each is the option of `roundelay prepare` of that name."""

    source: Path
    also: Sequence[Path]
    download: bool
    lexicon: Path
    splits: Mapping[str, Sequence[str]]  # the parts of each split
    vocabulary: Path
    vocabulary_size: int
    seed: int


def prepare(
    name: str,
    data: Path | str | None = None,
    *,
    options: PrepareOptions = DEFAULTS,
    progress: Progress | None = None,
    **sources: Unpack[Sources],
) -> Corpus:
    """Check the corpus `name`, read its lexicon and compute its features, into the folder `data` (data/NAME).

    Args:
        name: a corpus by name, or the format of your own: kaldi, lhotse, recordings.
        options: policies for bad input, and options of features, words and audio.
        progress: draws how far it is; None: at the terminal, or as lines.
        sources: where the corpus is.

    Raises:
        UserError: no such corpus; an option that it lacks or has no use for; all faults that loading and preparing
            find.
    """
    if name not in READERS:
        raise UserError(f"there is no corpus {name!r}.{did_you_mean(name, READERS)} Known: {', '.join(READERS)}.")
    whole = {**sources, "also": tuple(map(Path, sources.get("also", ())))}
    places = {key: Path(str(whole[key])) for key in ("source", "lexicon", "vocabulary") if whole.get(key) is not None}
    folder = usual_data(name) if data is None else Path(data)
    request = Request(**{**whole, **places, "data": folder, "options": options})  # type: ignore[arg-type]
    return prepare_named(name, request, progress or Bar())


def usual_data(name: str) -> Path:
    """Return the folder of a prepared corpus, if the user names none: data/NAME."""
    return Path(READERS[name].data or f"data/{name}")


def inspect(corpus: Path | str, options: InspectOptions = INSPECTED, *, progress: Progress | None = None) -> Inspection:
    """Find oddities of a corpus, and their remedies; nothing is written.

    Args:
        corpus: a prepared corpus, a Kaldi data directory, or a folder that holds several.

    Raises:
        UserError: there is no corpus; faults of one are findings.
    """
    return inspect_corpus(Path(corpus), options, progress or Bar())


def align(recipe: str | Path | Recipe, overrides: Overrides = (), *, progress: Progress | None = None) -> AlignSummary:
    """Train hidden Markov models from a flat start on the recipe's corpus, and label every frame. The folder is the
    recipe's `alignment`. If it already exists, from the same corpus and configuration, nothing is done.

    Raises:
        UserError: as `load_recipe`; the corpus is missing; too many utterances cannot be aligned.
    """
    known = load_recipe(recipe, overrides)
    corpus = load_corpus(known.corpus)
    return train_alignments(corpus, corpus.features(), known.align, known.aligned, progress or Bar())
