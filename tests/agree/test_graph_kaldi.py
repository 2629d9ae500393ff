"""Our graphs against the same ones made by kaldilm and OpenFst's own minimisation, and G against the model itself."""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import kaldifst
import kaldilm
import numpy as np
import pytest

from roundelay.core.streams import stream
from roundelay_speech.decode.graphs.graph import Graph, GraphConfig, grammar_arcs
from roundelay_speech.decode.graphs.hmm import build_graph
from roundelay_speech.decode.graphs.transducers import BACKOFF, Symbols, lexicon_transducer
from roundelay_speech.decode.lm.arpa_file import write_arpa
from roundelay_speech.decode.search import decode
from roundelay_speech.hmm.topology import SILENCE, PhoneState, Tying, transitions
from roundelay_speech.ngrams.estimate import Estimator, estimate
from roundelay_speech.ngrams.ngram import BEGIN, END, Arpa
from roundelay_speech.search.fst import Fst, add_self_loops, from_arrays, map_input, to_arrays
from support.toy_speech import LEXICON, loglikes_of, sentences, tying

TEXT = sentences(stream(0, "text"), 200)
MODELS = [
    Estimator(1),
    Estimator(2),
    Estimator(3, "kneser-ney"),
    Estimator(3, "kneser-ney", cutoffs=(1, 2, 3)),
    Estimator(4, "kneser-ney", prune=1e-3),
]


def kaldi_grammar(model: Arpa, symbols: Symbols, folder: Path) -> Fst:
    words, arpa = folder / "words.txt", folder / "lm.arpa"
    words.write_text("".join(f"{word} {i}\n" for i, word in enumerate(symbols.words)))
    write_arpa(arpa, model)
    with quiet():
        text = kaldilm.arpa2fst(str(arpa), disambig_symbol=BACKOFF, read_symbol_table=str(words))
    fst = kaldifst.compile(text, acceptor=False)
    kaldifst.arcsort(fst, "ilabel")
    return fst


