"""Transcripts that do not belong to their audio are found, and those that do are left alone."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roundelay.cli import main
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.hmm.align import UNLIMITED, phone_loop, utterance_graph
from roundelay_speech.hmm.alignment import FIT_FILE, Alignment, AlignSummary
from roundelay_speech.hmm.fit import warnings
from roundelay_speech.hmm.flat_start import train_alignments
from roundelay_speech.prepared import Corpus
from roundelay_speech.search.beam import search
from support.corpora import an4
from support.toy_corpus import QUICK, toy_corpus
from support.toy_speech import LEXICON, sentences, tying

CONFIG = replace(QUICK, tied_states=30, tri_gaussians=40)


def said(corpus: Corpus, texts: dict[str, str]) -> Corpus:
    """The corpus with other transcripts."""
    splits = {s: [replace(u, text=texts.get(u.id, u.text)) for u in us] for s, us in corpus.splits.items()}
    return dataclasses.replace(corpus, splits=splits)


def aligned(tmp_path: Path, texts: dict[str, str]) -> tuple[AlignSummary, list[list[str]]]:
    corpus, store, _ = toy_corpus(tmp_path)
    summary = train_alignments(said(corpus, texts), store, CONFIG, tmp_path / "ali", Silent())
    rows = (tmp_path / "ali" / FIT_FILE).read_text().splitlines()
    assert Alignment.load(tmp_path / "ali").summary.fit == summary.fit
    return summary, [row.split("\t") for row in rows[1:]]


def test_right_transcripts_are_left_alone(tmp_path: Path) -> None:
    summary, rows = aligned(tmp_path, {})
    assert summary.fit is not None
    assert summary.fit["median"] > 0.8
    assert not summary.fit["suspects"]
    assert not summary.fit["swapped"]
    assert warnings(summary.fit, tmp_path) == []
    assert [float(row[2]) for row in rows] == sorted(float(row[2]) for row in rows)
    assert len(rows) == summary.fit["of"] >= 60


def test_two_swapped_transcripts_are_named(tmp_path: Path) -> None:
    corpus, _, _ = toy_corpus(tmp_path)
    train = corpus.splits["train"]
    # Without a sound in common that would make them fit nevertheless.
    one = next(u for u in train if len(u.words) > 1 and set(u.words) <= {"NO", "KNOW", "GO"})
    other = next(u for u in train if len(u.words) > 1 and set(u.words) <= {"TO", "TWO", "STOP"})
    summary, rows = aligned(tmp_path, {one.id: other.text, other.id: one.text})
    assert summary.fit is not None
    assert set(summary.fit["suspects"]) == {one.id, other.id} == {row[0] for row in rows[:2]}
    assert [set(pair) for pair in summary.fit["swapped"]] == [{one.id, other.id}]
    told = " ".join(warnings(summary.fit, tmp_path))
    assert "2 of " in told
    assert f"{one.id}" in told
    assert "were these swapped?" in told


def test_a_corpus_whose_transcripts_are_all_wrong_is_doubted_as_a_whole(tmp_path: Path) -> None:
    corpus, _, _ = toy_corpus(tmp_path)
    train = corpus.splits["train"]
    texts = [u.text for u in train]
    summary, _ = aligned(tmp_path, {u.id: text for u, text in zip(train, reversed(texts), strict=True)})
    assert summary.fit is not None
    (told,) = warnings(summary.fit, tmp_path)
    assert "Do transcripts and audio belong together?" in told
    assert FIT_FILE in told


def test_looking_changes_no_alignment(tmp_path: Path) -> None:
    corpus, store, _ = toy_corpus(tmp_path)
    train_alignments(corpus, store, CONFIG, tmp_path / "looked", Silent())
    again = train_alignments(corpus, store, replace(CONFIG, check_fit=False), tmp_path / "looked", Silent())
    assert again.again  # the same alignment, looked at or not
    train_alignments(corpus, store, replace(CONFIG, check_fit=False), tmp_path / "not", Silent())
    looked, unlooked = Alignment.load(tmp_path / "looked"), Alignment.load(tmp_path / "not")
    assert np.array_equal(looked.pdf, unlooked.pdf)
    assert unlooked.summary.fit is None
    assert not (tmp_path / "not" / FIT_FILE).exists()


@pytest.mark.parametrize("seed", range(5))
def test_no_words_are_better_than_any_phones(seed: int) -> None:
    """The loop holds every sequence of phones, at no cost: no transcript has a better path."""
    rng, tied = stream(seed, "loop"), tying(1)
    words = sentences(rng, 1)[0]
    scores = rng.normal(size=(120, tied.num_pdfs)).astype(np.float32)
    loop, graph = phone_loop(tied), utterance_graph(words, LEXICON, tied)
    best = search(loop.fst, scores[:, loop.pdfs], 1000.0, UNLIMITED)
    own = search(graph.fst, scores[:, graph.pdfs], 1000.0, UNLIMITED)
    assert best is not None
    assert own is not None
    assert best[4]
    assert best[2] == pytest.approx(0.0)
    assert best[3] <= own[3] + 1e-3
    assert all((label - 1) // loop.width in range(1, len(tied.phones) + 1) for label in best[1])


def test_two_swapped_transcripts_among_sixty_of_an4(tmp_path: Path) -> None:
    """Real speech: three minutes of many speakers, two of whom were given each other's words."""
    source = an4()
    tables = {
        file: dict(line.split(maxsplit=1) for line in (source / "train" / file).read_text().splitlines())
        for file in ("text", "wav.scp", "utt2spk")
    }
    names = sorted(tables["text"])[::12][:60]
    one, other = "an4-fash-an251", names[-1]
    assert one in names
    text = {name: tables["text"][name] for name in names}
    text[one], text[other] = text[other], text[one]
    for split, some in (("train", names), ("dev", sorted(tables["text"])[5::90][:8])):
        folder = tmp_path / "source" / split
        folder.mkdir(parents=True)
        said_in = text if split == "train" else tables["text"]
        (folder / "text").write_text("".join(f"{n} {said_in[n]}\n" for n in some))
        (folder / "utt2spk").write_text("".join(f"{n} {tables['utt2spk'][n]}\n" for n in some))
        (folder / "wav.scp").write_text("".join(f"{n} {source / tables['wav.scp'][n]}\n" for n in some))
    prepare = ["prepare", "kaldi", "--source", str(tmp_path / "source"), "--data", str(tmp_path / "data"), "--workers"]
    lexicon = ["1", "--lexicon", str(source / "lang/an4.dic"), "--split", "train=train", "--split", "dev=dev"]
    assert main([*prepare, *lexicon]) == 0
    paths = [f"corpus={tmp_path / 'data'}", f"alignment={tmp_path / 'ali'}", "align.workers=1"]
    assert main(["align", "an4", *paths]) == 0
    fit = Alignment.load(tmp_path / "ali").summary.fit
    assert fit is not None
    assert [sorted(pair) for pair in fit["swapped"]] == [sorted((one, other))]
