"""Lattices rescored with another language model: what they cost, and that a graph of that model says the same."""

import gzip
import math
import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import kaldifst
import numpy as np
import pytest

from roundelay.core.cores import available_bytes
from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.confidence import Pronouncing
from roundelay_speech.decode.graphs.graph import Graph, GraphConfig, grammar_arcs, save_graph
from roundelay_speech.decode.graphs.hmm import HmmGraph, build_graph
from roundelay_speech.decode.graphs.making import LM_FILE, GraphJob, LanguageOptions, find_or_make
from roundelay_speech.decode.lattice import WordLattice, WordString, word_lattice
from roundelay_speech.decode.lm.arpa_file import write_arpa
from roundelay_speech.decode.lm.given import check_fits, declared_counts, expected, load_model
from roundelay_speech.decode.lm.scorer import ArpaScorer, PathScorer, Scorer
from roundelay_speech.decode.parallel import Search, decoders
from roundelay_speech.decode.rescore import Rescorer, rescorer_of
from roundelay_speech.decode.search import decode
from roundelay_speech.ngrams.estimate import Estimator, estimate, prune, share_of_histories
from roundelay_speech.ngrams.ngram import END, Arpa, restrict
from roundelay_speech.search.fst import from_arrays, to_arrays
from support.toy_speech import LEXICON, frames_of, loglikes_of, phones_of, sentences, tying

WHEELS = sys.platform == "linux" and platform.machine() == "x86_64"
"""Tests install KenLM there (the extra `dev`): if it is missing, they fail."""
needs_kenlm = pytest.mark.skipif(
    find_spec("kenlm") is None and not WHEELS, reason="KenLM has no wheel for this machine, and is not installed"
)
SAID = sentences(stream(3, "said"), 30)


def model(order: int, text: int = 60) -> Arpa:
    return estimate(sentences(stream(0, "text"), text), LEXICON.words, Estimator(order, method="kneser-ney"))


def noisy(name: str, words: list[str], scale: float = 0.3) -> Float32:
    rng, tied = stream(1, name), tying(3)
    frames = frames_of(phones_of(words), tied, rng)
    return np.float32(scale) * loglikes_of([pdf for *_, pdf in frames], tied.num_pdfs, rng, 3.0)


def wide(graph: Graph, loglikes: Float32, beam: float = 9.0) -> WordLattice:
    found = word_lattice(graph, loglikes, beam=500.0, lattice_beam=beam)
    assert found is not None
    assert found.whole
    return found


def rescored(rescorer: Rescorer, lattice: WordLattice, beam: float = 30.0) -> WordLattice:
    arcs = rescorer.lattice(to_arrays(lattice.fst), beam)
    assert arcs is not None
    return WordLattice(kaldifst.StdVectorFst(from_arrays(arcs)), lattice.words)


def grammar_path(arpa: Arpa, words: list[str]) -> float:
    """The cheapest way through the grammar as a transducer, found by OpenFst."""
    labels = np.arange(1, len(arpa.words) + 1)
    arcs = grammar_arcs(arpa, labels, len(arpa.words) + 1)
    arcs.arcs["ilabel"][arcs.arcs["ilabel"] > len(arpa.words)] = 0  # giving up a word reads nothing
    grammar = kaldifst.StdVectorFst(from_arrays(arcs))
    ids = [arpa.word_ids[word] + 1 for word in words]
    row = "".join(f"{i} {i + 1} {label} {label}\n" for i, label in enumerate(ids)) + f"{len(ids)}\n"
    acceptor = kaldifst.compile(row, acceptor=False)
    kaldifst.arcsort(acceptor, "olabel")
    both = kaldifst.compose(acceptor, grammar)
    return float(kaldifst.get_linear_symbol_sequence(kaldifst.shortest_path(both))[3].value)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_scorer_says_what_the_model_says_word_by_word(order: int) -> None:
    arpa = model(order)
    scorer: Scorer = ArpaScorer(arpa)
    for sentence in SAID:
        state, history = scorer.start, ["<s>"]
        for word in sentence:
            cost, state = scorer.word(state, word)
            assert cost == pytest.approx(-math.log(10) * arpa.log10_probability(word, history), abs=1e-9)
            history.append(word)
        assert scorer.end(state) == pytest.approx(-math.log(10) * arpa.log10_probability(END, history), abs=1e-9)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_paths_cost_what_the_transducer_charges(order: int) -> None:
    arpa = model(order)
    paths = PathScorer(arpa)
    differs = 0
    for sentence in SAID:
        cost = paths.sentence(tuple(sentence))
        assert cost == pytest.approx(grammar_path(arpa, sentence), abs=1e-4)
        exact = ArpaScorer(arpa).sentence(tuple(sentence))
        assert cost <= exact + 1e-9
        differs += cost < exact - 1e-6
    assert bool(differs) == (order > 2)  # or the two kinds of scorer would be one


