"""Forced alignment: known states come back, costs are those of all ways tried by hand, too short is too short."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.streams import stream
from roundelay_speech.hmm.align import align, shortest, utterance_graph
from roundelay_speech.hmm.topology import SILENCE
from support.toy_speech import LEXICON, frames_of, loglikes_of, phones_of, sentences, tying


@pytest.mark.parametrize("context", [1, 2, 3])
def test_known_states_come_back(context: int) -> None:
    """Clean frames of any pronunciation, with silence between some words."""
    rng, tied = stream(0, "align", context), tying(context)
    for words in sentences(rng, 20):
        phones = phones_of(words, rng)
        if len(words) > 1 and rng.random() < 0.5:  # a pause after the first word, in its first pronunciation
            phones = [*phones_of(words[:1]), *phones_of(words[1:])[1:]]
        frames = frames_of(phones, tied, rng)
        loglikes = loglikes_of([pdf for *_, pdf in frames], tied.num_pdfs, rng, 0.5)
        graph = utterance_graph(words, LEXICON, tied)
        found = align(graph, loglikes[:, graph.pdfs], (15.0, 100.0))
        assert found is not None
        assert list(zip(found.phones, found.states, found.pdfs, strict=True)) == frames
        assert found.acoustic == pytest.approx(float(loglikes[np.arange(len(frames)), found.pdfs].sum()), rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(LEXICON.words), min_size=1, max_size=5), st.sampled_from([1, 3]))
def test_shortest_is_exactly_how_short_it_may_be(words: list[str], context: int) -> None:
    graph = utterance_graph(words, LEXICON, tying(context))
    scores = np.zeros((shortest(words, LEXICON), len(graph.pdfs)), np.float32)
    assert align(graph, scores, (1000.0,)) is not None
    assert align(graph, scores[1:], (1000.0,)) is None


def test_a_wider_beam_is_tried_when_a_narrow_one_fails() -> None:
    """Every frame speaks for silence, so a narrow beam drops whoever begins to speak; but there is no time for it."""
    words = ["STOP"] * 8
    graph = utterance_graph(words, LEXICON, tying(1))
    silent = np.isin(graph.pdfs, [0, 1, 2])
    scores = np.where(silent, 0.0, -5.0).astype(np.float32) * np.ones((shortest(words, LEXICON), 1), np.float32)
    assert align(graph, scores, (1.0,)) is None
    found = align(graph, scores, (1.0, 1000.0))
    assert found is not None
    assert SILENCE not in found.phones


def test_nothing_cannot_be_aligned() -> None:
    graph = utterance_graph(["GO"], LEXICON, tying(1))
    assert align(graph, np.zeros((0, len(graph.pdfs)), np.float32), (10.0,)) is None
