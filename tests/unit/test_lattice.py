"""Lattices and n-best lists: every entry at the cost of its own best path. Word times and confidences."""

import gzip
import math
from pathlib import Path

import kaldifst
import numpy as np
import pytest

from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.confidence import Pronouncing, confidences, timed_words, word_frames
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.decode.graphs.hmm import build_graph
from roundelay_speech.decode.lattice import (
    LATTICE_BEAM,
    NARROW,
    Unbounded,
    WordString,
    with_string,
    word_lattice,
    write_lattices,
)
from roundelay_speech.decode.parallel import Search, decoder_here
from roundelay_speech.decode.search import decode
from roundelay_speech.hmm.topology import SILENCE
from roundelay_speech.ngrams.estimate import Estimator, estimate
from roundelay_speech.search.beam import crowded
from roundelay_speech.search.fst import to_arrays
from support.toy_speech import LEXICON, frames_of, loglikes_of, phones_of, sentences, tying


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_graph(LEXICON, estimate(sentences(stream(0, "text"), 50), LEXICON.words, Estimator(3)), tying(3))


def speech(name: str, noise: float, words: list[str]) -> tuple[list[tuple[int, int, int]], Float32]:
    rng, tied = stream(1, name), tying(3)
    frames = frames_of(phones_of(words), tied, rng)
    scale = np.float32(0.1 if noise > 1 else 1.0)
    return frames, scale * loglikes_of([pdf for *_, pdf in frames], tied.num_pdfs, rng, noise)


def exact(graph: Graph, loglikes: Float32, words: tuple[str, ...]) -> float:
    """The least cost of these words: (frames x pdfs) o graph o words, without any beam."""
    arcs = (f"{t} {t + 1} {s + 1} {s + 1} {-loglikes[t, s]:.6f}" for t, s in np.ndindex(*loglikes.shape))
    dense = kaldifst.compile("\n".join([*arcs, f"{len(loglikes)}", ""]), acceptor=False)
    ids = [graph.words.index(word) for word in words]
    row = kaldifst.compile(
        "".join(f"{i} {i + 1} {w} {w}\n" for i, w in enumerate(ids)) + f"{len(ids)}\n", acceptor=False
    )
    every = kaldifst.compose(dense, kaldifst.StdVectorFst(graph.fst))
    kaldifst.arcsort(every, "olabel")
    best = kaldifst.shortest_path(kaldifst.compose(every, row))
    return float(kaldifst.get_linear_symbol_sequence(best)[3].value)


def test_strings_are_different_and_cost_what_they_cost(graph: Graph) -> None:
    _, loglikes = speech("noisy", 3.0, ["GO", "TO", "NO", "STOP"])
    lattice = word_lattice(graph, loglikes, beam=500.0, lattice_beam=LATTICE_BEAM)
    assert lattice is not None
    best = lattice.best(30)
    assert len({string.words for string in best}) == len(best) >= 5
    costs = [string.cost for string in best]
    assert costs == sorted(costs)
    found = decode(graph, loglikes, beam=500.0, max_active=100_000)
    assert best[0].words == found.words
    assert best[0].cost == pytest.approx(found.cost, abs=1e-2)
    for string in best[:10]:
        assert string.cost == pytest.approx(exact(graph, loglikes, string.words), abs=1e-2)
    assert lattice.best(2) == best[:2]


def test_a_string_of_another_search_takes_its_place() -> None:
    best = [WordString(("A",), 1.0), WordString(("B",), 3.0)]
    assert with_string(best, WordString(("C",), 2.0)) == [best[0], WordString(("C",), 2.0), best[1]]
    assert with_string(best, WordString(("B",), 3.5)) == best
    assert with_string([], best[0]) == best[:1]


def test_file_holds_every_string(graph: Graph, tmp_path: Path) -> None:
    """The text is a graph of words: walking it gives the strings and costs of the n-best list."""
    _, loglikes = speech("file", 3.0, ["NO", "TOE"])
    lattice = word_lattice(graph, loglikes, beam=100.0, lattice_beam=5.0)
    assert lattice is not None
    write_lattices(tmp_path / "lattices.txt.gz", [("one", lattice.to_text()), ("two", "")])
    text = gzip.decompress((tmp_path / "lattices.txt.gz").read_bytes()).decode()
    blocks = text.split("\n\n")
    assert [block.splitlines()[0] for block in blocks if block] == ["one", "two"]
    arcs: dict[str, list[tuple[str, str, float]]] = {}
    final: dict[str, float] = {}
    for fields in map(str.split, blocks[0].splitlines()[1:]):
        if len(fields) == 4:
            arcs.setdefault(fields[0], []).append((fields[1], fields[2], float(fields[3])))
        else:
            final[fields[0]] = float(fields[1])
    found: dict[tuple[str, ...], float] = {}
    stack: list[tuple[str, tuple[str, ...], float]] = [("0", (), 0.0)]
    while stack:
        state, words, cost = stack.pop()
        if state in final:
            found[words] = cost + final[state]
        stack += [(target, (*words, word), cost + more) for target, word, more in arcs.get(state, [])]
    best = lattice.best(len(found) + 1)
    assert len(best) == len(found)
    for string in best:
        assert found[string.words] == pytest.approx(string.cost, abs=5e-3)


