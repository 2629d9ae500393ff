"""A corpus that is prepared once for all tests of this folder."""

from pathlib import Path

import pytest

from support.beeps import prepare_beeps


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared and aligned corpus with its recipe; commands run inside it."""
    return prepare_beeps(tmp_path_factory.mktemp("beeps"))


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in the folder."""
    monkeypatch.chdir(folder)
    return folder