@contextmanager
def quiet() -> Iterator[None]:
    """kaldilm narrates every section of an ARPA file on standard error."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def longer_silence(tied: Tying) -> Tying:
    """The same with five states of silence, the two more with distributions of their own."""
    more = np.full((*tied.table.shape[:3], 2), -1, np.int32)
    more[:, SILENCE] = tied.num_pdfs + np.arange(2)
    return Tying(tied.phones, tied.context, tied.num_pdfs + 2, np.concatenate([tied.table, more], axis=3))


def kaldi_graph(model: Arpa, tied: Tying, folder: Path) -> Graph:
    """HCLG with every state that kaldilm makes, minimised by kaldifst."""
    context = tied.context
    symbols, lexicon = lexicon_transducer(LEXICON, LEXICON.phones, 0.5)
    lg = kaldifst.compose(lexicon, kaldi_grammar(model, symbols, folder))
    kaldifst.determinize_star(lg, use_log=True)
    kaldifst.minimize_encoded(lg)
    kaldifst.arcsort(lg, "ilabel")
    ids = symbols.phone_ids
    clg, windows = kaldifst.compose_context([ids[d] for d in symbols.disambiguation], context, context // 2, lg)
    kaldifst.arcsort(clg, "ilabel")
    h, labels, auxiliary = hmm_transducer(windows, tied)
    hclg = kaldifst.compose(h, clg)
    kaldifst.determinize_star(hclg, use_log=True)
    keep = np.arange(len(labels) + 1 + auxiliary)
    keep[len(labels) + 1 :] = 0
    hclg = kaldifst.StdVectorFst(from_arrays(map_input(to_arrays(hclg), keep)))
    kaldifst.minimize_encoded(hclg)
    arcs = map_input(add_self_loops(to_arrays(hclg)), np.array([0, *(pdf + 1 for _, _, pdf in labels)]))
    return Graph(from_arrays(arcs), symbols.words, tied.num_pdfs, {"states": len(arcs.final)})


def hmm_transducer(windows: Sequence[Sequence[int]], tying: Tying) -> tuple[Fst, list[PhoneState], int]:
    """H without self-loops: the labels of its states in, one phone in context out.

    Args:
        windows: phone ids in context by output label of C; (-i,) is the disambiguation symbol i, place 0 epsilon.

    Returns:
        H, what its input labels 1, 2, ... are, and how many labels of disambiguation symbols follow them.
    """
    labels: dict[PhoneState, int] = {}
    hub, states = 0, 1
    lines, marks = [], []
    for number, window in enumerate(windows):
        if number == 0:
            continue
        if len(window) == 1 and window[0] <= 0:
            marks.append(number)
            continue
        phone = window[min(1, tying.context - 1)]
        size = tying.states(phone)
        label = [
            labels.setdefault((phone, state, tying.of_window(window, state)), len(labels) + 1) for state in range(size)
        ]
        after = [*range(states, states + size - 1), hub]  # where one is after each state
        states += size - 1
        lines.append((hub, f"{hub} {after[0]} {label[0]} {number}"))
        lines += [(after[a], f"{after[a]} {after[b]} {label[b]} 0") for a, b in transitions(size)]
    lines += [(hub, f"{hub} {hub} {len(labels) + 1 + i} {number}") for i, number in enumerate(marks)]
    lines.sort(key=lambda line: line[0] != hub)  # the first line names the start state
    fst = kaldifst.compile("\n".join([*(line for _, line in lines), f"{hub} 0", ""]), acceptor=False)
    kaldifst.arcsort(fst, "olabel")
    return fst, list(labels), len(marks)


def word_row(fst: Fst, ids: list[int], backoff: int) -> float:
    """Cost of a row of words in G."""
    lines = [f"{i} {i + 1} {w} {w}" for i, w in enumerate(ids)]
    lines += [f"{i} {i} {backoff} {backoff}" for i in range(len(ids) + 1)]
    row = kaldifst.compile("\n".join([*lines, f"{len(ids)}", ""]), acceptor=False)
    best = kaldifst.shortest_path(kaldifst.compose(row, fst))
    return float(kaldifst.get_linear_symbol_sequence(best)[3].value)


@pytest.mark.parametrize("how", MODELS, ids=str)
def test_word_strings_cost_what_kaldi_says(how: Estimator, tmp_path: Path) -> None:
    model = estimate(TEXT, LEXICON.words, how)
    symbols, _ = lexicon_transducer(LEXICON, LEXICON.phones, 0.5)
    theirs, ids = kaldi_grammar(model, symbols, tmp_path), symbols.word_ids
    labels = np.array([ids[word] if word in LEXICON else 0 for word in model.words])
    ours = kaldifst.StdVectorFst(from_arrays(grammar_arcs(model, labels, ids[BACKOFF])))
    assert ours.num_states <= theirs.num_states + 1  # a start of its own also where no history matters
    for words in itertools.chain(itertools.product(LEXICON.words[:4], repeat=3), TEXT[:30], [()]):
        row = [ids[word] for word in words]
        cost = word_row(ours, row, ids[BACKOFF])
        assert cost == pytest.approx(word_row(theirs, row, ids[BACKOFF]), abs=2e-4), words
        # Back-off is a choice for G: never dearer than the model's one way, and as good as never cheaper.
        exact = sum(
            -math.log(10) * model.log10_probability(w, [BEGIN, *words[:i]]) for i, w in enumerate([*words, END])
        )
        assert cost <= exact + 1e-4


@pytest.mark.parametrize("context", [1, 2, 3], ids=["monophone", "biphone", "triphone"])
@pytest.mark.parametrize("how", MODELS[1:], ids=str)
@pytest.mark.parametrize("longer", [False, True], ids=["", "longer-silence"])
def test_same_words_at_the_same_cost(how: Estimator, context: int, longer: bool, tmp_path: Path) -> None:
    model = estimate(TEXT, LEXICON.words, how)
    tied = longer_silence(tying(context)) if longer else tying(context)
    ours, theirs = build_graph(LEXICON, model, tied, GraphConfig()), kaldi_graph(model, tied, tmp_path)
    for i in range(15):
        rng = stream(i, "speech")
        pdfs = rng.integers(0, ours.num_pdfs, 40).tolist()
        loglikes = loglikes_of(pdfs, ours.num_pdfs, rng, 2.0)
        one, two = (decode(graph, loglikes, 1000.0, 1_000_000) for graph in (ours, theirs))
        assert one.cost == pytest.approx(two.cost, abs=0.02)  # both round weights, to 2^-10, at some ten places
        assert one.words == two.words or one.cost == pytest.approx(two.cost, abs=5e-3)
