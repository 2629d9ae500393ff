"""A corpus that is prepared once for all tests of this folder."""

from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from support.beeps import RECIPE, write_beeps


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared and aligned corpus with its recipe; commands run inside it."""
    folder = tmp_path_factory.mktemp("beeps")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        source = write_beeps(folder / "source")
        Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        prepare = ["prepare", "kaldi", "--source", str(source), "--lexicon", str(source / "dict.txt"), "--data", "data"]
        assert main(prepare) == 0
        assert main(["align", "recipe.yaml"]) == 0
    return folder


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in the folder."""
    monkeypatch.chdir(folder)
    return folder
