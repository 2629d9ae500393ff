"""Silence with states of its own and phones that know their place in the word: trees, aligner and graph agree."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.graphs.graph import GraphConfig
from roundelay_speech.decode.graphs.hmm import build_graph
from roundelay_speech.decode.search import decode
from roundelay_speech.hmm.align import UNLIMITED, align, utterance_graph
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.flat_start import AlignConfig, train_alignments
from roundelay_speech.hmm.task import (
    ModelScores,
    RealignConfig,
    realign,
)
from roundelay_speech.hmm.topology import EDGE, SILENCE, STATES, Tying, transitions
from roundelay_speech.hmm.tree import OWN, DecisionTree, Leaf, Split, accumulate, grow, sharing, untied, windows
from roundelay_speech.lexicon.lexicon import Lexicon, are_by_position, base_phone
from roundelay_speech.ngrams.estimate import estimate
from roundelay_speech.ngrams.ngram import BEGIN
from roundelay_speech.ngrams.ngram import END as SENTENCE_END
from roundelay_speech.search.beam import search
from support.toy_corpus import QUICK, toy_corpus
from support.toy_speech import LEXICON, sentences, tying

MARKED = LEXICON.by_position()
DIMENSIONS = 3


def random_tree(lexicon: Lexicon, silence_states: int, leaves: int, context: int = 3, seed: int = 0) -> DecisionTree:
    """Grown on noise, so that it asks about everything."""
    rng = stream(seed, "contexts", silence_states)
    size, frames = len(lexicon.phones) + 1, 6000
    window = np.stack([rng.integers(0, size, frames), rng.integers(1, size, frames), rng.integers(0, size, frames)], 1)
    states = np.where(window[:, 1] == SILENCE, silence_states, STATES)
    state = (rng.random(frames) * states).astype(np.int64)
    context_of = np.concatenate([window, state[:, None]], axis=1)
    x = rng.normal(size=(frames, DIMENSIONS)) + 3 * rng.normal(size=(size, DIMENSIONS))[window[:, 1]]
    return grow(
        accumulate(x.astype(np.float32), context_of),
        lexicon.phones,
        leaves,
        context=context,
        silence_states=silence_states,
        min_frames=2.0,
        min_gain=0.0,
    )


LANGUAGES = {
    "plain": (LEXICON, tying(1)),
    "biphones": (LEXICON, tying(2)),
    "triphones": (LEXICON, tying(3)),
    "plain, silence 1": (LEXICON, untied(LEXICON.phones, 1).tying()),
    "plain, silence 5": (LEXICON, untied(LEXICON.phones, 5).tying()),
    "triphones, silence 4": (LEXICON, random_tree(LEXICON, 4, 60).tying()),
    "positions": (MARKED, random_tree(MARKED, STATES, 90).tying()),
    "positions, biphones, silence 5": (MARKED, random_tree(MARKED, 5, 90, context=2).tying()),
}


@pytest.fixture(params=list(LANGUAGES))
def language(request: pytest.FixtureRequest) -> tuple[Lexicon, Tying]:
    return LANGUAGES[request.param]


# silence --------------------------------------------------------------------------------------------------------------


def test_ways_through_silence() -> None:
    assert transitions(1) == []
    assert transitions(3) == [(0, 1), (1, 2)]
    assert transitions(5) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    for states in range(1, 8):
        ways = transitions(states)
        shortest = {0: 1}
        for here, there in ways:
            shortest[there] = min(shortest.get(there, states), shortest[here] + 1)
        assert shortest[states - 1] == min(states, 3)
        assert set(shortest) == set(range(states))
        assert all(any(here == state for here, _ in ways) for state in range(states - 1))


def test_trees_give_silence_its_states() -> None:
    tree = random_tree(LEXICON, 5, 60)
    tied = tree.tying()
    assert (tied.width, tied.states(SILENCE), tied.states(2)) == (5, 5, 3)
    assert (tied.table[:, SILENCE] == tied.table[0, SILENCE, 0]).all()  # silence is never split
    assert (tied.table[:, 2:, :, 3:] == -1).all()
    assert set(np.unique(tied.table[:, 1:])) == {-1, *range(tied.num_pdfs)}
    assert DecisionTree.from_json(json.loads(json.dumps(tree.to_json()))) == tree
    assert untied(LEXICON.phones, 5).num_pdfs == 5 + 3 * (len(LEXICON.phones) - 1)


# positions ------------------------------------------------------------------------------------------------------------


def test_phones_by_position() -> None:
    assert MARKED.pronunciations["TONE"] == (("T_B", "OW_I", "N_E"),)
    assert MARKED.pronunciations["GO"] == (("G_B", "OW_E"),)
    assert Lexicon({"A": (("AH",), ("SIL",))}).by_position().pronunciations["A"] == (("AH_S",), ("SIL",))
    assert len(MARKED.phones) == 1 + 4 * (len(LEXICON.phones) - 1)
    assert MARKED.phones[0] == "SIL"
    assert are_by_position(MARKED.phones)
    assert not are_by_position(LEXICON.phones)
    assert {base_phone(p) for p in MARKED.phones} == set(LEXICON.phones)
    assert LEXICON.in_phones(MARKED.phones) == MARKED
    assert LEXICON.in_phones(LEXICON.phones) is LEXICON
    assert MARKED.in_phones(MARKED.phones) is MARKED
    assert Lexicon({"X": (("Q",),)}).in_phones(MARKED.phones).phones == ("SIL", "Q")
    with pytest.raises(UserError, match="tell their place in the word already"):
        MARKED.by_position()


def test_a_name_is_not_a_mark() -> None:
    """X-SAMPA writes t_S: one phone by itself, not a form of t."""
    phones = ("SIL", "t", "t_S", "a")
    assert not are_by_position(phones)
    assert sharing(phones) == [(1,), (2,), (3,), (4,)]


def test_forms_of_a_phone_share_their_roots() -> None:
    tree = random_tree(MARKED, STATES, 90)
    by_base: dict[str, set[tuple[int, ...]]] = {}
    for phone, roots in zip(MARKED.phones, tree.roots, strict=True):
        by_base.setdefault(base_phone(phone), set()).add(roots)
    assert all(len(roots) == 1 for roots in by_base.values())
    assert tree.num_pdfs == 90
    assert untied(MARKED.phones).num_pdfs == 3 * len(LEXICON.phones)
    assert DecisionTree.from_json(json.loads(json.dumps(tree.to_json()))) == tree
    table = tree.tying().table
    assert set(np.unique(table[:, 1:])) == set(range(90))


def test_the_tree_asks_for_the_position_where_it_matters() -> None:
    """One phone sounds different at the end of a word: the one split worth making."""
    rng = stream(0, "position")
    size, frames = len(MARKED.phones) + 1, 20_000
    window = np.stack([rng.integers(0, size, frames), rng.integers(1, size, frames), rng.integers(0, size, frames)], 1)
    context = np.concatenate([window, rng.integers(0, STATES, (frames, 1))], axis=1)
    last = MARKED.phone_ids["OW_E"]
    x = rng.normal(size=(frames, DIMENSIONS)) + 5.0 * (window[:, 1:2] == last)
    tree = grow(accumulate(x.astype(np.float32), context), MARKED.phones, 500, min_frames=20.0)
    asked = [node for node in tree.nodes if isinstance(node, Split)]
    assert len(asked) == 3
    own = {MARKED.phone_ids[f"OW_{mark}"] for mark in "BEIS"}
    assert all(node.position == OWN and node.phones & own in ({last}, own - {last}) for node in asked)
    table = tree.tying().table
    assert (table[:, last] != table[:, MARKED.phone_ids["OW_B"]]).all()
    assert (table[:, MARKED.phone_ids["OW_S"]] == table[:, MARKED.phone_ids["OW_B"]]).all()


def test_as_many_leaves_as_asked_or_a_reason() -> None:
    for leaves in (60, 77, 111):
        assert random_tree(LEXICON, 3, leaves).num_pdfs == leaves
    tree = untied(LEXICON.phones)
    assert all(isinstance(node, Leaf) for node in tree.nodes)


# the aligner and the graph --------------------------------------------------------------------------------------------


def cost_by_hand(phones: list[int], loglikes: Float32, tied: Tying) -> float:
    """The least acoustic cost of all ways through the states of these phones."""
    if not phones:
        return math.inf
    padded = [EDGE, *phones, EDGE]
    pdfs: list[int] = []
    came: list[list[int]] = []  # places that may be before each place
    last = None
    for i, phone in enumerate(phones):
        first, size = len(pdfs), tied.states(phone)
        left = padded[i] if tied.context > 1 else EDGE
        right = padded[i + 2] if tied.context > 2 else EDGE
        pdfs += [tied.pdf(left, phone, right, state) for state in range(size)]
        came += [[] if last is None else [last]]
        came += [[first + here for here, there in transitions(size) if there == state] for state in range(1, size)]
        last = first + size - 1
    costs = np.full(len(pdfs), np.inf)
    costs[0] = -loglikes[0, pdfs[0]]
    for frame in loglikes[1:]:
        best = [min([costs[place], *(costs[b] for b in before)]) for place, before in enumerate(came)]
        costs = np.array(best) - frame[pdfs]
    return float(costs[-1])


def least_cost(words: list[str], lexicon: Lexicon, loglikes: Float32, tied: Tying, silence: float) -> float:
    best = math.inf
    for spoken in itertools.product(*(lexicon.pronunciations[w] for w in words)):
        for silences in itertools.product([0, 1], repeat=len(words) + 1):
            phones = [SILENCE] * silences[0]
            for names, pause in zip(spoken, silences[1:], strict=True):
                phones += [lexicon.phone_ids[p] for p in names] + [SILENCE] * pause
            chosen = sum(-math.log(silence if pause else 1 - silence) for pause in silences)
            best = min(best, chosen + cost_by_hand(phones, loglikes, tied))
    return best


def test_alignment_costs_the_least_of_all_ways(language: tuple[Lexicon, Tying]) -> None:
    lexicon, tied = language
    rng = stream(0, "noise")
    for words in sentences(rng, 8):
        loglikes = rng.normal(size=(24, tied.num_pdfs)).astype(np.float32)
        graph = utterance_graph(words[:2], lexicon, tied, silence_probability=0.3)
        found = search(graph.fst, loglikes[:, graph.pdfs], 1000.0, UNLIMITED)
        assert found is not None
        assert found[4]
        assert found[2] + found[3] == pytest.approx(least_cost(words[:2], lexicon, loglikes, tied, 0.3), abs=1e-3)


def test_aligned_states_are_ways_through_their_phones(language: tuple[Lexicon, Tying]) -> None:
    lexicon, tied = language
    rng = stream(1, "noise")
    for words in sentences(rng, 10):
        loglikes = rng.normal(size=(70, tied.num_pdfs)).astype(np.float32) * 3
        graph = utterance_graph(words, lexicon, tied)
        found = align(graph, loglikes[:, graph.pdfs], (1000.0,))
        assert found is not None
        context = windows(found.phones, found.states)
        if tied.context == 2:
            context[:, 2] = EDGE
        assert (found.pdfs == tied.table[tuple(context.T)]).all()
        steps = {
            (int(p), int(a), int(b))
            for p, q, a, b in zip(found.phones, found.phones[1:], found.states, found.states[1:], strict=False)
            if p == q and a < b
        }
        assert all((a, b) in transitions(tied.states(p)) for p, a, b in steps)


def test_the_decoding_graph_has_the_same_ways(language: tuple[Lexicon, Tying]) -> None:
    """The path the decoder finds costs what language model, silences and states cost by hand."""
    lexicon, tied = language
    config = GraphConfig(silence_probability=0.4, word_cost=0.3)
    model = estimate(sentences(stream(0, "text"), 200), LEXICON.words)
    graph = build_graph(LEXICON, model, tied, config)
    rng = stream(2, "noise")
    checked = 0
    for frames in range(8, 24):
        loglikes = 2 * rng.normal(size=(frames, tied.num_pdfs)).astype(np.float32)
        found = decode(graph, loglikes, beam=1000.0, max_active=100_000)
        if not found.reached_final or len(found.words) > 3:
            continue
        history, language_cost = [BEGIN], config.word_cost * len(found.words)
        for word in [*found.words, SENTENCE_END]:
            language_cost -= math.log(10) * model.log10_probability(word, history)
            history.append(word)
        acoustic = least_cost(list(found.words), lexicon, loglikes, tied, 0.4)
        assert found.cost == pytest.approx(language_cost + acoustic, abs=0.01)
        checked += 1
    assert checked >= 5


# the whole training ---------------------------------------------------------------------------------------------------


BY_POSITION = dataclasses.replace(QUICK, tied_states=60, tri_gaussians=60, position_dependent=True, silence_states=5)


def test_from_a_flat_start_and_again(tmp_path: Path) -> None:
    corpus, store, truth = toy_corpus(tmp_path, seed=1)
    summary = train_alignments(corpus, store, BY_POSITION, tmp_path / "ali", Silent())
    alignment = Alignment.load(tmp_path / "ali")
    assert alignment.tying.phones == MARKED.phones
    assert alignment.tying.states(SILENCE) == 5
    names = np.array(["", *(base_phone(p) for p in MARKED.phones)])
    labels = np.concatenate([truth[name] for name in store.utterance_ids])
    assert (names[alignment.phones] == np.array(["", *LEXICON.phones])[labels[:, 0]]).mean() > 0.98
    assert summary.aligned == summary.utterances

    def loglikes_of(name: str) -> Float32:
        first, frames = store.span(name)
        scores = np.full((frames, alignment.num_pdfs), -8.0, np.float32)
        scores[np.arange(frames), alignment.pdf[first : first + frames]] = 0.0
        return scores

    out = tmp_path / "again"
    again = realign(
        corpus,
        store,
        alignment,
        ModelScores(loglikes_of, "itself"),
        out=out,
        progress=Silent(),
        config=RealignConfig(workers=1),
    )
    assert again.changed_share is not None
    assert again.changed_share < 0.01
    with pytest.raises(UserError, match="differs in silence_states"):
        train_alignments(corpus, store, dataclasses.replace(BY_POSITION, silence_states=4), tmp_path / "ali", Silent())


def test_options_at_their_defaults_know_earlier_alignments() -> None:
    assert not {"position_dependent", "silence_states"} & set(AlignConfig().deciding())
    assert AlignConfig(silence_states=4).deciding()["silence_states"] == 4
    with pytest.raises(UserError, match="silence_states is 0: give a whole number from 1 to 9"):
        AlignConfig(silence_states=0)