@needs_kenlm
@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
@pytest.mark.parametrize("order", [2, 4])
def test_kenlm_says_the_same(order: int, name: str, tmp_path: Path) -> None:
    arpa = model(order)
    write_arpa(tmp_path / name, arpa)
    ours, theirs = ArpaScorer(arpa), load_model(tmp_path / name)
    assert not theirs.knows("<unk>")
    assert not theirs.knows("ELEPHANT")
    for sentence in SAID:
        a, b = ours.start, theirs.start
        for word in sentence:
            assert theirs.knows(word)
            cost, a = ours.word(a, word)
            same, b = theirs.word(b, word)
            assert same == pytest.approx(cost, abs=1e-5)
        assert theirs.end(b) == pytest.approx(ours.end(a), abs=1e-5)


def test_a_model_of_words_alone_which_kenlm_does_not_take_is_read_all_the_same(tmp_path: Path) -> None:
    arpa = model(1)
    write_arpa(tmp_path / "lm.arpa", arpa)
    ours, found = ArpaScorer(arpa), load_model(tmp_path / "lm.arpa")
    assert f"{len(arpa.words):,} n-grams" in expected(tmp_path / "lm.arpa")
    for sentence in SAID:
        assert found.sentence(tuple(sentence)) == pytest.approx(ours.sentence(tuple(sentence)), abs=1e-4)


@pytest.fixture(scope="module")
def small() -> Graph:
    return build_graph(LEXICON, model(1), tying(3))


def test_strings_cost_what_the_new_model_says(small: Graph) -> None:
    """The same strings as before, each at its old cost less the old grammar's plus the new model's."""
    old, new = PathScorer(model(1)), ArpaScorer(model(4))
    lattice = wide(small, noisy("costs", ["GO", "TO"], scale=0.1), beam=6.0)
    before = {string.words: string.cost for string in lattice.best(5000)}
    after = rescored(Rescorer(small.words, old, new), lattice, beam=1000.0).best(5000)
    assert {string.words for string in after} == before.keys()
    assert 50 < len(after) == len(before) < 5000
    for string in after:
        wanted = before[string.words] - old.sentence(string.words) + new.sentence(string.words)
        assert string.cost == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("first", [1, 2])
def test_one_pass_and_two_agree(order: int, first: int) -> None:
    """A graph of the large model gives each string the same cost, but for its shortcuts through back-off."""
    old, new = model(first), model(order, text=200)
    graph, large = build_graph(LEXICON, old, tying(3)), build_graph(LEXICON, new, tying(3))
    rescorer = Rescorer(graph.words, PathScorer(old), ArpaScorer(new))
    shortcut, exact = PathScorer(new), ArpaScorer(new)
    for number, words in enumerate(SAID[:6]):
        loglikes = noisy(f"agree {number}", words)
        two = rescored(rescorer, wide(graph, loglikes)).best(10)
        one = {s.words: s.cost for s in wide(large, loglikes).best(300)}
        for string in (string for string in two if string.words in one):
            more = exact.sentence(string.words) - shortcut.sentence(string.words)
            assert string.cost == pytest.approx(one[string.words] + more, abs=2e-3)
        assert two[0].words in one
        best = decode(large, loglikes, beam=500.0, max_active=100_000)
        if exact.sentence(best.words) - shortcut.sentence(best.words) < 1e-6:
            assert two[0].words == best.words
            assert two[0].cost == pytest.approx(best.cost, abs=2e-3)
        assert order > 2 or two[0].words == best.words


