"""A corpus that is prepared once for all tests of this folder."""

from pathlib import Path

import pytest

from roundelay.cli import main
from support.beeps import prepare_beeps


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared and aligned corpus with its recipe; commands run inside it."""
    return prepare_beeps(tmp_path_factory.mktemp("beeps"))


@pytest.fixture(scope="session")
def packed(folder: Path) -> Path:
    """The packed model of a run of the corpus, which lies beside it, `one`, decoded with times of words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "recipe.yaml", "--exp", "exp/packed/one", "training.runtime=sim"]) == 0
        assert main(["decode", "exp/packed/one", "--set", "decode.ctm=true"]) == 0
        assert main(["pack", "exp/packed/one", "--out", "exp/packed/model", "--licence", "of the test"]) == 0
    return folder / "exp/packed/model"


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in the folder."""
    monkeypatch.chdir(folder)
    return folder
