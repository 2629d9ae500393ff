"""Alignments in and out: Kaldi files made byte by byte, TextGrids with times known, and round trips."""

import gzip
import itertools
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.align import word_spans
from roundelay_speech.hmm.alignment import Alignment, AlignSummary, silence_share
from roundelay_speech.hmm.formats.export import export_kaldi, export_textgrids
from roundelay_speech.hmm.formats.from_kaldi import KaldiAlignment, import_kaldi
from roundelay_speech.hmm.formats.interchange import ImportConfig
from roundelay_speech.hmm.formats.kaldi_tying import match_phones
from roundelay_speech.hmm.formats.textgrid import Interval, TextGrid, Tier, at_least, import_textgrids, write_textgrid
from roundelay_speech.hmm.task import Labels
from roundelay_speech.hmm.topology import SILENCE, STATES, phone_bounds
from roundelay_speech.hmm.tree import DecisionTree, Leaf, Split, untied, windows
from roundelay_speech.kaldi_io.objects import read_int_vectors
from roundelay_speech.prepared import Corpus
from support import kaldi_files
from support.kaldi_files import FIVE, THREE, Tree
from support.toy_corpus import Truth, toy_corpus
from support.toy_speech import LEXICON

PHONES = LEXICON.phones  # SIL AA AH G N OW P S T UW


class Toy(NamedTuple):
    """A corpus whose every frame is known."""

    corpus: Corpus
    store: FeatureStore
    truth: Truth

    def imported(self, kaldi: KaldiAlignment | Path, folder: Path, config: ImportConfig | None = None) -> AlignSummary:
        """Make an alignment of one that Kaldi has made, or of its folder."""
        source = KaldiAlignment((kaldi,)) if isinstance(kaldi, Path) else kaldi
        return import_kaldi(self.corpus, self.store, source, config or ImportConfig(), folder, Silent())


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(*toy_corpus(tmp_path))


def asking_tree() -> DecisionTree:
    """T's first state asks for S on its left, OW's last one for the right edge and for N; all others ask nothing."""
    plain = untied(PHONES)
    nodes, roots = list(plain.nodes), [list(r) for r in plain.roots]
    t, ow = PHONES.index("T"), PHONES.index("OW")
    s, n, pdfs = PHONES.index("S") + 1, PHONES.index("N") + 1, plain.num_pdfs
    first, last = roots[t][0], roots[ow][2]
    nodes += [nodes[first], Leaf(pdfs)]
    nodes[first] = Split(0, frozenset({s}), len(nodes) - 1, len(nodes) - 2)
    nodes += [nodes[last], Leaf(pdfs + 1), Leaf(pdfs + 2)]
    base = len(nodes)
    nodes += [Split(2, frozenset({n}), base - 1, base - 3)]
    nodes[last] = Split(2, frozenset({0, 1}), base - 2, base)
    return DecisionTree(PHONES, 3, tuple(map(tuple, roots)), tuple(nodes))


def written(folder: Path, store: FeatureStore, truth: Truth, tree: DecisionTree, skip: str = "") -> Alignment:
    """The true alignment under a tree."""
    table = tree.tying().table
    pdf, phones, states = (np.full(len(store.array), value, np.int64) for value in (-1, 0, -1))
    for name, labels in truth.items():
        first, frames = store.span(name)
        if name != skip:
            own = slice(first, first + frames)
            phones[own], states[own] = labels[:, 0], labels[:, 1]
            pdf[own] = table[tuple(windows(labels[:, 0], labels[:, 1]).T)]
    summary = AlignSummary(
        "test",
        "",
        {},
        {},
        {},
        {},
        len(pdf),
        int((pdf >= 0).sum()),
        tree.num_pdfs,
        0,
        0,
        None,
        silence_share(phones.astype(np.int16)),
    )
    Labels(pdf.astype(np.int32), phones.astype(np.int16), states.astype(np.int8)).write(folder, tree, summary)
    return Alignment.load(folder)


def same(one: Alignment, other: Alignment) -> None:
    for name in ("pdf", "phones", "states"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.tying.table, other.tying.table)
    assert one.tying.context == other.tying.context


def test_kaldi_there_and_back_is_the_same(tmp_path: Path, toy: Toy) -> None:
    corpus, store, truth = toy
    for tree in (untied(PHONES), asking_tree()):
        folder = tmp_path / str(tree.context)
        before = written(folder / "ali", store, truth, tree, skip="train-3")
        assert export_kaldi(corpus, store, before, folder / "kaldi", Silent()) == len(truth) - 1
        summary = toy.imported(folder / "kaldi", folder / "back")
        assert summary.failed == {"train-3": "not in the alignment"}
        same(before, Alignment.load(folder / "back"))
        again = toy.imported(folder / "kaldi", folder / "back")
        assert again.again
        # The pdfs alone, with the tree, say as much.
        source = KaldiAlignment((folder / "kaldi",), (folder / "kaldi" / "pdf.txt",))
        toy.imported(source, folder / "pdfs")
        same(before, Alignment.load(folder / "pdfs"))


