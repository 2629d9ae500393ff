"""Decoding graphs on disk, and what can be wrong with what they are made of."""

from pathlib import Path

import kaldifst
import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.decode.graphs.graph import GraphConfig, load_graph, save_graph
from roundelay_speech.decode.graphs.hmm import build_graph
from roundelay_speech.decode.search import decode
from roundelay_speech.hmm.tree import untied
from roundelay_speech.ngrams.estimate import estimate
from roundelay_speech.search.fst import (
    file_bytes,
    from_arrays,
    merge_equal_states,
    to_arrays,
)
from support.damage import forget_checksums
from support.toy_speech import LEXICON, loglikes_of, sentences, tying

TEXT = sentences(stream(0, "text"), 50)


def test_arrays_hold_the_transducer() -> None:
    fst = kaldifst.compile("0 1 3 4 0.5\n0 2 1 0 0.25\n1 2 2 2\n2 0.125\n", acceptor=False)
    arrays = to_arrays(fst)
    assert (arrays.start, arrays.source.tolist()) == (0, [0, 0, 1])
    assert sorted(arrays.arcs.tolist()) == [(1, 0, 0.25, 2), (2, 2, 0.0, 2), (3, 4, 0.5, 1)]
    assert arrays.final.tolist() == [np.inf, np.inf, 0.125]
    again = to_arrays(from_arrays(arrays))
    assert sorted(again.arcs.tolist()) == sorted(arrays.arcs.tolist())
    assert again.final.tolist() == arrays.final.tolist()


def test_states_with_the_same_future_become_one() -> None:
    """1 and 2 lead to the ends 4 and 5; 3 does so at another cost. 4 and 5 merge first, then 1 and 2."""
    lines = ["0 1 1 1", "0 2 2 2", "0 3 3 3", "1 4 7 0 0.5", "2 5 7 0 0.5", "3 5 7 0 0.25", "4 0.5", "5 0.5"]
    merged = merge_equal_states(to_arrays(kaldifst.compile("\n".join([*lines, ""]), acceptor=False)))
    assert len(merged.final) == 4
    assert sorted(merged.arcs.tolist()) == [
        (1, 1, 0.0, 1),
        (2, 2, 0.0, 1),
        (3, 3, 0.0, 2),
        (7, 0, 0.25, 3),
        (7, 0, 0.5, 3),
    ]
    assert merged.source.tolist() == [0, 0, 0, 1, 2]


def test_merging_keeps_every_path() -> None:
    """Random transducers: the cost of each row of labels is the same afterwards, and again after OpenFst's own."""
    rng = stream(5, "transducers")
    for _ in range(20):
        lines = [
            f"{source} {rng.integers(source + 1, 12)} {rng.integers(1, 3)} {rng.integers(2)} {rng.integers(2) / 2}"
            for source in range(11)
            for _ in range(3)
        ]
        fst = kaldifst.compile("\n".join([*lines, "11 0.5", "10 0.5", ""]), acceptor=False)
        kaldifst.connect(fst)
        merged = kaldifst.StdVectorFst(from_arrays(merge_equal_states(to_arrays(fst))))
        assert merged.num_states <= fst.num_states
        assert paths_of(merged) == paths_of(fst)


def paths_of(fst: object) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
    """The least cost of every pair of label rows of an acyclic transducer."""
    arrays = to_arrays(fst)
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    stack: list[tuple[int, tuple[int, ...], tuple[int, ...], float]] = [(arrays.start, (), (), 0.0)]
    while stack:
        state, ins, outs, cost = stack.pop()
        if np.isfinite(arrays.final[state]):
            total = cost + float(arrays.final[state])
            found[ins, outs] = min(total, found.get((ins, outs), np.inf))
        for arc in arrays.arcs[arrays.source == state]:
            more = (int(arc["olabel"]),) if arc["olabel"] else ()
            stack.append((int(arc["target"]), (*ins, int(arc["ilabel"])), outs + more, cost + float(arc["weight"])))
    return found


