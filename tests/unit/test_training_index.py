"""The index that all learners of a host map: what is in the corpus and its alignment, made once, made again when those
change."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay_speech.training_index import FOLDER, META, TrainingIndex
from support.version_0_1 import FOLDER as VERSION_0_1


@pytest.fixture
def speech(tmp_path: Path) -> tuple[Path, Path]:
    """A prepared corpus and its alignment."""
    folder = shutil.copytree(VERSION_0_1 / "speech", tmp_path / "speech")
    return folder / "data", folder / "alignment"


def assert_same(found: TrainingIndex, expected: TrainingIndex) -> None:
    for name in ("array", "offsets", "speaker_indices"):
        assert np.array_equal(getattr(found.store, name), getattr(expected.store, name)), name
    assert np.array_equal(found.store.speakers.mean, expected.store.speakers.mean)
    assert np.array_equal(found.store.speakers.std, expected.store.speakers.std)
    assert found.store.parts == expected.store.parts
    assert (found.store.sampling_rate, found.store.frame_shift) == (
        expected.store.sampling_rate,
        expected.store.frame_shift,
    )
    assert np.array_equal(found.labels, expected.labels)
    assert found.num_pdfs == expected.num_pdfs
    assert found.splits.keys() == expected.splits.keys()
    for split, runs in expected.splits.items():
        for field, value in vars(runs).items():
            assert np.array_equal(getattr(found.splits[split], field), value), (split, field)


def test_what_is_kept_is_what_is_read(speech: tuple[Path, Path]) -> None:
    made = TrainingIndex.make(*speech)
    assert_same(TrainingIndex.open(*speech), made)
    assert (speech[1] / FOLDER / META).is_file()
    again = TrainingIndex.open(*speech)
    assert_same(again, made)
    assert isinstance(again.splits["train"].ends.base, np.memmap)
    assert again.store.utterance_ids == ()


def test_it_is_made_once(speech: tuple[Path, Path]) -> None:
    TrainingIndex.open(*speech)
    before = (speech[1] / FOLDER / META).stat().st_mtime_ns
    TrainingIndex.open(*speech)
    assert (speech[1] / FOLDER / META).stat().st_mtime_ns == before


@pytest.mark.parametrize("where", ["corpus", "alignment"])
def test_it_is_made_again_when_its_files_have_changed(speech: tuple[Path, Path], where: str) -> None:
    TrainingIndex.open(*speech)
    first = (speech[1] / FOLDER / META).read_text()
    os.utime(speech[0] / "corpus.json" if where == "corpus" else speech[1] / "alignment.npy", (1, 1))
    assert_same(TrainingIndex.open(*speech), TrainingIndex.make(*speech))
    assert (speech[1] / FOLDER / META).read_text() != first


def test_damage_is_noticed_and_mended(speech: tuple[Path, Path]) -> None:
    TrainingIndex.open(*speech)
    path = speech[1] / FOLDER / "train.ends.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert_same(TrainingIndex.open(*speech), TrainingIndex.make(*speech))


def test_where_nothing_can_be_written_it_is_made_in_memory(speech: tuple[Path, Path]) -> None:
    (speech[1] / FOLDER).write_text("in the way")
    assert_same(TrainingIndex.open(*speech), TrainingIndex.make(*speech))


def test_what_is_missing_is_named(speech: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no alignment here"):
        TrainingIndex.open(speech[0], tmp_path / "none")
    with pytest.raises(UserError, match="no such folder"):
        TrainingIndex.open(tmp_path / "none", speech[1])
