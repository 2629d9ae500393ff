"""Decoding graphs on disk, and what can be wrong with what they are made of."""

from pathlib import Path

import kaldifst
import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay.speech.decode.fst import ARC, Arcs, add_self_loops, file_bytes, from_arrays, to_arrays
from roundelay.speech.decode.graph import GraphConfig, build_graph, load_graph, save_graph
from roundelay.speech.decode.ngram import estimate
from roundelay.speech.decode.search import decode
from roundelay.speech.hmm.topology import monophones
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


def test_self_loops_repeat_the_label_one_came_by() -> None:
    """State 2 is entered by labels 1 and 2: it is split in two, each with its own loop and an epsilon arc onwards."""
    arcs = np.array([(1, 7, 0.5, 1), (1, 0, 0.0, 2), (2, 0, 0.0, 2), (3, 0, 0.0, 3)], ARC)
    fst = Arcs(0, np.array([np.inf, np.inf, np.inf, 0.0], np.float32), np.array([0, 0, 1, 2]), arcs)
    looped = add_self_loops(fst)
    loops = {(int(s), int(a["ilabel"])) for s, a in zip(looped.source, looped.arcs, strict=True) if a["target"] == s}
    assert loops == {(1, 1), (4, 1), (5, 2), (3, 3)}
    epsilons = {(int(s), int(a["target"])) for s, a in zip(looped.source, looped.arcs, strict=True) if a["ilabel"] == 0}
    assert epsilons == {(4, 2), (5, 2)}
    assert looped.final.tolist() == [np.inf, np.inf, np.inf, 0.0, np.inf, np.inf]


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


def test_phones_must_be_those_of_the_tying() -> None:
    with pytest.raises(UserError, match=r"do not have the same phones.*ZZ"):
        build_graph(LEXICON, estimate(TEXT, LEXICON.words), monophones([*LEXICON.phones, "ZZ"]))


def test_bad_options() -> None:
    with pytest.raises(UserError, match=r"silence_probability 1.0"):
        GraphConfig(silence_probability=1.0)
    with pytest.raises(UserError, match="word_cost nan"):
        GraphConfig(word_cost=float("nan"))


def test_word_cost_makes_words_rarer() -> None:
    """Noise decodes to fewer words when each costs more."""
    model, tied = estimate(TEXT, LEXICON.words), tying(1)
    noise = loglikes_of([*range(24)] * 4, tied.num_pdfs, stream(3, "noise"), 3.0)
    counts = [
        len(decode(build_graph(LEXICON, model, tied, GraphConfig(word_cost=cost)), noise).words) for cost in (0, 5, 50)
    ]
    assert counts[0] > counts[1] >= counts[2] >= 0
