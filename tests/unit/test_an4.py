"""AN4, where it is: the counts its documentation and an independent pipeline give."""

import shutil
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.speech.corpus.an4 import prepare_an4
from roundelay.speech.corpus.prepared import load_corpus
from support.corpora import an4


def test_counts(tmp_path: Path) -> None:
    source = an4()
    prepare_an4(source, tmp_path, Silent())
    corpus = load_corpus(tmp_path)
    sizes = {split: (len(us), len({u.speaker for u in us})) for split, us in corpus.splits.items()}
    assert sizes == {"train": (754, 59), "dev": (78, 6), "test": (130, 10)}
    assert [sum(len(u.words) for u in corpus.splits[split]) for split in ("dev", "test")] == [447, 773]
    assert len(corpus.lexicon.words) == 101
    assert sum(len(variants) for variants in corpus.lexicon.pronunciations.values()) == 130
    assert len(corpus.lexicon.phones) == 34
    store = corpus.features()
    assert store.array.shape == (257_506, 40)
    assert sum(store.frames(u.id) for u in corpus.splits["train"]) == 200_872
    assert all(Path(u.path).is_absolute() for u in corpus.utterances)
    assert "Carnegie Mellon" in corpus.licence


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    source = an4()
    copy = tmp_path / "an4"
    for folder in ("train", "dev", "test", "lang"):
        shutil.copytree(source / folder, copy / folder)
    (copy / "flac").mkdir()
    speakers = sorted((source / "flac").iterdir())
    for speaker in speakers[1:]:
        (copy / "flac" / speaker.name).symlink_to(speaker)
    with pytest.raises(UserError) as error:
        prepare_an4(copy, tmp_path / "data", Silent())
    gone = len(list(speakers[0].iterdir()))
    assert f"{gone} of 754 utterances cannot be used" in str(error.value)
    assert f"{speakers[0].name}/" in str(error.value)


def test_a_folder_that_is_not_an4(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a Kaldi data directory"):
        prepare_an4(tmp_path, tmp_path / "data", Silent())
