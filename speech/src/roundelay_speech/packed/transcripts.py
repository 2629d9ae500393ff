"""Transcripts in the words of a packed model, as those of its own corpus were written."""

from dataclasses import replace

from roundelay.core.errors import UserError
from roundelay_speech.corpus.words import CleanedSplits, cleaned
from roundelay_speech.data.problems import listing
from roundelay_speech.lexicon.cleaning import Cleaner
from roundelay_speech.lexicon.lexicon import Lexicon, read_lexicon
from roundelay_speech.packed.folder import DICTIONARY
from roundelay_speech.packed.model import Model
from roundelay_speech.packed.speech_data import SpeechData


def in_words_of(model: Model, data: SpeechData) -> tuple[SpeechData, dict[str, CleanedSplits]]:
    """Return speech with transcripts in the model's own words (its spelling, no punctuation, no marks of noises), and
    the changes by split. Utterances without any words left, or with speech that was not understood, are dropped. Splits
    without transcripts stay unchanged.

    Raises:
        UserError: nothing is left of a split.
    """
    lexicon, found = known_words(model), dict[str, CleanedSplits]()
    for split, utterances in data.splits.items():
        if utterances and all(u.words for u in utterances):
            found[split] = clean = cleaned({split: utterances}, lexicon)
            if not clean.splits[split]:
                reasons = listing([one.reason for one in clean.left_out])
                raise UserError(f"{split}: of all {len(utterances)} transcripts no words are left:\n{reasons}")
    splits = {name: found[name].splits[name] if name in found else some for name, some in data.splits.items()}
    return replace(data, splits=splits), found


def cleaner_of(model: Model) -> Cleaner | None:
    """Return the cleaner by which the transcripts of the model's corpus were written; None if they were not cleaned."""
    return Cleaner(known_words(model)) if model.packed.cleaned else None


def known_words(model: Model) -> Lexicon:
    """Return all words for which the model has pronunciations."""
    silence = model.columns.phones[0]
    dictionary = read_lexicon(model.folder / DICTIONARY, silence).pronunciations
    return Lexicon({**dictionary, **model.lexicon.pronunciations}, silence)
