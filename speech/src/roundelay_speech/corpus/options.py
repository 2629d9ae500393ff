"""Options of preparing a corpus: policies for bad input, and choices of features, words and audio."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from roundelay_speech.audio.distortion import with_distortions
from roundelay_speech.audio.speed import perturbed
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy
from roundelay_speech.features.parts import FeatureConfig
from roundelay_speech.features.warps import NO_WARPS, Warps, warped
from roundelay_speech.lexicon.lexicon import Lexicon, LexiconCase, MissingWordPolicy

Vocabulary = Literal["lexicon", "transcripts", "open"] | frozenset[str]
"""Choices of the words that can be recognised: all of the lexicon, which must have all words of the transcripts; those
of the transcripts only (closed); all, and held-out transcripts may have others, which are errors when scored (open); or
open, of given words and those of the training transcripts."""


@final
@dataclass(frozen=True)
class Copies:
    """Copies of training utterances, for more training data from the same recordings."""

    speeds: tuple[float, ...] = ()  # played so fast, a copy for each but 1
    warps: Warps = NO_WARPS  # with frequencies warped
    distortions: tuple[str, ...] = ()  # kinds of other sounds, one copy of each utterance: see audio/distortion.py

    def added(self, utterances: Sequence[Utterance]) -> list[Utterance]:
        """Return the utterances, then all copies of them.

        Raises:
            UserError: there is no such speed, warp or kind; or no speaker to be warped.
        """
        return with_distortions(warped(perturbed(utterances, self.speeds), self.warps), self.distortions)


NO_COPIES = Copies()


@dataclass(frozen=True)
class PrepareOptions:
    """Policies for bad input, and options of features, words and audio."""

    on_bad: BadPolicy = "error"  # empty transcripts, audio or features that cannot be used
    max_bad_share: float = 0.1  # of a split's utterances that may be left out, for any reason
    on_missing_words: MissingWordPolicy = "error"
    map_to: str | None = None  # under "map": the word of the lexicon that stands for missing ones
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)
    copies: Copies = NO_COPIES  # of training utterances, that are added
    workers: int | None = None  # processes for features; None: as many as pay
    strip_stress: bool = False  # of the lexicon's vowels: AH0, AH1 -> AH
    lexicon_case: LexiconCase | None = None  # of the lexicon's words; None: that of the transcripts, if they have one
    allow_pipes: bool = False  # run the commands of wav.scp
    pipe_seconds: float = 300.0  # that one of them may take
    rate: int | None = None  # Hz, that audio is resampled to as it is read; None: all has one rate
    channel: int | None = None  # of recordings that have several, where nothing else names one; None: the first
    clean_transcripts: bool = False  # write words as the dictionary does, without punctuation and marks of noises
    dictionary: Lexicon | None = None  # that this is done with; None: the corpus's own
    on_overlap: Literal["warn", "error"] = "warn"  # a speaker, or the same audio, in train and in another split
    given_features: bool = False  # take those of feats.scp though there is audio
    frame_shift_ms: float | None = None  # of feats.scp; None: as the data directory says, or 10
    vocabulary: Vocabulary = "lexicon"
    unlabelled: bool = False  # to be recognised alone: words, speakers and a training split may be missing
    shards: int | None = None  # of the training features; None: as they are, in one file where they are new


DEFAULTS = PrepareOptions()


@final
@dataclass(frozen=True)
class Preparation:
    """The description of a corpus to be prepared: folder, name, licence and options."""

    data: Path  # the folder to write (see prepared)
    name: str
    licence: str = ""  # for the reader of corpus.json
    options: PrepareOptions = DEFAULTS


OPEN = PrepareOptions(vocabulary="open")


def is_open(vocabulary: Vocabulary) -> bool:
    """Return True if only words of training transcripts need pronunciations."""
    return vocabulary == "open" or isinstance(vocabulary, frozenset)
