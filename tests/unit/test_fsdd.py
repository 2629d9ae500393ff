"""The spoken digits, as published and as data directories."""

from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.options import PrepareOptions
from roundelay_speech.corpus.readers.base import Request
from roundelay_speech.corpus.readers.fsdd import prepare_fsdd
from support.corpora import kaldi_corpus, recorded


def published(folder: Path) -> Path:
    (folder / "recordings").mkdir(parents=True)
    for digit in (0, 7):
        for number in (0, 4, 5, 9, 10, 49):
            recorded(folder / "recordings", f"{digit}_theo_{number}")
    return folder


@pytest.mark.parametrize("nested", ["", "free-spoken-digit-dataset-1.0.9"])
def test_as_published(tmp_path: Path, nested: str) -> None:
    published(tmp_path / "source" / nested)
    corpus = prepare_fsdd(Request(tmp_path / "data", tmp_path / "source"), Silent())
    ids = {split: [u.id.removeprefix("fsdd-theo-") for u in us] for split, us in corpus.splits.items()}
    assert ids == {
        "train": ["0-10", "0-49", "7-10", "7-49"],
        "dev": ["0-05", "0-09", "7-05", "7-09"],
        "test": ["0-00", "0-04", "7-00", "7-04"],
    }
    assert {u.text for u in corpus.utterances} == {"ZERO", "SEVEN"}
    assert len(corpus.lexicon.words) == 10
    assert corpus.lexicon.pronunciations["ONE"] == (("W", "AH", "N"), ("HH", "W", "AH", "N"))


def test_as_data_directories(tmp_path: Path) -> None:
    texts = {split: {f"{split}-0": "ZERO", f"{split}-1": "NINE"} for split in ("train", "dev", "test")}
    corpus = prepare_fsdd(Request(tmp_path / "data", kaldi_corpus(tmp_path / "source", texts)), Silent())
    assert [u.text for u in corpus.splits["dev"]] == ["ZERO", "NINE"]


def test_faults(tmp_path: Path) -> None:
    source = published(tmp_path / "source")
    (source / "recordings" / "7_theo_5.wav").write_bytes(b"")
    with pytest.raises(UserError, match=r"(?s)1 of 12 utterances cannot be used.*7_theo_5\.wav: the file is empty"):
        prepare_fsdd(Request(tmp_path / "data", source), Silent())
    corpus = prepare_fsdd(
        Request(tmp_path / "data", source, options=PrepareOptions(on_bad="skip", max_bad_share=0.5)), Silent()
    )
    assert [one.id for one in corpus.left_out["dev"]] == ["fsdd-theo-7-05"]
    (source / "recordings" / "seven.wav").write_bytes(b"")
    with pytest.raises(UserError, match=r"seven\.wav: not DIGIT_SPEAKER_NUMBER\.wav"):
        prepare_fsdd(Request(tmp_path / "data", source), Silent())
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="--download"):
        prepare_fsdd(Request(tmp_path / "data", tmp_path / "empty"), Silent())
