"""Prepares a corpus by its name: the user's options are compared with those its reader takes."""

import dataclasses
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.corpus.download import download
from roundelay_speech.corpus.options import PrepareOptions
from roundelay_speech.corpus.readers import READERS
from roundelay_speech.corpus.readers.base import Reader, Request, Takes
from roundelay_speech.corpus.words import read_vocabulary
from roundelay_speech.prepared import Corpus


def prepare_named(name: str, request: Request, progress: Progress) -> Corpus:
    """Prepare the corpus `name`, and first download it if asked to.

    Raises:
        UserError: the corpus lacks an option, or has no use for one; all faults that loading and preparing find.
    """
    reader = READERS[name]
    _check(reader, request)
    source, lexicon = request.source, request.lexicon
    if source is None and "--source" in reader.takes:
        source = Path("downloads", name)
    if request.download and source is not None:
        parts = [part for some in request.splits.values() for part in some]
        brought = download(reader.wanted(parts), source, progress, with_lexicon=lexicon is None)
        lexicon = lexicon or brought
    if lexicon is None and reader.needs_lexicon and not request.options.unlabelled:
        brings = "" if reader.free is None else "; --download brings one"
        raise UserError(
            f"prepare {name} needs --lexicon, a pronunciation dictionary in CMU format, packed or not{brings}."
        )
    options = _with_vocabulary(reader, request)
    return reader.prepare(dataclasses.replace(request, source=source, lexicon=lexicon, options=options), progress)


def _check(reader: Reader, request: Request) -> None:
    given: dict[Takes, bool] = {
        "--source": request.source is not None,
        "--also": bool(request.also),
        "--lexicon": request.lexicon is not None,
        "--split": bool(request.splits),
        "--vocabulary": request.vocabulary is not None,
        "--unlabelled": request.options.unlabelled,
    }
    if "--source" in reader.takes and request.source is None and not request.download:
        free = "" if reader.free is None else " or --download"
        raise UserError(f"prepare {reader.name} needs --source, the folder that holds the corpus{free}.")
    if request.download:
        reader.wanted()
    for option, is_given in given.items():
        if is_given and option not in reader.takes:
            others = ", ".join(other.name for other in READERS.values() if option in other.takes)
            raise UserError(f"prepare {reader.name} has no use for {option}; it is for {others}.")
    if request.options.unlabelled:
        _check_unlabelled(request)
    if request.vocabulary_size and request.vocabulary is None:
        raise UserError("--vocabulary-size needs --vocabulary, the text whose most frequent words are taken.")


def _check_unlabelled(request: Request) -> None:
    """Raise a UserError if a request for speech without words has an option for training or for words."""
    options = request.options
    for option, is_given in (
        ("--lexicon", request.lexicon is not None),
        ("--vocabulary", request.vocabulary is not None),
        ("--on-missing-words", options.on_missing_words != "error"),
        ("--clean-transcripts", options.clean_transcripts),
        ("--speed", bool(options.copies.speeds)),
        ("--warp", bool(options.copies.warps.factors)),
        ("--distort", bool(options.copies.distortions)),
        ("--shards", options.shards is not None),
    ):
        if is_given:
            raise UserError(f"prepare --unlabelled: leave {option} out: speech that is only recognised needs none.")


def _with_vocabulary(reader: Reader, request: Request) -> PrepareOptions:
    """Return the options of preparing with the usual vocabulary, unless one is given: the large corpora use all of
    their dictionary, the small ones the words spoken in them."""
    if request.vocabulary is not None:
        words = read_vocabulary(request.vocabulary, request.vocabulary_size)
        return dataclasses.replace(request.options, vocabulary=words)
    if reader.vocabulary is not None:
        return dataclasses.replace(request.options, vocabulary=reader.vocabulary)
    return request.options
