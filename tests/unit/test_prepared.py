"""Preparing a corpus: every check before anything is written; a folder is either prepared or says that it is not."""

import errno
import os
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.build import prepare_kaldi
from roundelay_speech.corpus.options import Preparation
from roundelay_speech.prepared import Corpus, load_corpus
from support.corpora import kaldi_corpus, prepared, recorded, write_lines
from support.damage import forget_checksums
from support.said import refusal

TEXTS = {
    "train": {"s1-a": "YES NO", "s1-b": "GO", "s2-a": "NO NO"},
    "dev": {"s3-a": "GO YES"},
    "test": {"s4-a": "NO"},
}


def prepare(source: Path, data: Path, **options: object) -> Corpus:
    return prepared(source, data, licence="none needed", **{"max_bad_share": 1.0} | options)


def edit(source: Path, split: str, name: str, text: str) -> None:
    """Change one transcript."""
    write_lines(source / split / "text", TEXTS[split] | {name: text})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return kaldi_corpus(tmp_path / "source", TEXTS)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_what_was_prepared_is_loaded(source: Path, data: Path) -> None:
    corpus = prepare(source, data)
    assert load_corpus(data) == corpus
    assert {split: [u.id for u in us] for split, us in corpus.splits.items()} == {
        split: list(texts) for split, texts in TEXTS.items()
    }
    assert corpus.lexicon.phones == ("SIL", "EH", "G", "N", "OW", "S", "Y")
    store = corpus.features()
    assert store.utterance_ids == tuple(u.id for u in corpus.utterances)
    assert store.array.shape == (5 * 48, 40)
    assert sorted(p.name for p in data.iterdir()) == [
        "corpus.json",
        "dev.jsonl",
        "fbank40",
        "lexicon.txt",
        "test.jsonl",
        "train.jsonl",
    ]


def test_a_damaged_file_is_named(source: Path, data: Path) -> None:
    """Also where what is left could be read: fewer utterances, other words, other phones."""
    prepare(source, data)
    for file in ("train.jsonl", "dev.jsonl", "lexicon.txt", "corpus.json"):
        whole = (data / file).read_bytes()
        other = whole.replace(b"toy", b"tox") if file == "corpus.json" else whole.replace(b"O", b"Q")
        for changed in (whole[: whole[:-1].rfind(b"\n") + 1], other, b"", None):
            assert changed != whole
            (data / file).unlink()
            if changed is not None:
                (data / file).write_bytes(changed)
            with pytest.raises(UserError, match=rf"({file}|{data}: not a prepared corpus).*roundelay prepare"):
                load_corpus(data)
            (data / file).write_bytes(whole)
    assert load_corpus(data).name == "toy"


def test_preparing_again_computes_nothing_again(source: Path, data: Path) -> None:
    prepare(source, data)
    before = (data / "fbank40" / "features.npy").stat().st_mtime_ns
    prepare(source, data)
    assert (data / "fbank40" / "features.npy").stat().st_mtime_ns == before


def test_a_folder_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none: no such folder.*`roundelay prepare`"):
        load_corpus(tmp_path / "none")
    with pytest.raises(UserError, match=r"not a prepared corpus \(no corpus.json.*`roundelay prepare`"):
        load_corpus(tmp_path)
    (tmp_path / "corpus.json").write_text("{}")
    with pytest.raises(UserError, match="not what `roundelay prepare` writes"):
        load_corpus(tmp_path)
    (tmp_path / "corpus.json").write_text('{"version": 0}')
    with pytest.raises(UserError, match="another version"):
        load_corpus(tmp_path)


def test_features_of_other_utterances_are_refused(source: Path, data: Path) -> None:
    prepare(source, data)
    lines = (data / "dev.jsonl").read_text()
    (data / "dev.jsonl").write_text(lines.replace('"id":"s3-a"', '"id":"s3-z"'))
    forget_checksums(data / "corpus.json")  # a folder of an earlier version
    with pytest.raises(UserError, match=r"no features of 1 utterances(.|\n)*s3-z"):
        load_corpus(data).features()


def test_words_missing_anywhere_are_listed_before_anything_is_written(source: Path, data: Path) -> None:
    edit(source, "train", "s1-a", "YES MAYBE")
    edit(source, "test", "s4-a", "PERHAPS MAYBE")
    said = refusal(prepare, source, data)
    assert "MAYBE (2 x, first in s1-a)" in said
    assert "PERHAPS (1 x, first in s4-a)" in said
    assert not data.exists()


def test_missing_words_skipped_in_training_and_kept_for_scoring(source: Path, data: Path) -> None:
    edit(source, "train", "s1-a", "YES MAYBE")
    edit(source, "test", "s4-a", "PERHAPS NO")
    prepare(source, data, on_missing_words="skip")
    corpus = load_corpus(data)
    assert [u.id for u in corpus.splits["train"]] == ["s1-b", "s2-a"]
    assert [(one.id, one.reason) for one in corpus.left_out["train"]] == [("s1-a", "s1-a: not in the lexicon: MAYBE")]
    assert corpus.splits["test"][0].text == "PERHAPS NO"
    assert corpus.alignable("dev") == corpus.splits["dev"]
    assert corpus.alignable("test") == []
    (source / "train" / "text").write_text("".join(f"{name} MAYBE\n" for name in TEXTS["train"]))
    with pytest.raises(UserError, match=r"Every training utterance has a word(.|\n)*s1-b: not in the lexicon: MAYBE"):
        prepare(source, data, on_missing_words="skip")
    assert load_corpus(data) == corpus