def test_the_beam_cuts(small: Graph) -> None:
    """A cut lattice holds every string within the beam and no state that leads nowhere."""
    rescorer = Rescorer(small.words, PathScorer(model(1)), ArpaScorer(model(3)))
    lattice = wide(small, noisy("cut", ["GO", "TO"], scale=0.1), beam=6.0)
    every = rescored(rescorer, lattice, beam=1000.0).best(300)
    cut = rescored(rescorer, lattice, beam=2.0)
    within = [string for string in every if string.cost <= every[0].cost + 1.99]
    assert 1 < len(within) < 300
    assert cut.best(len(within)) == within
    assert to_arrays(cut.fst).arcs.size < to_arrays(lattice.fst).arcs.size


@pytest.fixture
def folder(tmp_path: Path, small: Graph) -> Path:
    save_graph(small, tmp_path)
    write_arpa(tmp_path / LM_FILE, model(1))
    return tmp_path


def spoken() -> Iterator[tuple[str, Float32]]:
    yield from ((f"u{number}", noisy(f"all {number}", words, scale=1.0)) for number, words in enumerate(SAID[:8]))


def test_decoders_rescore(folder: Path) -> None:
    """Words, n-best lists, lattices, times and confidences are all those of the new model."""
    large = model(2, text=200)
    how = Pronouncing(LEXICON, tying(3), 0.5, 0.01)
    options = Search(0.3, beam=100.0, max_active=100_000, nbest=5, lattice=True, times=True, lattice_beam=9.0)
    rescorer = rescorer_of(folder, ArpaScorer(large))
    with decoders(folder, 1, how, rescorer) as run:
        found = run.search(spoken(), options)
    with decoders(folder, 2, how, rescorer) as run:
        again = run.search(spoken(), options)
    assert again.details == found.details
    assert again.hypotheses.keys() == found.hypotheses.keys()
    one_pass = build_graph(LEXICON, large, tying(3))
    for utterance, loglikes in spoken():
        best = decode(one_pass, np.float32(0.3) * loglikes, beam=500.0, max_active=100_000)
        hypothesis, detail = found.hypotheses[utterance], found.details[utterance]
        assert hypothesis.words == best.words == detail.nbest[0].words
        assert hypothesis.cost == pytest.approx(best.cost, abs=2e-3)
        assert [word.word for word in detail.timed] == list(best.words)
        assert detail.lattice
    assert found.kept_as_found == 0


def test_words_that_the_model_lacks_are_not_recognised(small: Graph) -> None:
    few = restrict(model(2), ["GO", "TO", "TOE", "STOP"]).model
    rescorer = Rescorer(small.words, PathScorer(model(1)), ArpaScorer(few))
    assert rescorer.unknown == ["KNOW", "NO", "TONE", "TWO"]
    for string in rescored(rescorer, wide(small, noisy("few", ["TWO", "GO"]))).best(50):
        assert {*string.words} <= {"GO", "TO", "TOE", "STOP"}
    assert rescorer.string(WordString(("TWO",), 1.0)).cost == math.inf
    lower = estimate([["go"]], ["go"])
    with pytest.raises(UserError, match="upper and lower case"):
        Rescorer(small.words, PathScorer(model(1)), ArpaScorer(lower))


def test_an_unfinished_sentence_stays(folder: Path) -> None:
    """One frame is the end of no sentence: nothing is rescored, and that is counted."""
    rescorer = rescorer_of(folder, ArpaScorer(model(2)))
    short = [("short", noisy("short", ["GO"])[:1])]
    with decoders(folder, 1) as run:
        before = run.search(short, Search(1.0))
    with decoders(folder, 1, None, rescorer) as run:
        after = run.search(short, Search(1.0))
    assert after.hypotheses == before.hypotheses
    assert not before.hypotheses["short"].reached_final
    assert after.kept_as_found == 1