def test_words_lie_where_they_were_said() -> None:
    tied = tying(3)
    for i, words in enumerate(sentences(stream(2, "sentences"), 10)):
        frames, loglikes = speech(f"clean {i}", 0.3, words)
        starts = [
            t
            for t in range(len(frames))
            if t == 0 or frames[t - 1][1] > frames[t][1] or frames[t][0] == SILENCE != frames[t - 1][0]
        ]
        stops = dict(zip(starts, [*starts[1:], len(frames)], strict=True))
        spoken = [t for t in starts if frames[t][0] != SILENCE]
        expected, at = [], 0
        for word in words:
            phones = len(LEXICON.pronunciations[word][0])
            expected.append((spoken[at], stops[spoken[at + phones - 1]]))
            at += phones
        assert word_frames(words, loglikes, LEXICON, tied, 0.5) == expected


def test_words_that_do_not_fit_share_the_frames() -> None:
    scores = np.zeros((5, tying(3).num_pdfs), np.float32)
    assert word_frames(["TONE", "STOP"], scores, LEXICON, tying(3), 0.5) == [(0, 2), (2, 5)]
    assert word_frames([], scores, LEXICON, tying(3), 0.5) == []


def test_confidence_is_the_share_of_strings_that_agree() -> None:
    """Costs 0 and log 3: probabilities 3/4 and 1/4."""
    best = [WordString(("A", "B", "C"), 7.0), WordString(("A", "C"), 7.0 + math.log(3))]
    assert confidences(("A", "B", "C"), best) == pytest.approx([1.0, 0.75, 1.0])
    assert confidences(("A", "C"), best) == pytest.approx([1.0, 1.0])
    assert confidences(("D",), best) == [0.0]
    assert confidences(("D",), []) == [1.0]


def test_timed_words_are_in_seconds() -> None:
    _, loglikes = speech("timed", 0.3, ["GO", "STOP"])
    how = Pronouncing(LEXICON, tying(3), 0.5, 0.03)
    words = timed_words(("GO", "STOP"), loglikes, [WordString(("GO", "STOP"), 1.0)], how)
    frames = word_frames(("GO", "STOP"), loglikes, LEXICON, tying(3), 0.5)
    assert [(w.word, w.confidence) for w in words] == [("GO", 1.0), ("STOP", 1.0)]
    assert [w.start for w in words] == pytest.approx([0.03 * first for first, _ in frames])
    assert [w.duration for w in words] == pytest.approx([0.03 * (stop - first) for first, stop in frames])


def test_sound_that_fits_all_words_alike_has_no_lattice(graph: Graph) -> None:
    """Every row of words fits it: a deterministic lattice would have states without number."""
    pulses = np.zeros((150, graph.num_pdfs), np.float32)
    pulses[::25] -= 3.0
    with pytest.raises(Unbounded):
        word_lattice(graph, pulses, width=NARROW)
    run = decoder_here(graph, Pronouncing(LEXICON, tying(3), 0.5, 0.01))
    batch = run.search([("tone", pulses)], Search(1.0, times=True))
    found, detail = batch.hypotheses["tone"], batch.details["tone"]
    assert (batch.unbounded, detail.bounded) == (1, False)
    assert found.words == tuple(word.word for word in detail.timed) != ()
    assert {word.confidence for word in detail.timed} == {None}
    assert all(word.duration > 0 for word in detail.timed)


def test_paths_are_counted_before_a_search_without_limit(graph: Graph) -> None:
    """All paths are followed in a wide beam, so that the arcs of a frame are those of all states that are reached."""
    flat = np.zeros((120, graph.num_pdfs), np.float32)
    emitting = int((to_arrays(graph.fst).arcs["ilabel"] > 0).sum())
    assert not crowded(graph.fst, flat, 1e6, emitting)
    assert crowded(graph.fst, flat, 1e6, emitting // 2)
    assert not crowded(graph.fst, flat, 0.5, emitting // 2)
