"""Features and alignments by the command line, on a corpus of three words."""

import json
from pathlib import Path

import numpy as np
import pytest

from roundelay.cli import main
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.formats.textgrid import Interval, TextGrid, Tier, write_textgrid
from roundelay_speech.prepared import load_corpus
from support.corpora import kaldi_corpus

TEXTS = {
    "train": {"s1-a": "YES", "s1-b": "NO GO", "s2-a": "GO"},
    "dev": {"s3-a": "NO"},
    "test": {"s4-a": "YES"},
}
PHONES = {"YES": ["Y", "EH", "S"], "NO": ["N", "OW"], "GO": ["G", "OW"]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A prepared corpus, and a TextGrid for each of its utterances of half a second."""
    source = kaldi_corpus(tmp_path / "source", TEXTS)
    arguments = ["--source", str(source), "--lexicon", str(source / "lang/words.dic"), "--data", str(tmp_path / "data")]
    assert main(["prepare", "kaldi", *arguments, "--bins", "23"]) == 0
    for texts in TEXTS.values():
        for name, text in texts.items():
            phones = ["", *(p for word in text.split() for p in PHONES[word]), "sil"]
            times = np.linspace(0, 0.5, len(phones) + 1).tolist()
            intervals = tuple(Interval(a, b, p) for a, b, p in zip(times, times[1:], phones, strict=False))
            write_textgrid(tmp_path / "grids" / f"{name}.TextGrid", TextGrid(0, 0.5, (Tier("phones", intervals),)))
    return tmp_path / "data"


def test_alignments_in_and_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, corpus = data.parent, ["--corpus", str(data)]
    assert (
        main(["import-alignment", "textgrid", "--grids", str(folder / "grids"), *corpus, "--out", str(folder / "a")])
        == 0
    )
    assert "aligned 3 of 3 train, 1 of 1 dev, 1 of 1 test utterances" in " ".join(capsys.readouterr().out.split())
    assert main(["export-alignment", "kaldi", str(folder / "a"), *corpus, "--out", str(folder / "kaldi")]) == 0
    assert main(["import-alignment", "kaldi", "--ali", str(folder / "kaldi"), *corpus, "--out", str(folder / "b")]) == 0
    one, other = Alignment.load(folder / "a"), Alignment.load(folder / "b")
    np.testing.assert_array_equal(one.pdf, other.pdf)
    np.testing.assert_array_equal(one.states, other.states)
    assert main(["export-alignment", "textgrid", str(folder / "a"), *corpus, "--out", str(folder / "again")]) == 0
    assert main(["import-alignment", "kaldi", *corpus, "--out", str(folder / "c")]) == 2
    assert "phones.txt: no such file. Name it with --phones" in " ".join(capsys.readouterr().err.split())


def test_other_features_for_a_prepared_corpus(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_corpus(data).features().array.shape[1] == 23
    assert main(["features", str(data), "--bins", "30", "--speed", "0.9", "1.1"]) == 0
    corpus = load_corpus(data)
    assert [u.id for u in corpus.splits["train"][::3]] == ["s1-a", "sp0.9-s1-a", "sp1.1-s1-a"]
    assert len(corpus.splits["dev"]) == 1
    assert main(["features", str(data), "--bins", "30", "--warp", "1.1", "--speed", "0.9"]) == 0
    corpus = load_corpus(data)
    assert [u.id for u in corpus.splits["train"][::3]] == ["s1-a", "sp0.9-s1-a", "vtln1.1-s1-a"]
    assert main(["features", str(data), "--bins", "30", "--warp", "1.1", "--warp-of", "few"]) == 2
    assert "does not say who is a woman or a man" in " ".join(capsys.readouterr().err.split())
    assert corpus.transcripts("train") == ["YES", "NO GO", "GO"]
    assert corpus.features().array.shape[1] == 30
    path = data.parent / "features.yaml"
    path.write_text(
        "parts:\n  - {name: logmel, fbank: {num_bins: 20}, deltas: 1}\n  - {name: low, fbank: {num_bins: 8}}\n"
    )
    assert main(["features", str(data), "--features", str(path)]) == 0
    corpus = load_corpus(data)
    assert len(corpus.splits["train"]) == 3
    assert [(p.name, p.width, p.deltas) for p in corpus.features().parts] == [("logmel", 20, 1), ("low", 8, 2)]
    assert json.loads((data / "corpus.json").read_text())["features"] == "logmel20-low8"
    path.write_text("parts: [{num_bins: 20}]")
    assert main(["features", str(data), "--features", str(path)]) == 2
    assert "features.yaml: unknown option parts[0].num_bins" in " ".join(capsys.readouterr().err.split())