def test_textgrids_there_and_back_are_the_same_phones(tmp_path: Path, toy: Toy) -> None:
    corpus, store, truth = toy
    before = written(tmp_path / "ali", store, truth, untied(PHONES))
    export_textgrids(corpus, store, before, tmp_path / "grids", Silent())
    config = ImportConfig(tying="monophones")
    summary = import_textgrids(corpus, store, tmp_path / "grids", config, tmp_path / "back", Silent())
    after = Alignment.load(tmp_path / "back")
    np.testing.assert_array_equal(before.phones, after.phones)
    assert not summary.failed
    for name in truth:
        first, frames = store.span(name)
        one, other = (
            phone_bounds(a.phones[first : first + frames], a.states[first : first + frames]) for a in (before, after)
        )
        np.testing.assert_array_equal(one, other)
    grown = import_textgrids(
        corpus, store, tmp_path / "grids", replace(config, tying="grow", tied_states=40), tmp_path / "grown", Silent()
    )
    assert 3 * len(PHONES) < grown.num_pdfs <= 40
    taken = replace(config, tying=str(tmp_path / "grown"))
    import_textgrids(corpus, store, tmp_path / "grids", taken, tmp_path / "taken", Silent())
    same(Alignment.load(tmp_path / "grown"), Alignment.load(tmp_path / "taken"))


# Kaldi's own habits: positions in words, five states of silence, shared roots -----------------------------------------

SYMBOLS = ["<eps>", "SIL", "SIL_B", *(f"{p}_{x}" for p in PHONES[1:] for x in "BIES"), "#0", "#1"]
IDS = {name: number for number, name in enumerate(SYMBOLS)}


def positioned(phone: int, place: int, last: int) -> int:
    """Kaldi's id of one of our phones; as they stand in words no matter here."""
    if phone == SILENCE:
        return IDS["SIL"]
    return IDS[f"{PHONES[phone - 1]}_{'S' if last == 0 else 'B' if place == 0 else 'E' if place == last else 'I'}"]


def kaldi_folder(
    folder: Path, truth: Truth, tells_positions: bool = False, text_vectors: bool = False
) -> dict[int, int]:
    """A Kaldi alignment directory of the truth: monophones as pdfs, but that silence has five; returns the pdf of ours
    for each of Kaldi's."""
    folder.mkdir(parents=True)
    (folder / "phones.txt").write_text("".join(f"{name} {number}\n" for name, number in IDS.items()))
    silence: Tree = ("T", -1, [0, 1, 2, 3, 4])
    entries: list[Tree] = [None, silence, silence]
    pdf = 5
    ours = {0: 0, 1: 1, 2: 1, 3: 1, 4: 2}
    triples = [(p, s, s) for p in (1, 2) for s in range(5)]
    for phone in range(2, len(PHONES) + 1):
        own: Tree = ("T", -1, [pdf, pdf + 1, pdf + 2])
        ours |= {pdf + s: STATES * (phone - 1) + s for s in range(STATES)}
        members = [IDS[f"{PHONES[phone - 1]}_{x}"] for x in "BIES"]
        triples += [(m, s, pdf + s) for m in members for s in range(STATES)]
        pdf += STATES
        if tells_positions and phone == 2:
            entries += [("T", -1, [pdf, pdf, pdf]), own, own, own]
            triples[-12:-9] = [(members[0], s, pdf) for s in range(STATES)]
            pdf += 1
        else:
            entries += [own] * 4
    spoken = [number for name, number in IDS.items() if name[0] not in "<#S" or name[:2] == "S_"]
    topology = [([1, 2], FIVE), (spoken, THREE)]
    kaldi_files.write_tree(folder / "tree", 1, 0, ("T", 0, entries))
    kaldi_files.write_model(folder / "final.mdl", topology, sorted(triples))
    first, at = {}, 1
    for p, s, _ in sorted(triples):
        first[p, s] = at
        at += 4 if p in (1, 2) and s < 4 else 2
    vectors: dict[str, list[int]] = {}
    for name, labels in truth.items():
        vectors[name] = []
        bounds = phone_bounds(labels[:, 0], labels[:, 1])
        for place, (begin, end) in enumerate(itertools.pairwise(bounds)):
            phone = int(labels[begin, 0])
            number = positioned(phone, place % 3, 2)
            for frame in range(begin, end):
                state = int(labels[frame, 1])
                if phone == SILENCE:  # wander through the inner states
                    state = {0: 0, 1: 1 + frame % 3, 2: 4}[state]
                vectors[name].append(first[number, state] + frame % 2)
    names = list(vectors)
    kaldi_files.write_alignment(folder / "ali.1.gz", {n: vectors[n] for n in names[::2]}, not text_vectors)
    kaldi_files.write_alignment(folder / "ali.2.gz", {n: vectors[n] for n in names[1::2]}, not text_vectors)
    return ours


