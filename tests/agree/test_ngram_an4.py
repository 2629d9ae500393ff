"""Perplexities on AN4 agree with those an independent estimator gave (40.8, 21.9, 19.8 for orders 1, 2, 3)."""

import pytest

from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.ngrams.estimate import Estimator, estimate
from support.corpora import an4


@pytest.mark.parametrize(("order", "perplexity"), [(1, 40.8), (2, 21.9), (3, 19.8)])
def test_perplexity(order: int, perplexity: float) -> None:
    corpus = an4()
    train, test = (
        [line.split()[1:] for line in (corpus / split / "text").read_text().splitlines()] for split in ("train", "test")
    )
    model = estimate(train, read_lexicon(corpus / "lang" / "an4.dic").words, Estimator(order))
    assert model.perplexity(test) == pytest.approx(perplexity, abs=0.05)
