"""From a flat start to phones that begin where the synthesiser began them."""

import importlib.util
from pathlib import Path

import pytest

from roundelay.core.progress import Silent
from roundelay_speech.corpus.demo.make import DemoSize, prepare_demo
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.boundaries import PHONE_TIMES, boundary_errors, synthesised_boundaries
from roundelay_speech.hmm.flat_start import AlignConfig, train_alignments


@pytest.mark.skipif(importlib.util.find_spec("espeakng_loader") is None, reason="needs the extra roundelay[demo]")
def test_the_median_error_is_at_most_20_ms(tmp_path: Path) -> None:
    """A sixth of the demo corpus; no time is seen in training."""
    corpus = prepare_demo(tmp_path / "data", Silent(), size=DemoSize(train=120, dev=20, test=20))
    store = corpus.features()
    train_alignments(corpus, store, AlignConfig(tied_states=200), tmp_path / "ali", Silent())
    alignment, times = Alignment.load(tmp_path / "ali"), tmp_path / "data" / PHONE_TIMES
    for utterances in corpus.splits.values():
        errors = boundary_errors(alignment, store, times, [u.id for u in utterances])
        assert errors.unmatched < 0.1 * len(errors.seconds)
        assert errors.median_ms <= 20
    assert len(synthesised_boundaries(corpus, tmp_path / "ali")) == 3
