"""Realignment by the command line: networks label the corpus again, and the next network learns from that."""

import json
from pathlib import Path

import numpy as np
import pytest

from roundelay.cli import main
from roundelay_speech.hmm.alignment import Alignment


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for seed in ("0", "1"):
            run = ["train", "recipe.yaml", "--exp", f"net{seed}", "--seed", seed, "schedule.max_epochs=2"]
            assert main([*run, "training.runtime=sim"]) == 0
    return folder


def test_the_next_network_learns_from_it(trained: Path, inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["realign", "net0", "net1", "--out", "again", "--workers", "1"]) == 0
    assert "% of frames changed" in " ".join(capsys.readouterr().out.split())
    before, after = Alignment.load(Path("alignment")), Alignment.load(Path("again"))
    assert after.tree == before.tree
    assert after.summary.made_by.startswith("net0 (")
    assert "net1 (" in after.summary.made_by
    assert 0 < float((after.pdf != before.pdf).mean()) < 0.5
    run = ["train", "recipe.yaml", "alignment=again", "--exp", "second", "training.runtime=sim"]
    assert main([*run, "schedule.max_epochs=2"]) == 0
    assert main(["decode", "second"]) == 0
    assert json.loads(Path("second/results.json").read_text())["wer"]["test"]["wer"] <= 10


def test_the_mean_of_a_network_with_itself_is_the_network(trained: Path, inside: Path) -> None:
    assert main(["realign", "net0", "--out", "once", "--workers", "1"]) == 0
    assert main(["realign", "net0", "net0", "--out", "twice", "--workers", "2"]) == 0
    once, twice = Alignment.load(Path("once")), Alignment.load(Path("twice"))
    assert np.array_equal(once.pdf, twice.pdf)
    other = Alignment.load(Path("again")) if Path("again").exists() else None
    assert other is None or not np.array_equal(other.pdf, once.pdf)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net0", "--out", "alignment"], "a run was trained on this alignment"),
        (["nothing", "--out", "new"], "nothing: not a run directory"),
        (["net0", "--out", "new", "--scale", "0"], "--scale: '0' is not a number above 0"),
    ],
)
def test_what_cannot_be_realigned(
    trained: Path, inside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["realign", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("new").exists()


def test_another_tree_is_refused(trained: Path, inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", "recipe.yaml", "align.tied_states=30", "alignment=other"]) == 0
    run = ["train", "recipe.yaml", "alignment=other", "--exp", "net2", "training.runtime=sim", "schedule.max_epochs=1"]
    assert main(run) == 0
    assert main(["realign", "net0", "net2", "--out", "new"]) == 2
    assert "net2: its tied states are not those of" in " ".join(capsys.readouterr().err.split())
