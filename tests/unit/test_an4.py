"""AN4, where it is: the counts its documentation and an independent pipeline give."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.readers.an4 import prepare_an4
from roundelay_speech.corpus.readers.base import Request
from roundelay_speech.prepared import load_corpus
from support.corpora import an4, speechlike
from support.said import refusal


def test_counts(tmp_path: Path) -> None:
    source = an4()
    prepare_an4(Request(tmp_path, source), Silent())
    corpus = load_corpus(tmp_path)
    sizes = {split: (len(us), len({u.speaker for u in us})) for split, us in corpus.splits.items()}
    assert sizes == {"train": (754, 59), "dev": (78, 6), "test": (130, 10)}
    assert [sum(len(u.words) for u in corpus.splits[split]) for split in ("dev", "test")] == [447, 773]
    assert len(corpus.lexicon.words) == 101
    assert sum(len(variants) for variants in corpus.lexicon.pronunciations.values()) == 130
    assert len(corpus.lexicon.phones) == 34
    speakers = {u.speaker: u.gender for u in corpus.utterances}
    assert Counter(speakers.values()) == {"f": 21, "m": 54}
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
    said = refusal(prepare_an4, Request(tmp_path / "data", copy), Silent())
    gone = len(list(speakers[0].iterdir()))
    assert f"{gone} of 754 utterances cannot be used" in said
    assert f"{speakers[0].name}/" in said


def test_a_folder_that_is_not_an4(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected Kaldi data directories .*`--source` names"):
        prepare_an4(Request(tmp_path / "data", tmp_path), Silent())


def test_as_cmu_gives_it(tmp_path: Path) -> None:
    source = tmp_path / "source" / "an4"
    (source / "etc").mkdir(parents=True)
    (source / "etc" / "an4.dic").write_text("YES  Y EH S\nGO  G OW\n")
    said = {"fash": "an4_clstk", "fejs": "an4_clstk", "menk": "an4test_clstk"}
    for speaker, part in said.items():
        folder = source / "wav" / part / speaker
        folder.mkdir(parents=True)
        wave = speechlike(0.5, 16000, speaker)
        soundfile.write(folder / f"an251-{speaker}-b.sph", wave, 16000, format="NIST", subtype="PCM_16")
    train = source / "etc" / "an4_train.transcription"
    train.write_text("<s> YES </s> (an251-fash-b)\n<s> GO </s> (an251-fejs-b)\n")
    (source / "etc" / "an4_test.transcription").write_text("GO YES (an251-menk-b)\n")
    corpus = prepare_an4(Request(tmp_path / "data", tmp_path / "source"), Silent())
    assert {split: [(u.id, u.text, u.gender) for u in us] for split, us in corpus.splits.items()} == {
        "train": [("an4-fash-an251", "YES", "f")],
        "dev": [("an4-fejs-an251", "GO", "f")],
        "test": [("an4-menk-an251", "GO YES", "m")],
    }
    train.write_text("<s> YES </s>\n<s> GO </s> (an252-fash-b)\n")
    with pytest.raises(UserError, match=r"an4_train\.transcription:1: not `WORDS"):
        prepare_an4(Request(tmp_path / "data", tmp_path / "source"), Silent())
    train.write_text("<s> GO </s> (an252-fash-b)\n")
    with pytest.raises(UserError, match=r"an4-fash-an252: no wav"):
        prepare_an4(Request(tmp_path / "data", tmp_path / "source"), Silent())
