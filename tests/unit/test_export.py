"""Exporting a prepared corpus, and preparing what was exported."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.formats.export import export_kaldi, export_lhotse, write_part
from roundelay_speech.kaldi_io.locations import read_scp
from roundelay_speech.kaldi_io.objects import read_matrix
from roundelay_speech.prepared import load_corpus
from support.corpora import kaldi_corpus

TEXTS = {"train": {"s1-a": "YES NO", "s1-b": "GO", "s2-a": "NO"}, "dev": {"s3-a": "GO YES"}, "test": {"s4-a": "NO"}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    source = kaldi_corpus(folder / "source", TEXTS)
    lexicon = str(source / "lang" / "words.dic")
    assert (
        main(["prepare", "kaldi", "--source", str(source), "--lexicon", lexicon, "--data", str(folder / "data")]) == 0
    )
    return folder / "data"


@pytest.mark.parametrize("form", ["kaldi", "lhotse"])
def test_exported_and_prepared_again_it_is_the_same(data: Path, tmp_path: Path, form: str) -> None:
    """From the command line; the second export is the first, byte for byte."""
    out, again = tmp_path / "out", tmp_path / "again"
    assert main(["export", form, str(data), "--out", str(out)]) == 0
    second = tmp_path / "second"
    assert (
        main(["prepare", form, "--source", str(out), "--lexicon", str(out / "lexicon.txt"), "--data", str(second)]) == 0
    )
    first, back = load_corpus(data), load_corpus(second)
    assert {split: back.splits[split] for split in TEXTS} == first.splits
    assert back.lexicon == first.lexicon
    np.testing.assert_array_equal(back.features().get("s2-a"), first.features().get("s2-a"))
    assert main(["export", form, str(second), "--out", str(again)]) == 0
    files = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    for name in files:
        assert (out / name).read_bytes() == (again / name).read_bytes(), name


def test_features_are_exported_as_they_are_stored(data: Path, tmp_path: Path) -> None:
    corpus = load_corpus(data)
    done = export_kaldi(corpus, tmp_path, Silent(), features=True, splits=["train"])
    assert [(one.split, one.utterances, one.frames) for one in done] == [("train", 3, 144)]
    assert not (tmp_path / "dev").exists()
    store = corpus.features()
    for name, place in read_scp(tmp_path / "train" / "feats.scp").items():
        np.testing.assert_array_equal(read_matrix(place), store.get(name))
    own = np.concatenate([store.get("s1-a"), store.get("s1-b")]).astype(np.float64)
    sums = read_matrix(read_scp(tmp_path / "train" / "cmvn.scp")["s1"])
    np.testing.assert_allclose(sums[0], [*own.sum(0), 96], rtol=1e-6)
    np.testing.assert_allclose(sums[1], [*np.square(own).sum(0), 0], rtol=1e-6)
    assert (tmp_path / "train" / "utt2num_frames").read_text() == "s1-a 48\ns1-b 48\ns2-a 48\n"
    assert (tmp_path / "train" / "frame_shift").read_text() == "0.01\n"


def test_mistakes(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = load_corpus(data)
    with pytest.raises(UserError, match=r"--split eval: .* has the splits train, dev, test"):
        export_lhotse(corpus, tmp_path, splits=["eval"])
    assert main(["export", "lhotse", str(data), "--out", str(tmp_path), "--features"]) == 2
    assert "writes no features" in capsys.readouterr().err
    moved = dataclasses.replace(corpus.splits["dev"][0], path=str(tmp_path / "moved.wav"))
    gone = dataclasses.replace(corpus, splits={"dev": [moved]})
    with pytest.raises(UserError, match="no such file"):
        export_kaldi(gone, tmp_path, Silent())
    with pytest.raises(UserError, match="no such file"):
        export_lhotse(gone, tmp_path)


def test_what_was_left_out_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = kaldi_corpus(tmp_path / "source", {"train": {"s-1": "YES", "s-2": "NO", "s-3": "MAYBE"}})
    command = [
        "prepare",
        "kaldi",
        "--source",
        str(source),
        "--lexicon",
        str(source / "lang" / "words.dic"),
        "--data",
        str(tmp_path / "data"),
        "--split",
        "train=train",
        "--on-missing-words",
        "skip",
    ]
    assert main(command) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of 3 utterances of `train` would be left out, more than the share of 0.1" in said
    assert not (tmp_path / "data" / "corpus.json").exists()
    assert main([*command, "--max-bad-share", "0.4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "train: left out 1 of 3 utterances: s-3: not in the lexicon: MAYBE" in said


@pytest.mark.parametrize("form", ["kaldi", "lhotse"])
def test_copies_at_other_speeds_stay_here(data: Path, tmp_path: Path, form: str) -> None:
    corpus = load_corpus(data)
    train = corpus.splits["train"]
    copy = dataclasses.replace(train[0], id=f"sp0.9-{train[0].id}", speed=0.9)
    more = dataclasses.replace(corpus, splits={"train": [*train, copy]})
    done = export_kaldi(more, tmp_path, Silent()) if form == "kaldi" else export_lhotse(more, tmp_path)
    assert [one.utterances for one in done] == [3]
    with pytest.raises(UserError, match=r"a copy at speed 0\.9"):
        write_part(tmp_path / "out", "train", [copy], data)
