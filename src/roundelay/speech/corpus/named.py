"""The corpora that `roundelay prepare` knows by name: which options each takes, what is loaded for it, who reads it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.speech.corpus.dictionary import read_vocabulary
from roundelay.speech.corpus.free import download, wanted
from roundelay.speech.corpus.options import PrepareOptions
from roundelay.speech.corpus.readers.an4 import prepare_an4
from roundelay.speech.corpus.readers.fsdd import prepare_fsdd
from roundelay.speech.corpus.readers.librispeech import prepare_librispeech, prepare_mini_librispeech
from roundelay.speech.corpus.readers.switchboard import prepare_switchboard
from roundelay.speech.prepared import Corpus

NAMED = ("librispeech", "mini-librispeech", "fsdd", "an4", "switchboard")


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        source: where the corpus is, or is to be loaded to; None: downloads/NAME.
        also: further folders with parts of the corpus.
        splits: (split, part) pairs; a split may be named several times.
        vocabulary: a text or word list; with `vocabulary_size`, its most frequent words.
    """

    corpus: str
    source: Path | None = None
    also: tuple[Path, ...] = ()
    download: bool = False
    lexicon: Path | None = None
    splits: tuple[tuple[str, str], ...] = ()
    vocabulary: Path | None = None
    vocabulary_size: int = 0
    options: PrepareOptions = PrepareOptions()


def prepare_named(request: Request, data: Path, progress: Progress) -> Corpus:
    """Load what is asked for, and prepare the corpus.

    Raises:
        UserError: an option this corpus has no use for or lacks; everything that loading and preparing find.
    """
    name = request.corpus
    _check(request)
    splits: dict[str, list[str]] = {}
    for split, part in request.splits:
        splits.setdefault(split, []).append(part)
    source, lexicon = request.source or Path("downloads", name), request.lexicon
    if request.download:
        parts = [part for some in splits.values() for part in some]
        brought = download(wanted(name, parts), source, progress, with_lexicon=lexicon is None)
        lexicon = lexicon or brought
    options = _with_vocabulary(request)
    if name in ("an4", "fsdd"):
        return (prepare_an4 if name == "an4" else prepare_fsdd)(source, data, progress, options=options)
    if name == "switchboard":
        return prepare_switchboard((source, *request.also), data, progress, lexicon=lexicon, options=options)
    if lexicon is None:
        raise UserError(
            f"prepare {name} needs --lexicon, a pronunciation dictionary in CMU format, packed or not; --download "
            "brings one."
        )
    prepare = prepare_librispeech if name == "librispeech" else prepare_mini_librispeech
    return prepare(source, data, lexicon, progress, splits=splits or None, options=options)


def _check(request: Request) -> None:
    name = request.corpus
    if request.source is None and not request.download:
        free = " or --download" if name != "switchboard" else ""
        raise UserError(f"prepare {name} needs --source, the folder that holds the corpus{free}.")
    takes: Mapping[str, Sequence[str]] = {
        "--split": ("librispeech", "mini-librispeech"),
        "--lexicon": ("librispeech", "mini-librispeech", "switchboard"),
        "--vocabulary": ("librispeech", "mini-librispeech", "switchboard"),
        "--also": ("switchboard",),
    }
    given = {
        "--split": bool(request.splits),
        "--lexicon": request.lexicon is not None,
        "--vocabulary": request.vocabulary is not None,
        "--also": bool(request.also),
    }
    for option, corpora in takes.items():
        if given[option] and name not in corpora:
            raise UserError(f"prepare {name} has no use for {option}; it is for {', '.join(corpora)}.")
    if request.vocabulary_size and request.vocabulary is None:
        raise UserError("--vocabulary-size needs --vocabulary, the text whose most frequent words are taken.")


def _with_vocabulary(request: Request) -> PrepareOptions:
    """Unless words are given: the large corpora use all of their dictionary, the small ones what is spoken in them."""
    if request.vocabulary is not None:
        words = read_vocabulary(request.vocabulary, request.vocabulary_size)
        return dataclasses.replace(request.options, vocabulary=words)
    if request.corpus == "mini-librispeech":
        return dataclasses.replace(request.options, vocabulary="transcripts")
    if request.corpus in ("librispeech", "switchboard"):
        return dataclasses.replace(request.options, vocabulary="open")
    return request.options