@pytest.mark.parametrize("text_vectors", [True, False])
def test_positions_are_dropped_and_silence_has_three_states(tmp_path: Path, toy: Toy, text_vectors: bool) -> None:
    _, store, truth = toy
    kaldi_folder(tmp_path / "kaldi", truth, text_vectors=text_vectors)
    summary = toy.imported(tmp_path / "kaldi", tmp_path / "ali")
    assert not summary.failed
    same(written(tmp_path / "true", store, truth, untied(PHONES)), Alignment.load(tmp_path / "ali"))


def test_positions_the_tree_tells_apart_need_a_lexicon_that_does(tmp_path: Path, toy: Toy) -> None:
    _, store, truth = toy
    kaldi_folder(tmp_path / "kaldi", truth, tells_positions=True)
    source = KaldiAlignment((tmp_path / "kaldi",))
    with pytest.raises(UserError, match="the tree tells AA_B, AA_I, AA_E, AA_S apart, the lexicon does not"):
        toy.imported(source, tmp_path / "ali")
    toy.imported(source, tmp_path / "ali", ImportConfig(tying="monophones"))
    same(written(tmp_path / "true", store, truth, untied(PHONES)), Alignment.load(tmp_path / "ali"))


def test_a_tree_of_another_model_is_noticed(tmp_path: Path, toy: Toy) -> None:
    corpus, store, truth = toy
    before = written(tmp_path / "ali", store, truth, asking_tree())
    export_kaldi(corpus, store, before, tmp_path / "kaldi", Silent())
    other = written(tmp_path / "other", store, truth, untied(PHONES))
    export_kaldi(corpus, store, other, tmp_path / "mono", Silent())
    source = KaldiAlignment((tmp_path / "kaldi",), tree=tmp_path / "mono" / "tree")
    with pytest.raises(UserError, match="has another pdf by the transition model than by the tree"):
        toy.imported(source, tmp_path / "back")


def test_what_does_not_fit_is_named_and_left_out(tmp_path: Path, toy: Toy) -> None:
    corpus, store, truth = toy
    before = written(tmp_path / "ali", store, truth, untied(PHONES))
    export_kaldi(corpus, store, before, tmp_path / "kaldi", Silent())
    packed = tmp_path / "kaldi" / "ali.1.gz"
    vectors = {name: ids.tolist() for name, ids in read_int_vectors(packed)}
    vectors["train-1"].pop()
    vectors["train-2"][3] = 999
    del vectors["train-4"]
    vectors["nobody"] = [1]
    kaldi_files.write_alignment(packed, vectors)
    source = KaldiAlignment((tmp_path / "kaldi",))
    summary = toy.imported(source, tmp_path / "back")
    frames = store.frames("train-1")
    assert summary.failed == {
        "train-1": f"{frames - 1} frames in the alignment, {frames} in the features",
        "train-2": f"transition-id 999 in frame 3, the model has 1 to {6 * len(PHONES)}",
        "train-4": "not in the alignment",
    }
    assert summary.aligned["train"] == 57
    assert '"not_in_the_corpus": 1' in (tmp_path / "back" / "log.jsonl").read_text()
    config = ImportConfig(tolerance=1, failure_share=0.02)
    with pytest.raises(UserError, match=r"2 utterances of 72 cannot be imported.*2 % may be left out"):
        toy.imported(source, tmp_path / "strict", config)
    assert not (tmp_path / "strict" / "align.json").exists()
    only_train = {name: ids for name, ids in vectors.items() if name.startswith("train")}
    kaldi_files.write_alignment(packed, only_train)
    summary = toy.imported(source, tmp_path / "train")
    assert summary.aligned == {"train": 57, "dev": 0, "test": 0}
    kaldi_files.write_alignment(packed, {"nobody": [1]})
    with pytest.raises(UserError, match="None of the 60 training utterances is in the alignment"):
        toy.imported(source, tmp_path / "none")


