"""Kaldi data directories: reading what was written is the identity; files that disagree are all told."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from roundelay.core.errors import UserError
from roundelay_speech.corpus.formats.export import write_data_dir
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir
from roundelay_speech.data.manifest import Utterance
from support.corpora import (
    RATE,
    cut_anywhere,
    kaldi_corpus,
    recorded,
    utterance,
    write_lines,
    write_recordings,
)
from support.said import refusal


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("corpus"))


@settings(max_examples=40)
@given(some=cut_anywhere())
def test_round_trip(root: Path, some: list[Utterance]) -> None:
    utterances = [replace(one, path=str(root / one.path)) for one in some]
    write_data_dir(root / "data", utterances[::-1], root)
    assert read_data_dir(root / "data", root).utterances == utterances


def test_files_as_kaldi_wants_them(tmp_path: Path) -> None:
    b, a = recorded(tmp_path, "s1-b", gender="f"), recorded(tmp_path, "s1-a", gender="f", text="NO GO")
    write_data_dir(tmp_path / "data", [b, a], tmp_path)
    files = {path.name: path.read_text() for path in (tmp_path / "data").iterdir()}
    assert files == {
        "wav.scp": "s1-a s1-a.wav\ns1-b s1-b.wav\n",
        "text": "s1-a NO GO\ns1-b YES\n",
        "utt2spk": "s1-a s1\ns1-b s1\n",
        "spk2utt": "s1 s1-a s1-b\n",
        "spk2gender": "s1 f\n",
    }


def test_writing_again_leaves_nothing_of_before(tmp_path: Path) -> None:
    whole = recorded(tmp_path, "s1-a", gender="f")
    cut = utterance("s1-x", "s1-a.wav", recording_id="s1-a", start=0.1, seconds=0.2, speaker="s1")
    write_data_dir(tmp_path / "data", [cut], tmp_path)
    assert (tmp_path / "data" / "segments").read_text() == "s1-x s1-a 0.1 0.3\n"
    write_data_dir(tmp_path / "data", [whole], tmp_path)
    assert not (tmp_path / "data" / "segments").exists()


def test_segments_are_rounded_to_samples(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES"}})
    write_lines(corpus / "train" / "segments", {"s-2": "s-1 0.10001 0.2", "s-3": "s-1 0.3 -1"})
    write_lines(corpus / "train" / "text", {"s-3": "NO", "s-2": "YES"})
    write_lines(corpus / "train" / "utt2spk", {"s-3": "s", "s-2": "s"})
    first, second = read_data_dir(corpus / "train", corpus).utterances
    assert (first.id, first.start, first.num_samples, first.recording_id) == ("s-2", 0.1, 800, "s-1")
    assert (second.start_sample, second.num_samples) == (2400, 1600)


def test_paths_are_relative_to_the_corpus(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES  GO"}})
    (read,) = read_data_dir(corpus / "train", corpus).utterances
    assert read.path == str(corpus / "wav" / "s-1.wav")
    assert (read.text, read.speaker, read.sampling_rate, read.num_samples) == ("YES GO", "s", RATE, 4000)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("flac -c -d -s wav/s-1.flac |", "is a pipe"),
        ("| cat", "is a pipe"),
        ("-", "is the standard input"),
        ("raw.ark:123", "is a position in an archive"),
    ],
)
def test_only_plain_files(tmp_path: Path, value: str, message: str) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES"}})
    write_lines(corpus / "train" / "wav.scp", {"s-1": value})
    with pytest.raises(UserError, match=rf"wav\.scp:1: s-1 {message}"):
        read_data_dir(corpus / "train", corpus)


def test_files_that_disagree_are_all_told(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES", "s-2": "NO"}})
    train = corpus / "train"
    write_lines(train / "text", {"s-1": "YES", "s-3": "GO"})
    write_lines(train / "utt2spk", {"s-1": "s", "s-4": "s"})
    lines = [line.strip() for line in refusal(read_data_dir, train, corpus).splitlines()]
    assert "6 faults" in lines[0]
    assert sorted(lines[1:]) == sorted(
        [
            f"{train}/text:2: s-3 is in text but not in utt2spk",
            f"{train}/text:2: s-3 is in text but not in wav.scp",
            f"{train}/utt2spk:2: s-4 is in utt2spk but not in text",
            f"{train}/utt2spk:2: s-4 is in utt2spk but not in wav.scp",
            f"{train}/wav.scp:2: s-2 is in wav.scp but not in text",
            f"{train}/wav.scp:2: s-2 is in wav.scp but not in utt2spk",
        ]
    )


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder; expected a Kaldi data directory"):
        read_data_dir(tmp_path / "none", tmp_path)
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES"}})
    (corpus / "train" / "utt2spk").unlink()
    (corpus / "train" / "wav.scp").write_text("")
    said = refusal(read_data_dir, corpus / "train", corpus)
    assert "utt2spk: no such file" in said
    assert "It has a line `UTTERANCE SPEAKER` for each" in said
    assert "wav.scp: is empty" in said


def test_faulty_segments(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES"}})
    rows = {"a": "s-1 0.2", "b": "s-1 x 0.3", "c": "s-1 0.3 0.2", "d": "s-9 0 0.1", "e": "s-1 0 nan", "f": "s-1 -1 1"}
    write_lines(corpus / "train" / "segments", rows)
    write_lines(corpus / "train" / "text", dict.fromkeys(rows, "YES"))
    write_lines(corpus / "train" / "utt2spk", dict.fromkeys(rows, "s"))
    said = refusal(read_data_dir, corpus / "train", corpus)
    for number, what in enumerate(["not `REC", "not `REC", "ends at 0.2 s", "cut from s-9", "not `REC", "not `REC"], 1):
        assert any(f"segments:{number}: " in line and what in line for line in said.splitlines())


def test_bad_utterances_are_listed_or_left_out(tmp_path: Path) -> None:
    """Missing audio, a transcript without words, a segment shorter than a sample."""
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES", "s-2": "", "s-3": "NO"}})
    (corpus / "wav" / "s-3.wav").unlink()
    message = refusal(read_data_dir, corpus / "train", corpus)
    assert "2 of 3 utterances cannot be used" in message
    assert f"s-2: {corpus}/train/text:2: empty transcript" in message
    assert f"s-3: {corpus}/train/wav.scp:3: {corpus}/wav/s-3.wav: no such file" in message
    read = read_data_dir(corpus / "train", corpus, KaldiOptions("skip"))
    assert [u.id for u in read.utterances] == ["s-1"]
    assert [one.id for one in read.left_out] == ["s-2", "s-3"]


def test_what_kaldi_cannot_hold_is_refused(tmp_path: Path) -> None:
    a = recorded(tmp_path, "s-a", gender="f")
    b = utterance("s-b", "s-a.wav", gender="m")
    c = utterance("s-c", "x|", gender="f")
    d = utterance("s-d", "s-b.wav", recording_id="s-a", gender="f")
    message = refusal(write_data_dir, tmp_path / "data", [a, b, c, d, a], tmp_path)
    assert "s-b: its speaker s has the genders f and m" in message
    assert "s-c: Kaldi would not read the path 'x|'" in message
    assert "s-d: its recording s-a is in s-b.wav and in s-a.wav" in message
    assert "s-a: the id occurs more than once" in message
    assert not (tmp_path / "data").exists()


def test_segments_that_end_after_their_recording(tmp_path: Path) -> None:
    """Half a second is cut off, as extract-segments does; more is not to be believed."""
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES"}})
    write_lines(corpus / "train" / "segments", {"s-2": "s-1 0.25 0.99", "s-3": "s-1 0.25 1.01"})
    write_lines(corpus / "train" / "text", {"s-2": "NO", "s-3": "NO"})
    write_lines(corpus / "train" / "utt2spk", {"s-2": "s", "s-3": "s"})
    with pytest.raises(UserError, match=r"segments:2: ends after 1\.01 s, its recording after 0\.5 s"):
        read_data_dir(corpus / "train", corpus)
    (kept,) = read_data_dir(corpus / "train", corpus, KaldiOptions("skip")).utterances
    assert (kept.id, kept.start, kept.num_samples) == ("s-2", 0.25, 2000)


def test_durations_are_checked(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES", "s-2": "NO", "s-3": "GO"}})
    train = corpus / "train"
    write_lines(train / "utt2dur", {"s-1": "0.5", "s-2": "0.91"})
    write_lines(train / "reco2dur", {"s-1": "0.43", "s-3": "0.2"})
    said = refusal(read_data_dir, train, corpus)
    assert f"s-2: {train}/utt2dur:2: lasts 0.5 s, not 0.91 s; is it cut short?" in said
    assert f"s-3: {train}/reco2dur:2: {corpus}/wav/s-3.wav lasts 0.5 s, not 0.2 s" in said
    assert "2 of 3" in said
    write_lines(train / "utt2dur", {"s-1": "long", "s-2": "-1"})
    with pytest.raises(UserError, match=r"utt2dur:1: s-1: not a number(.|\n)*utt2dur:2: s-2: not a number"):
        read_data_dir(train, corpus)


def test_spk2utt_is_the_inverse(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES", "s-2": "NO", "t-1": "GO"}})
    write_lines(corpus / "train" / "spk2utt", {"s": "s-1 t-1", "u": "u-1"})
    said = refusal(read_data_dir, corpus / "train", corpus)
    assert "spk2utt:1: t-1 is of s, but of t in utt2spk" in said
    assert "spk2utt:2: u-1 is of u, but not in utt2spk" in said
    assert "utt2spk:2: s-2 is not in spk2utt" in said
