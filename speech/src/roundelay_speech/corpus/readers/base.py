"""The seam between `roundelay prepare NAME` and a corpus, or a format of corpora: one `Reader` for each name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import bad_audio
from roundelay_speech.corpus.build import ReadUtterances
from roundelay_speech.corpus.download import Wanted
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir
from roundelay_speech.corpus.options import DEFAULTS, Preparation, PrepareOptions, Vocabulary
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy, LeftOut
from roundelay_speech.prepared import TRAIN, Corpus

Takes = Literal["--source", "--also", "--lexicon", "--split", "--vocabulary", "--unlabelled"]
"""Options of the command that apply to some corpora only."""
Prepare = Callable[[Path, Path | None, Mapping[str, str], Preparation, Progress], Corpus]
"""Function that prepares a corpus, from its folder, its lexicon (None if it is only to be recognised) and the part of
each split."""


def checked_folder(source: Path) -> Path:
    """Return the folder of a corpus, checked to exist.

    Raises:
        UserError: the folder does not exist.
    """
    if not source.is_dir():
        raise UserError(
            f"{source}: no such folder; `--source` must name the folder of the corpus, or add `--download`."
        )
    return source


def read_data_dirs(source: Path, on_bad: BadPolicy) -> dict[str, tuple[list[Utterance], list[LeftOut]]]:
    """Return the utterances of Kaldi data directories train, dev and test, and those left out. Raises as
    `read_data_dir`."""
    options, splits = KaldiOptions(on_bad), (TRAIN, "dev", "test")
    read = {split: read_data_dir(source / split, source, options) for split in splits}
    return {split: (one.utterances, one.left_out) for split, one in read.items()}


def checked_audio(
    splits: Mapping[str, Sequence[Utterance]], left_out: dict[str, list[LeftOut]], on_bad: BadPolicy
) -> ReadUtterances:
    """Check that the audio of utterances exists; return utterances by split, sorted by id, and those left out.

    Raises:
        UserError: some are left out, and `on_bad` is `error`.
    """
    gone = [one for some in left_out.values() for one in some]
    if gone and on_bad == "error":
        raise bad_audio(gone, len(gone) + sum(map(len, splits.values())))
    return ReadUtterances({split: sorted(us, key=lambda u: u.id) for split, us in splits.items()}, left_out)


@dataclass(frozen=True)
class Request:
    """A request of `roundelay prepare`: the corpus to prepare, and its options."""

    data: Path  # the folder to write
    source: Path | None = None  # where the corpus is, or is to be loaded to; None: downloads/NAME
    also: tuple[Path, ...] = ()  # further folders with parts of the corpus
    download: bool = False
    lexicon: Path | None = None
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the parts of each split that the user named
    vocabulary: Path | None = None  # a text or word list; with `vocabulary_size`, its most frequent words
    vocabulary_size: int = 0
    options: PrepareOptions = DEFAULTS
    seed: int = 0  # of a corpus that is made, not read

    @property
    def folder(self) -> Path:
        """The folder of the corpus's files, if the corpus has files.

        Raises:
            UserError: the user named no folder.
        """
        if self.source is None:
            raise UserError("--source must name the folder that holds the corpus.")
        return self.source

    @property
    def dictionary(self) -> Path:
        """The file of the lexicon, if the corpus needs one.

        Raises:
            UserError: the user named no lexicon.
        """
        if self.lexicon is None:
            raise UserError("--lexicon must name a pronunciation dictionary.")
        return self.lexicon


@dataclass(frozen=True)
class Reader:
    """The reader of a corpus or a format: name, description, options and function."""

    name: str  # as on the command line
    about: str  # the corpus in a sentence
    # reads it and writes the prepared corpus. Source and lexicon are there if the reader takes and needs them, and
    # options have the vocabulary.
    prepare: Callable[[Request, Progress], Corpus]
    # options that mean something for this corpus; the others are refused.
    takes: frozenset[Takes] = frozenset({"--source"})
    needs_lexicon: bool = False  # whether --lexicon must be given, unless a download brings one
    # for parts of the corpus (none: the usual ones), where they are on the network; None: not free to load.
    free: Callable[[Sequence[str]], Wanted] | None = None
    vocabulary: Vocabulary | None = None  # which words can be recognised, where the user does not say
    data: str | None = None  # where the prepared corpus goes; None: data/NAME
    licence: str = ""  # of the corpus, if all copies of it have the same

    @classmethod
    def of_format(
        cls,
        name: str,
        about: str,
        prepare: Prepare,
        usual: Mapping[str, str] = MappingProxyType({}),
        *,
        unlabelled: bool = False,
    ) -> "Reader":
        """Return the reader of users' own corpora in a format.

        Args:
            usual: name of the split -> part of the corpus, if the user names none.
            unlabelled: True if transcripts may be missing from speech that is only to be recognised.
        """

        def prepare_own(request: Request, progress: Progress) -> Corpus:
            alone = request.options.unlabelled
            splits = {split: parts[-1] for split, parts in request.splits.items()} or ({} if alone else usual)
            preparation = Preparation(request.data, request.data.name, options=request.options)
            return prepare(request.folder, None if alone else request.dictionary, splits, preparation, progress)

        takes: frozenset[Takes] = frozenset({"--source", "--lexicon", "--split", "--vocabulary"})
        if unlabelled:
            takes |= {"--unlabelled"}
        return cls(name, about, prepare_own, takes, needs_lexicon=True)

    @property
    def told(self) -> str:
        """Sentences on the corpus, on whether it is free, and on its licence."""
        licence = f" Licence: {self.licence}" if self.licence else ""
        return f"{self.about}{' Free to load.' if self.free is not None else ''}{licence}"

    def wanted(self, parts: Sequence[str] = ()) -> Wanted:
        """Return the files that `--download` loads: all, or those of some `parts` of the corpus.

        Raises:
            UserError: the corpus is not free, or has no such part.
        """
        if self.free is None:
            instead = "; name its folder with `--source`" if "--source" in self.takes else ""
            raise UserError(f"--download: {self.name} is not free to load{instead}.")
        return self.free(parts)