def test_a_given_model_is_pruned_by_its_own_histories() -> None:
    """Shares of histories add up, and a pruned model is still one of probabilities."""
    arpa = model(3)
    share = share_of_histories(arpa)
    begin, end = arpa.node(["<s>"]), arpa.node(["</s>"])
    assert share[begin] == share[end] > 0
    assert share[1 : 1 + arpa.counts[0]].sum() - share[begin] == pytest.approx(1.0, abs=1e-6)
    assert share[arpa.node(["<s>", "GO"])] == pytest.approx(share[begin] * 10 ** arpa.log10_probability("GO", ["<s>"]))
    fewer = prune(arpa, 1e-3, share)
    assert fewer.counts[0] == arpa.counts[0]
    assert 0 < sum(fewer.counts[1:]) < sum(arpa.counts[1:])
    for history in (["<s>"], ["<s>", "GO"], ["TO", "NO"]):
        total = sum(10 ** fewer.log10_probability(word, history) for word in (*LEXICON.words, END))
        assert total == pytest.approx(1.0, abs=1e-6)
    text = sentences(stream(0, "text"), 60)
    assert arpa.perplexity(text) < fewer.perplexity(text) < arpa.perplexity(text) * 1.5


def test_a_graph_that_nobody_has_memory_for_is_refused(tmp_path: Path) -> None:
    """Before anything is read, with the way out."""
    huge = tmp_path / "huge.arpa"
    huge.write_text("\\data\\\nngram 1=200000\nngram 2=900000000000\n\n\\1-grams:\n")
    assert declared_counts(huge) == (200_000, 900_000_000_000)
    columns = HmmGraph().columns(tying(3))
    job = GraphJob(LanguageOptions(arpa=huge), GraphConfig(), ("GO TO",), LEXICON, columns)
    with pytest.raises(UserError, match=r"huge\.arpa.*GB of memory.*decode\.rescore=FILE"):
        find_or_make(job, tmp_path)
    check_fits(1e9, "It", "", free=2e9)
    with pytest.raises(UserError, match=r"It would take some 3\.0 GB of memory, and 2\.0 GB are free\. Less\."):
        check_fits(3e9, "It", "Less.", free=2e9)


def test_a_control_group_grants_what_it_has_left(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == math.inf
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  4000 kB\n")
    assert available_bytes(tmp_path) == 4000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 4000 * 1024
    (group / "memory.max").write_text("3000\n")
    assert available_bytes(tmp_path) == 2000


def test_files_that_are_no_models_are_named(tmp_path: Path) -> None:
    missing, text, cut = tmp_path / "none.arpa", tmp_path / "text", tmp_path / "cut.arpa.gz"
    text.write_text("GO TO\n" * 5)
    write_arpa(tmp_path / "whole.arpa.gz", model(3))
    whole = (tmp_path / "whole.arpa.gz").read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"none\.arpa: cannot be read.*decode\.rescore"):
        expected(missing)
    with pytest.raises(UserError, match=r"text: neither an ARPA file"):
        expected(text)
    with pytest.raises(UserError, match=r"cut\.arpa\.gz: "):
        load_model(cut)
    (tmp_path / "short.arpa").write_bytes(gzip.decompress(whole)[:-200])
    with pytest.raises(UserError, match=r"short\.arpa"):
        load_model(tmp_path / "short.arpa")
    assert "3 s" not in expected(tmp_path / "whole.arpa.gz")
    (tmp_path / "huge.arpa").write_text("\\data\\\nngram 1=200000\nngram 2=900000000000\n\n\\1-grams:\n")
    with pytest.raises(UserError, match=r"huge\.arpa.*(GB of memory|pip install)"):
        expected(tmp_path / "huge.arpa")
