"""`roundelay checkpoints` and `roundelay verify`: what they say of whole and of damaged files."""

import json
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from roundelay.cli import main


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A run of two epochs."""
    with chdir(folder):
        assert main(["train", "recipe.yaml", "--exp", "exp/kept", "--runtime", "sim", "schedule.max_epochs=2"]) == 0
    return folder / "exp/kept"


@pytest.fixture
def trained(run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(run, tmp_path / "exp")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def answer(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main([*command, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_checkpoints_are_listed_with_what_they_are_good_for(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = answer(capsys, "checkpoints", str(trained))
    found = told["checkpoints"]
    assert isinstance(found, list)
    assert status == 0
    assert [(one["name"], one["epochs"], one["fault"], one["next"]) for one in found] == [
        ("epoch-0001", 1, "", False),
        ("epoch-0002", 2, "", True),
    ]
    assert sum(one["best"] for one in found) == 1
    flip(trained / "checkpoints" / "epoch-0002.safetensors")
    status, told = answer(capsys, "checkpoints", str(trained))
    first, second = told["checkpoints"]
    assert (status, first["next"], second["next"]) == (0, True, False)
    assert "epoch-0002.safetensors: damaged" in second["fault"]
    flip(trained / "checkpoints" / "epoch-0001.json")
    assert main(["checkpoints", str(trained)]) == 1
    shown = capsys.readouterr().out
    assert "epoch-0001.json" in shown
    assert "damaged" in shown


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "checkpoints/epoch-0001.safetensors"])
def test_any_damaged_file_of_a_run_is_found(name: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = answer(capsys, "verify", str(trained))
    assert (status, told["whole"]) == (0, True)
    flip(trained / name)
    status, told = answer(capsys, "verify", str(trained))
    files = told["files"]
    assert isinstance(files, list)
    assert status == 1
    assert [Path(one["file"]) for one in files if one["fault"]] == [trained / name]


def test_features_and_alignments_are_verified_too(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = answer(capsys, "verify", "data", "alignment")
    files = told["files"]
    assert isinstance(files, list)
    names = {Path(one["file"]).name for one in files}
    assert status == 0
    assert {"features.npy", "speakers.npz", "index.json", "alignment.npy", "gmm.npz", "tree.json"} <= names
    (features,) = (path for path in (inside / "data").rglob("features.npy"))
    flip(features)
    try:
        assert main(["verify", "data"]) == 1
        assert "features.npy: damaged" in capsys.readouterr().out
    finally:
        flip(features)
