"""Fixtures that several test files share."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from roundelay_speech.transcription.serving.recognisers import Recognisers
from support.held import held_worker
from support.served import recognising


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder by which recognition is held (see `HeldRecogniser`)."""
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def recognisers(folder: Path) -> Iterator[Recognisers]:
    """Processes whose recognition is held there."""
    with recognising(partial(held_worker, folder)) as found:
        yield found