def test_damaged_archives_are_refused_whole(tmp_path: Path, toy: Toy) -> None:
    corpus, store, truth = toy
    export_kaldi(corpus, store, written(tmp_path / "ali", store, truth, untied(PHONES)), tmp_path / "kaldi", Silent())
    packed = tmp_path / "kaldi" / "ali.1.gz"
    content = gzip.decompress(packed.read_bytes())
    packed.write_bytes(gzip.compress(content[:-3]))
    with pytest.raises(UserError, match=r"ali\.1\.gz: byte \d+.*cut short"):
        toy.imported(tmp_path / "kaldi", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    (tmp_path / "kaldi" / "phones.txt").write_text("SIL 1\nAA two\n")
    with pytest.raises(UserError, match=r"phones\.txt:2: not `PHONE NUMBER`"):
        toy.imported(tmp_path / "kaldi", tmp_path / "back")


def test_phones_without_a_partner_are_listed() -> None:
    with pytest.raises(UserError, match=r"phones\.txt: 2 phones of the lexicon.*\n  B\n  C"):
        match_phones({"<eps>": 0, "SIL": 1, "A_B": 2, "X": 3}, ("SIL", "A", "B", "C"), "phones.txt")
    found = match_phones({"SIL": 1, "SIL_E": 4, "A_B": 2, "A_E": 3, "#0": 9}, ("SIL", "A"), "phones.txt")
    assert found.members == ((1,), (2, 3))
    assert found.ours == {1: 1, 4: 1, 2: 2, 3: 2}


# TextGrids by hand ----------------------------------------------------------------------------------------------------


def test_a_grid_of_a_recording_with_stress_and_speakers(tmp_path: Path, toy: Toy) -> None:
    """NO from 0.1 to 0.3 s of an utterance at 2 s of its recording: frame t is centred at 12.5 + 10 t ms."""
    corpus, store, _ = toy
    u = corpus.splits["train"][0]
    seconds = store.frames(u.id) / 100
    moved = replace(u, start=2.0, recording_id="rec", text="NO", duration=seconds)
    corpus = replace(corpus, splits={"train": [moved]})
    phones = [Interval(0, 2.1, "sil"), Interval(2.1, 2.2, "N"), Interval(2.2, 2.3, "OW1"), Interval(2.3, 9, "")]
    grid = TextGrid(0, 9, (Tier("s0 - phones", tuple(phones)), Tier("s9 - phones", (Interval(0, 9, "AA0"),))))
    write_textgrid(tmp_path / "grids" / "deep" / "rec.TextGrid", grid)
    config = ImportConfig(tying="monophones", shares=(1, 2, 1))
    import_textgrids(corpus, store, tmp_path / "grids", config, tmp_path / "ali", Silent())
    found = Alignment.load(tmp_path / "ali")
    first, frames = store.span(u.id)
    names = [PHONES[p - 1] for p in found.phones[first : first + frames]]
    assert names == ["SIL"] * 9 + ["N"] * 10 + ["OW"] * 10 + ["SIL"] * (frames - 29)
    assert found.states[first + 9 : first + 19].tolist() == [0] * 2 + [1] * 6 + [2] * 2
    odd = TextGrid(0, 9, (Tier("phones", (Interval(0, 9, "spn"),)),))
    write_textgrid(tmp_path / "grids" / "deep" / "rec.TextGrid", odd)
    with pytest.raises(UserError, match="phone 'spn', which the lexicon does not have"):
        import_textgrids(corpus, store, tmp_path / "grids", config, tmp_path / "odd", Silent())
    write_textgrid(tmp_path / "grids" / "deep" / "rec.TextGrid", grid)
    with pytest.raises(UserError, match="A TextGrid has no tree"):
        import_textgrids(corpus, store, tmp_path / "grids", ImportConfig(), tmp_path / "odd", Silent())


def test_short_phones_take_from_their_neighbours() -> None:
    assert at_least([4, 5, 12], 3) == [4, 7, 12]
    assert at_least([4, 11, 12], 3) == [4, 9, 12]
    assert at_least([1, 2, 9], 3) == [3, 6, 9]
    assert at_least([3, 8], 3) == [3, 8]
    assert at_least([3, 3, 8], 3) is None


def test_words_are_found_in_phones() -> None:
    ids = LEXICON.phone_ids
    phones = [SILENCE, ids["T"], ids["AH"], SILENCE, ids["N"], ids["OW"]]
    expected = [(0, 1, ""), (1, 3, "TO"), (3, 4, ""), (4, 6, "NO")]
    assert word_spans(["TO", "NO"], LEXICON, phones) == expected
    assert word_spans(["TWO", "NO"], LEXICON, phones) is None
    assert word_spans(["TO"] * 2000, LEXICON, [ids["T"], ids["UW"]] * 2000) is not None
