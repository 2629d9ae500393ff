"""Lattice-free MMI from recordings to words: no alignment, whatever the context of phones, and packed."""

import json
from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from roundelay_speech.audio.reading import audio_path
from roundelay_speech.prepared import load_corpus
from roundelay_speech.trained import load_model
from support.beeps import UNALIGNED, WORDS

FLAT_START = UNALIGNED | {
    "units": "chain",
    "training": {**UNALIGNED["training"], "objective": "lfmmi"},  # type: ignore[dict-item]
    "schedule": {**UNALIGNED["schedule"], "max_epochs": 4},  # type: ignore[dict-item]
    "decode": {**UNALIGNED["decode"], "graph": "chain"},  # type: ignore[dict-item]
}


@pytest.fixture(scope="module")
def exp(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two learners; the recipe lies beside it."""
    place = tmp_path_factory.mktemp("lfmmi")
    (place / "recipe.yaml").write_text(yaml.safe_dump({**FLAT_START, "corpus": str(folder / "data")}))
    train = ["train", str(place / "recipe.yaml"), "training.strategy=adpsgd", "training.learners=2"]
    assert main([*train, "--exp", str(place / "exp")]) == 0
    return place / "exp"


def error_rate(exp: Path) -> float:
    return float(json.loads((exp / "results.json").read_text())["wer"]["test"]["wer"])


def test_words_by_the_graph(exp: Path) -> None:
    """Trained, decoded and scored; the run has its columns and its graph, and nothing else is needed."""
    assert main(["decode", str(exp)]) == 0
    assert error_rate(exp) < 20
    phones = ["SIL", *sorted({phone for said in WORDS.values() for phone in said})]
    columns = [name for phone in phones for name in (phone, f"{phone}~")]
    lines = (exp / "units.txt").read_text().splitlines()
    assert lines == [f"{name} {column}" for column, name in enumerate(columns)]
    model = load_model(exp)
    assert model.units is not None
    assert list(model.units.columns) == columns


def test_a_packed_model_finds_the_words_of_decode(
    exp: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", str(exp), "--out", str(tmp_path / "out")]) == 0
    pack = ["pack", str(exp), "--decoded", str(tmp_path / "out"), "--out", str(tmp_path / "model")]
    assert main(pack) == 0
    evaluate = ["evaluate", str(tmp_path / "model"), "--data", str(folder / "data"), "--split", "test"]
    assert main([*evaluate, "--workers", "1", "--out", str(tmp_path / "evaluated")]) == 0
    found = (tmp_path / "evaluated/test/hyp.trn").read_bytes()
    assert found == (tmp_path / "out/decode/test/hyp.trn").read_bytes()
    corpus = load_corpus(folder / "data")
    utterance = corpus.splits["test"][0]
    capsys.readouterr()
    assert main(["transcribe", str(tmp_path / "model"), str(audio_path(utterance, corpus.folder))]) == 0
    assert utterance.text in capsys.readouterr().out


def test_biphones_of_one_state_and_a_cross_entropy(exp: Path, tmp_path: Path) -> None:
    train = ["train", str(exp.parent / "recipe.yaml"), "units={name: chain, context: 2, states: 1, least: 10}"]
    objective = "training.objective={name: lfmmi, order: 3, cross_entropy: 0.1}"
    assert main([*train, objective, "--exp", str(tmp_path / "exp")]) == 0
    names = [line.split()[0] for line in (tmp_path / "exp/units.txt").read_text().splitlines()]
    assert "N-OW" in names
    assert not any(name.endswith("~") for name in names)
    assert main(["decode", str(tmp_path / "exp")]) == 0
    assert error_rate(tmp_path / "exp") < 20


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["units=phones"], "Give units=chain"),
        ("train", ["training.objective=ctc"], "Give units=phones, characters or bpe"),
        ("train", ["training.minibatch_unit=frames"], "training.minibatch_unit=sequences"),
        ("train", ["training.objective={name: lfmmi, order: 9}"], "give a whole number from 3 to 4"),
        ("decode", ["decode.graph=ctc"], "Give decode.graph=chain"),
        ("decode", ["decode.graph=hmm"], "Give decode.graph=chain"),
        ("decode", ["decode.ctm=true"], "decode.ctm"),
    ],
)
def test_what_cannot_be(
    command: str, arguments: list[str], message: str, exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [str(exp.parent / "recipe.yaml"), "--exp", str(tmp_path / "exp")]
    assert main([command, *(train if command == "train" else [str(exp), "--set"]), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