def test_missing_words_mapped_for_alignment_and_kept_for_scoring(source: Path, data: Path) -> None:
    edit(source, "train", "s1-a", "YES MAYBE")
    edit(source, "test", "s4-a", "PERHAPS NO")
    prepare(source, data, on_missing_words="map", map_to="GO")
    corpus = load_corpus(data)
    assert corpus.splits["train"][0].text == "YES GO"
    assert corpus.splits["test"][0].text == "PERHAPS NO"
    assert [u.text for u in corpus.alignable("test")] == ["GO NO"]
    with pytest.raises(UserError, match="--map-to MAYBE: not a word of the lexicon"):
        prepare(source, data, on_missing_words="map", map_to="MAYBE")


def test_bad_audio_is_an_error_or_left_out(source: Path, data: Path) -> None:
    """Empty transcript, wrong rate, cut short: found at three different places, told by one policy."""
    edit(source, "train", "s1-a", "")
    wav = source / "wav"
    recorded(wav, "s1-b", 0.5, rate=16000)
    content = (wav / "s3-a.wav").read_bytes()
    with pytest.raises(UserError, match=r"s1-a: .*empty transcript"):
        prepare(source, data)
    edit(source, "train", "s1-a", "YES")
    with pytest.raises(UserError, match=r"--rate 8000(.|\n)*s1-b: .*16,000 Hz"):
        prepare(source, data)
    edit(source, "train", "s1-a", "")
    (wav / "s4-a.wav").write_bytes(content[:1000])
    with pytest.raises(UserError, match="No utterance is left in: test"):
        prepare(source, data, on_bad="skip")
    (wav / "s4-a.wav").write_bytes(content)
    corpus = prepare(source, data, on_bad="skip")
    assert [u.id for u in corpus.splits["train"]] == ["s2-a"]
    assert [one.id for one in load_corpus(data).left_out["train"]] == ["s1-a", "s1-b"]
    assert set(corpus.features().utterance_ids) == {"s2-a", "s3-a", "s4-a"}


def test_more_than_a_share_is_never_left_out(source: Path, data: Path) -> None:
    """Of any split, for whatever reason, found at whatever place; nothing is written."""
    (source / "wav" / "s1-a.wav").unlink()
    edit(source, "train", "s1-b", "MAYBE")
    with pytest.raises(UserError, match=r"1 of 3 utterances of `train` .* of 0\.1 (.|\n)*s1-a: .*no such file"):
        prepare(source, data, on_bad="skip", on_missing_words="skip", max_bad_share=0.1)
    with pytest.raises(UserError, match=r"2 of 3 utterances of `train` (.|\n)*s1-b: not in the lexicon: MAYBE"):
        prepare(source, data, on_bad="skip", on_missing_words="skip", max_bad_share=0.5)
    recorded(source / "wav", "s2-a", 0.5, rate=16000)
    with pytest.raises(UserError, match=r"3 of 3 utterances of `train` (.|\n)*s2-a: .*sampled at 16000 Hz"):
        prepare(source, data, on_bad="skip", on_missing_words="skip", max_bad_share=0.7)
    recorded(source / "wav", "s2-a", 0.02)  # shorter than a frame: known only once features are computed
    with pytest.raises(UserError, match=r"3 of 3 utterances of `train` (.|\n)*s2-a: .*shorter than one frame"):
        prepare(source, data, on_bad="skip", on_missing_words="skip", max_bad_share=0.7)
    with pytest.raises(UserError, match="--max-bad-share 30: a share is between 0 and 1"):
        prepare(source, data, on_bad="skip", max_bad_share=30.0)
    assert not (data / "corpus.json").exists()


def test_ids_are_unique_over_splits(source: Path, data: Path) -> None:
    for file in ("text", "wav.scp", "utt2spk"):
        (source / "dev" / file).write_bytes((source / "train" / file).read_bytes())
    with pytest.raises(UserError, match=r"3 utterance ids occur more than once(.|\n)*s1-a \(train, dev\)"):
        prepare(source, data)


def test_a_source_that_is_not_there(source: Path, data: Path, tmp_path: Path) -> None:
    lexicon = source / "lang" / "words.dic"
    with pytest.raises(UserError, match="none: no such folder; `--source`"):
        prepare(tmp_path / "none", data)
    with pytest.raises(UserError, match=r"lang: none of the folders train, .*; expected .* `--source` names"):
        prepare(source / "lang", data)
    with pytest.raises(UserError, match=r"A split's name becomes a file's: 'a/b'"):
        prepare_kaldi(source, lexicon, {"train": "train", "a/b": "dev"}, Preparation(data, "toy"), Silent())
    with pytest.raises(UserError, match="needs a split named `train`"):
        prepare_kaldi(source, lexicon, {"dev": "dev"}, Preparation(data, "toy"), Silent())


def test_an_interrupted_prepare_is_not_a_prepared_folder(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up when the last manifest is written; the features, done by then, are not computed again."""
    prepare(source, data)
    (data / "test.jsonl").unlink()
    before = (data / "fbank40" / "features.npy").stat().st_mtime_ns
    replace = os.replace

    def full(old: Path, new: Path) -> None:
        if new.name == "test.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(UserError, match=r"test\.jsonl: the disk is full"):
            prepare(source, data)
    with pytest.raises(UserError, match="not a prepared corpus"):
        load_corpus(data)
    assert load_corpus(prepare(source, data).folder).splits["test"][0].id == "s4-a"
    assert (data / "fbank40" / "features.npy").stat().st_mtime_ns == before
