"""Guessed pronunciations of words held out of the CMU dictionary, against those the dictionary has."""

import gzip
import itertools

import pytest

from roundelay_speech.lexicon.g2p import train_g2p
from roundelay_speech.lexicon.lexicon import Lexicon, parse_lexicon
from support.corpora import english_text
from support.spelling import hold_out, judge


@pytest.mark.timeout(900)
def test_words_held_out() -> None:
    text = gzip.decompress((english_text() / "cmudict.dict.gz").read_bytes()).decode()
    rest, held_out = hold_out(parse_lexicon(text, "cmudict", strip_stress=True))
    half, some = (
        Lexicon(dict(itertools.islice(of.pronunciations.items(), 0, None, step)))
        for of, step in ((rest, 2), (held_out, 10))
    )
    score = judge(train_g2p(half), some)
    assert score.words > 500
    assert score.word_error_rate < 30
    assert score.phone_error_rate < 8
