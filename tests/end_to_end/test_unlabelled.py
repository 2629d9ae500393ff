"""Speech without transcripts: prepared, decoded, evaluated; word errors where there are references, and only there."""

import shutil
import subprocess
from pathlib import Path

import pytest
import soundfile

from roundelay.cli import main
from roundelay.core.streams import stream
from roundelay_speech.prepared import load_corpus
from roundelay_speech.scoring.formats.trn import read_trn
from support.beeps import RATE, say, write_beeps


@pytest.fixture
def home(folder: Path, packed: Path) -> Path:
    """A folder with a trained run, its decoding, and the corpus it came from."""
    return folder


@pytest.fixture
def bare(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test speech as a Kaldi data directory without words, in a working directory of its own."""
    source = tmp_path / "source"
    (source / "test").mkdir(parents=True)
    for line in (home / "source/test/wav.scp").read_text().splitlines():
        name, path = line.split()
        with (source / "test/wav.scp").open("a") as file:
            file.write(f"{name} {home / 'source' / path}\n")
    shutil.copy(home / "source/test/utt2spk", source / "test/utt2spk")
    monkeypatch.chdir(tmp_path)
    return source


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """All that was printed, in one line."""
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


def test_speech_without_words_is_prepared_and_decoded(
    home: Path, bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "kaldi", "--unlabelled", "--source", str(bare), "--data", "new"]) == 0
    corpus = load_corpus(Path("new"))
    assert corpus.unlabelled
    assert list(corpus.splits) == ["test"]
    assert main(["decode", str(home / "exp/packed/one"), "--corpus", "new", "--out", "out"]) == 0
    assert "there are no transcripts to score them by" in told(capsys)
    assert read_trn(Path("out/decode/test/hyp.trn")) == read_trn(home / "exp/packed/one/decode/test/hyp.trn")
    assert not Path("out/decode/test/ref.trn").exists()
    assert not Path("out/decode/test/wer.txt").exists()
    assert main(["verify", "new"]) == 0
    assert main(["inspect", "new"]) == 0
    assert main(["export", "kaldi", "new", "--out", "exported"]) == 0
    assert not Path("exported/test/text").exists()


def test_a_directory_is_decoded_as_it_is_with_and_without_words(
    home: Path, bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = ["decode", str(home / "exp/packed/one"), "--data", "source/test"]
    assert main(decode) == 2
    assert "give --out DIR" in told(capsys)
    assert main([*decode, "--out", "out"]) == 0
    words = read_trn(Path("out/decode/test/hyp.trn"))
    assert words == read_trn(home / "exp/packed/one/decode/test/hyp.trn")
    shutil.copy(home / "source/test/text", bare / "test/text")
    assert main([*decode, "--out", "scored"]) == 0
    expected = (home / "exp/packed/one/decode/test/wer.txt").read_text()
    assert Path("scored/decode/test/wer.txt").read_text() == expected
    assert main([*decode, "--out", "scored"]) == 0, "the features that are there are kept"
    lines = (bare / "test/text").read_text().splitlines(keepends=True)
    (bare / "test/text").write_text("".join(lines[1:]))
    assert main([*decode, "--out", "mixed"]) == 2
    assert "1 of 10 utterances have no words" in told(capsys)


def test_recordings_in_a_folder_are_decoded(home: Path, bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = stream(5, "recordings")
    Path("talks/ann").mkdir(parents=True)
    for number, words in enumerate((["GO", "STAY"], ["YES"], ["NO", "YES"])):
        soundfile.write(f"talks/ann/{number}.flac", say(words, rng), RATE)
    exp = str(home / "exp/packed/one")
    assert main(["decode", exp, "--data", "talks", "--out", "out"]) == 0
    assert list(read_trn(Path("out/decode/talks/hyp.trn")).values()) == [["GO", "STAY"], ["YES"], ["NO", "YES"]]
    assert {u.speaker for u in load_corpus(Path("out/data")).splits["talks"]} == {"ann"}
    for number, text in enumerate(("GO STAY", "YES", "NO GO")):
        Path(f"talks/ann/{number}.txt").write_text(f"{text}\n")
    assert main(["decode", exp, "--data", "talks", "--out", "out"]) == 0
    assert "[ 1 / 5" in told(capsys)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg here")
def test_recordings_of_other_kinds_are_converted(home: Path, bare: Path) -> None:
    Path("talks").mkdir()
    soundfile.write("talks/one.wav", say(["GO", "STAY"], stream(5, "other kinds")), RATE)
    subprocess.run(["ffmpeg", "-v", "error", "-i", "talks/one.wav", "talks/one.m4a"], check=True)
    Path("talks/one.wav").unlink()
    assert main(["decode", str(home / "exp/packed/one"), "--data", "talks", "--out", "out"]) == 0
    assert list(read_trn(Path("out/decode/talks/hyp.trn")).values()) == [["GO", "STAY"]]
    assert [path.name for path in Path("out/data/converted").iterdir()] == ["one.wav"]


def test_a_long_recording_is_cut_at_pauses(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = stream(6, "long")
    said = [say(["GO", "STAY"], rng) for _ in range(20)]
    with soundfile.SoundFile("long.wav", "w", RATE, 1) as file:
        for one in said:
            file.write(one)
            file.write(0.002 * rng.standard_normal(int(1.5 * RATE)))
    Path("talks").mkdir()
    Path("long.wav").rename("talks/long talk.wav")
    prepare = ["prepare", "recordings", "--unlabelled", "--source", "talks", "--data", "new"]
    assert main([*prepare, "--lexicon", "dict.txt"]) == 2
    assert "leave --lexicon out" in told(capsys)
    assert main(prepare) == 0
    pieces = load_corpus(Path("new")).splits["talks"]
    assert len(pieces) == 20
    assert {u.recording_id for u in pieces} == {"long_talk"}
    assert all(u.duration < 3 for u in pieces)


def test_nothing_is_trained_on_speech_without_words(home: Path, bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "kaldi", "--unlabelled", "--source", str(bare), "--data", "new"]) == 0
    recipe = str(home / "recipe.yaml")
    capsys.readouterr()
    ctc = ["training.objective=ctc", "decode.graph=ctc", "model={name: blstm}", "training.minibatch_unit=sequences"]
    for command in (
        ["align", recipe, "corpus=new", "alignment=aligned"],
        ["features", "new", "--speed", "0.9"],
        ["train", recipe, "--exp", "exp", "corpus=new", *ctc],
    ):
        assert main(command) == 2
        assert "prepared with --unlabelled, to be recognised" in told(capsys)


def test_recordings_with_words_beside_them_are_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_beeps(tmp_path / "kaldi")
    texts = {}
    for split in ("train", "dev", "test"):
        (tmp_path / "mine" / split).mkdir(parents=True)
        for line in (source / split / "text").read_text().splitlines():
            name, _, words = line.partition(" ")
            texts[name] = words
            shutil.copy(source / "wav" / f"{name}.wav", f"mine/{split}/{name}.wav")
            if split == "train":
                Path(f"mine/train/{name}.txt").write_text(words)
        if split != "train":
            shutil.copy(source / split / "text", f"mine/{split}/text")
    lexicon = ["--lexicon", str(source / "dict.txt")]
    assert main(["prepare", "recordings", "--source", "mine", "--data", "data", *lexicon]) == 0
    corpus = load_corpus(Path("data"))
    assert {u.id: u.text for u in corpus.utterances} == texts
    assert not corpus.unlabelled


def test_faults_of_a_folder_of_recordings_are_named(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("talks/train").mkdir(parents=True)
    soundfile.write("talks/train/a.wav", say(["GO"], stream(7, "a")), RATE)
    Path("talks/train/b.wav").write_bytes(b"RIFF")
    Path("dict.txt").write_text("GO G OW\n")
    prepare = ["prepare", "recordings", "--source", "talks", "--data", "new"]
    labelled = [*prepare, "--lexicon", "dict.txt"]
    assert main(labelled) == 2
    assert "1 of 2 recordings cannot be used" in told(capsys)
    Path("talks/train/b.wav").unlink()
    assert main(labelled) == 2
    assert "a: no words beside it, neither a.txt nor in text" in told(capsys)
    Path("talks/train/text").write_text("a GO\nc GO\n")
    assert main(labelled) == 2
    assert "talks/train/text:2: no recording of the name c" in told(capsys)
    Path("talks/train").rename("talks/other")
    assert main(labelled) == 2
    assert "no folder named train in it" in told(capsys)
    assert main([*prepare[:3], "nowhere", *prepare[4:], "--unlabelled"]) == 2
    assert "nowhere: no such file or folder" in told(capsys)