def test_saved_graph_decodes_the_same(tmp_path: Path) -> None:
    tied = tying(3)
    graph = build_graph(LEXICON, estimate(TEXT, LEXICON.words), tied)
    save_graph(graph, tmp_path)
    again = load_graph(tmp_path)
    assert (again.words, again.num_pdfs, again.info) == (graph.words, graph.num_pdfs, graph.info)
    assert (tmp_path / "HCLG.fst").stat().st_size == file_bytes(to_arrays(graph.fst))
    assert (tmp_path / "phones.txt").read_text().splitlines()[:2] == ["<eps> 0", "SIL 1"]
    loglikes = loglikes_of([*range(30)], tied.num_pdfs, stream(0, "x"), 1.0)
    assert decode(again, loglikes) == decode(graph, loglikes)


def test_broken_graph_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}: no decoding graph here"):
        load_graph(tmp_path)
    save_graph(build_graph(LEXICON, estimate(TEXT, LEXICON.words), tying(1)), tmp_path)
    for name in ("HCLG.fst", "words.txt", "phones.txt", "graph.json"):  # no changed byte reaches the library
        whole = (tmp_path / name).read_bytes()
        for place in {int(n) for n in stream(0, name).integers(0, len(whole), 50)}:
            (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(UserError, match=rf"{name}.*Delete {tmp_path} to have the graph built again"):
                load_graph(tmp_path)
        (tmp_path / name).write_bytes(whole)
    forget_checksums(tmp_path / "graph.json")
    assert load_graph(tmp_path).num_pdfs
    whole = (tmp_path / "HCLG.fst").read_bytes()
    (tmp_path / "HCLG.fst").write_bytes(whole[:-8])
    with pytest.raises(UserError, match="do not belong together"):
        load_graph(tmp_path)
    (tmp_path / "HCLG.fst").unlink()
    with pytest.raises(UserError, match="broken graph"):
        load_graph(tmp_path)


def test_nothing_is_printed_while_building(capfd: pytest.CaptureFixture[str]) -> None:
    build_graph(LEXICON, estimate(TEXT, LEXICON.words), tying(1))
    assert capfd.readouterr() == ("", "")


def test_words_without_pronunciation_are_reported() -> None:
    graph = build_graph(LEXICON, estimate([*TEXT, ["MARS", "GO"]], [*LEXICON.words, "MARS"]), tying(1))
    assert graph.info["missing_words"] == ["MARS"]
    assert "MARS" in graph.info["left_out"]
    assert "MARS" not in graph.words


def test_phones_must_be_known_to_the_tying() -> None:
    """All of those of the lexicon; a small vocabulary may lack some of the tying's."""
    model = estimate(TEXT, LEXICON.words)
    with pytest.raises(UserError, match=r"phones that the alignment does not know \(UW\)"):
        build_graph(LEXICON, model, untied([p for p in LEXICON.phones if p != "UW"]).tying())
    wider = build_graph(LEXICON, model, untied([*LEXICON.phones, "ZZ"]).tying())
    assert wider.info["arcs"] == build_graph(LEXICON, model, tying(1)).info["arcs"]


def test_bad_options() -> None:
    with pytest.raises(UserError, match=r"silence_probability 1.0"):
        GraphConfig(silence_probability=1.0)
    with pytest.raises(UserError, match="word_cost nan"):
        GraphConfig(word_cost=float("nan"))


def test_word_cost_of_a_finished_graph() -> None:
    """Put on later or from the start: the same words at the same cost."""
    model, tied = estimate(TEXT, LEXICON.words), tying(3)
    built = build_graph(LEXICON, model, tied, GraphConfig(word_cost=0.75))
    changed = build_graph(LEXICON, model, tied, GraphConfig(word_cost=-0.5)).with_word_cost(0.75)
    assert changed.info == built.info
    assert changed.with_word_cost(0.75) is changed
    for i in range(5):
        loglikes = loglikes_of([*range(24)] * 2, tied.num_pdfs, stream(i, "noise"), 2.0)
        one, two = decode(built, loglikes), decode(changed, loglikes)
        assert one.words == two.words
        assert one.cost == pytest.approx(two.cost, abs=1e-3)
