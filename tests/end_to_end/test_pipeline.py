"""The whole path by the command line: audio files and transcripts in, word error rate and a page out."""

import json
from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from support.beeps import RECIPE


def test_from_recordings_to_a_page(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"one": ["--strategy", "sgd"], "four": ["--strategy", "adpsgd:fixed-ring", "--learners", "4"]}
    for name, options in runs.items():
        assert main(["train", "recipe.yaml", "--exp", name, *options]) == 0
    assert main(["decode", *runs]) == 0
    capsys.readouterr()
    assert main(["score", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all("%WER" in line and "ins" in line for line in lines)
    for name in runs:
        results = json.loads((inside / name / "results.json").read_text())
        errors = results["wer"]["test"]
        assert errors["ref"] == sum(len(t.split()) - 1 for t in (inside / "source/test/text").read_text().splitlines())
        assert errors["wer"] == pytest.approx(100 * (errors["ins"] + errors["del"] + errors["sub"]) / errors["ref"])
        assert errors["wer"] <= 10
        for file in ("ref.trn", "hyp.trn", "wer.txt", "errors.txt"):
            assert (inside / name / "decode" / "test" / file).stat().st_size
    assert main(["report", *runs, "--out", "page.html"]) == 0
    page = (inside / "page.html").read_text()
    assert "adpsgd fixed-ring" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_the_same_recipe_in_the_simulator(inside: Path) -> None:
    arguments = ["train", "recipe.yaml", "--exp", "sim", "--strategy", "ssgd", "--learners", "3", "--runtime", "sim"]
    assert main([*arguments, "schedule.max_epochs=1"]) == 0
    results = json.loads((inside / "sim" / "results.json").read_text())
    assert results["virtual_seconds"] > 0
    assert results["runtime"] == "sim"


def test_a_recorded_training_replays_bit_for_bit(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "recipe.yaml", "--exp", "recorded", "--strategy", "adpsgd", "--learners", "3", "--record"]
    assert main([*arguments, "schedule.max_epochs=2"]) == 0
    assert main(["replay", "recorded"]) == 0
    assert "repeated to the same weights, bit for bit" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["replay", "data"], "not a run directory"),
        (["train", "recipe.yaml", "--exp", "x", "--runtime", "sim", "--record"], "training.record"),
        (["train", "recipe.yaml", "--exp", "x", "--strategy", "sdg"], "there is no strategy 'sdg'"),
        (["train", "recipe.yaml", "--exp", "x", "--strategy", "sgd", "--learners", "2"], "for one learner"),
        (["train", "recipe.yaml", "--exp", "x", "training.minibach=3"], "did you mean minibatch"),
        (["train", "recipe.yaml", "--exp", "x", "--straggler", "9:3x"], "stragglers [9] do not exist"),
        (["train", "recipe.yaml", "--exp", "x", "--straggler", "slow"], "RANK:FACTORx"),
        (["train", "nothing.yaml", "--exp", "x"], "no recipe 'nothing.yaml'"),
        (["train", "recipe.yaml", "--exp", "x", "corpus=nowhere"], "nowhere"),
        (["train", "recipe.yaml", "--exp", "x", "alignment=nowhere"], "nowhere"),
        (["train", "recipe.yaml", "--exp", "data"], "not a run directory"),
        (["decode", "data"], "not a run directory"),
        (["score", "data"], "nothing decoded here"),
        (["report", "data"], "data"),
        (["prepare", "kaldi", "--source", "source"], "--lexicon"),
        (["prepare", "an4"], "--source"),
        (["simulate", "--strategy", "adpsgd:square"], "adpsgd.topology is 'square': choose one of"),
    ],
)
def test_bad_input_is_named_and_nothing_is_left_behind(
    inside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert main(arguments) == 2
    assert named in capsys.readouterr().err
    assert not (inside / "x" / "checkpoints").exists()


def test_decoding_needs_a_trained_model(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "empty").mkdir(exist_ok=True)
    (inside / "empty" / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    assert main(["decode", "empty"]) == 2
    assert "no trained model here" in capsys.readouterr().err


def test_simulate_prints_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--learners", "8", "--straggler", "0:10x", "--rounds", "30"]) == 0
    out = capsys.readouterr().out
    for label in ("ssgd", "delay-by-one", "adpsgd fixed-ring", "adpsgd random-ring"):
        assert label in out
