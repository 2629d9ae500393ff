"""A packed model trained on with somebody's speech: their voice, their words."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay.core.streams import stream
from roundelay_speech.audio.speed import resampled
from roundelay_speech.lexicon.g2p import save_g2p, train_g2p
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.packed.folder import read_packed, write_packed
from roundelay_speech.packed.model import load_model
from support import beeps

PITCH = 1.3
"""The voice of these tests: all chords so much higher."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own; the words said there are beeps and TESS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(beeps.WORDS, "TESS", ["T", "EH", "S"])


def record(
    folder: Path, sentences: Sequence[Sequence[str]], seed: int, rate: int = beeps.RATE, pitch: float = PITCH
) -> Path:
    """Recordings of a voice, with their words beside them."""
    folder.mkdir()
    rng = stream(seed, "voice")
    for number, words in enumerate(sentences):
        spoken = beeps.say(list(words), rng).astype(np.float32)
        samples = resampled(spoken, beeps.RATE, beeps.RATE, pitch)
        soundfile.write(folder / f"{number:03d}.wav", resampled(samples, beeps.RATE, rate, 1.0), rate)
        (folder / f"{number:03d}.txt").write_text(" ".join(words) + "\n")
    return folder


def sentences(count: int, seed: int) -> list[list[str]]:
    rng = stream(seed, "sentences")
    words = [word for word in beeps.WORDS if word != "TESS"]
    return [[str(word) for word in rng.choice(words, 3)] for _ in range(count)]


def errors(model: Path, data: Path) -> int:
    """Word errors of a model on recordings."""
    assert main(["evaluate", str(model), "--data", str(data), "--workers", "1", "--no-times", "--out", "found"]) == 0
    found = int(read_json(Path("found", data.name, "evaluation.json"))["errors"])
    shutil.rmtree("found")
    return found


def told(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


def test_a_voice_is_understood_better_after_that(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, others = record(Path("mine"), sentences(24, 0), 0), record(Path("others"), sentences(12, 1), 1)
    before = errors(packed, others)
    assert before > 3
    content = {path: path.read_bytes() for path in packed.rglob("*") if path.is_file()}
    finetune = ["finetune", str(packed), "--data", str(mine), "--learning-rate", "0.001", "--hold", "0.1"]
    assert main([*finetune, "--out", "model"]) == 0
    assert "24 utterances" in told(capsys)
    assert errors(Path("model"), others) < before / 2
    assert {path: path.read_bytes() for path in packed.rglob("*") if path.is_file()} == content
    assert main(["verify", "model"]) == 0
    card = load_model(Path("model")).card
    assert card["word_errors"] == {}
    assert [one["utterances"] for one in card["finetuned"]] == [24]
    assert main([*finetune, "--out", "again"]) == 0
    network = "acoustic-1/model.safetensors"
    assert Path("again", network).read_bytes() == Path("model", network).read_bytes(), "the same seed, the same model"
    assert main(["finetune", "model", "--data", str(mine), "--out", "more", "--epochs", "1"]) == 0
    assert len(load_model(Path("more")).card["finetuned"]) == 2


def test_new_words_of_the_transcripts_are_recognised(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [*sentences(12, 2), *([["TESS"]] * 4), *([["GO", "TESS", "STAY"]] * 8)]
    mine = record(Path("mine"), said, 2)
    finetune = ["finetune", str(packed), "--data", "mine", "--out", "model"]
    assert main(finetune) == 2
    assert "1 word of the transcripts without pronunciation, and none can be guessed" in told(capsys)
    assert not Path("model").exists()
    Path("words.txt").write_text("TESS T EH S\n")
    assert main([*finetune, "--words", "words.txt", "--learning-rate", "0.001", "--layers", "all"]) == 0
    assert "a model of 5 words" in told(capsys)
    assert errors(Path("model"), record(Path("others"), [["TESS"], ["STAY", "TESS"]], 3)) < 2
    Path("words.txt").write_text("TESS Q\n")
    assert main([*finetune[:-1], "other", "--words", "words.txt"]) == 2
    assert "words.txt:1: TESS has phones that the model does not know: Q" in told(capsys)
    assert mine.is_dir()


def test_pronunciations_that_are_guessed_are_shown(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(packed, "spells")
    sounds, rng = {"G": "G", "N": "N", "S": "S", "T": "T", "E": "EH", "O": "OW"}, stream(0, "spelling")
    halves = [f"{first}{second}" for first in "GNST" for second in "EO"]
    words = {"".join(rng.permutation([*halves * 2])[:4]) for _ in range(700)} - {"TES"}
    dictionary = Lexicon({word: (tuple(sounds[letter] for letter in word),) for word in sorted(words)})
    save_g2p(Path("spells/g2p.json.gz"), train_g2p(dictionary))
    write_packed(Path("spells"), read_packed(packed))
    mine = record(Path("mine"), [*sentences(12, 2), ["TESS"]], 2)
    (mine / "012.txt").write_text("TES\n")
    assert main(["finetune", "spells", "--data", "mine", "--out", "model", "--epochs", "1"]) == 0
    assert "1 word of the transcripts added to those that are recognised: TES (T EH S, guessed)" in told(capsys)
    assert load_model(Path("model")).lexicon.pronunciations["TES"] == (("T", "EH", "S"),)


def test_words_in_another_case_with_punctuation(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are written as the model's, and that is said."""
    mine = record(Path("mine"), sentences(14, 4), 4, pitch=1.0)
    for path in mine.glob("*.txt"):
        path.write_text(path.read_text().strip().capitalize() + ".\n")
    assert main(["finetune", str(packed), "--data", "mine", "--out", "model", "--epochs", "1"]) == 0
    assert "transcripts were written in the model's words: 14 x punctuation removed" in told(capsys)
    assert load_model(Path("model")).lexicon.words == load_model(packed).lexicon.words


def test_speech_without_transcripts(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words that the model is sure of are its transcripts; sure of none, it learns nothing."""
    mine = record(Path("mine"), sentences(16, 5), 5, pitch=1.2)
    for path in mine.glob("*.txt"):
        path.unlink()
    finetune = ["finetune", str(packed), "--data", "mine", "--out", "model"]
    assert main(finetune) == 2
    assert "The speech has no transcripts. Write down what is said" in told(capsys)
    assert main([*finetune, "--confidence", "0.2"]) == 0
    assert "no transcripts: the model's own words in" in told(capsys)
    for path in mine.glob("*.wav"):
        soundfile.write(path, 0.01 * stream(5, path.stem).standard_normal(beeps.RATE // 20), beeps.RATE)
    assert main([*finetune[:-1], "sure", "--confidence", "1"]) == 2
    assert "Write down what is said, or give a lower --confidence" in told(capsys)
    (mine / "000.txt").write_text("GO\n")
    assert main([*finetune[:-1], "some"]) == 2
    assert "15 of 16 utterances have no words" in told(capsys)


def test_faults_are_named_before_anything_is_written(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(Path("few"), sentences(3, 6), 6)
    record(Path("low"), sentences(14, 7), 7, 8000, 1.0)
    wrong = record(Path("wrong"), sentences(14, 8), 8, pitch=1.0)
    texts = [path.read_text() for path in sorted(wrong.glob("*.txt"))]
    for path, text in zip(sorted(wrong.glob("*.txt")), [*texts[1:], texts[0]], strict=True):
        path.write_text(text)
    finetune = ["finetune", str(packed), "--out", "model", "--epochs", "1"]
    for arguments, message in (
        ([*finetune, "--data", "few"], "s of speech are too little to train on: 10 s are the least"),
        ([*finetune, "--data", "wrong"], "Do transcripts and audio belong together?"),
        ([*finetune, "--data", "nowhere"], "nowhere: no such file or folder"),
        ([*finetune[:3], str(packed), "--data", "few"], "exists: give --out another folder"),
        (["finetune", "few", "--data", "few", "--out", "model"], "not a packed model"),
        ([*finetune, "--data", "few", "--learning-rate", "2"], "--learning-rate 2: give a number between 0 and 1"),
        ([*finetune, "--data", "few", "--hold", "1"], "--hold 1: give a share from 0 up to, not including, 1"),
    ):
        assert main(arguments) == 2
        assert message in told(capsys)
    assert {path.name for path in Path().iterdir()} == {"few", "low", "wrong"}
    assert main([*finetune, "--data", "low"]) == 0
    assert "14 utterances at 8,000 Hz brought up to 16,000 Hz: nothing is in them above 4,000 Hz" in told(capsys)


def test_what_a_killed_command_left_is_removed(packed: Path) -> None:
    left, busy = Path(".model.999999999.part"), Path(f".model.{os.getppid()}.part")
    for folder in (left, busy):
        folder.mkdir()
        (folder / "half").write_text("")
    record(Path("mine"), sentences(14, 9), 9, pitch=1.0)
    assert main(["finetune", str(packed), "--data", "mine", "--out", "model", "--epochs", "1"]) == 0
    assert not left.exists()
    assert busy.exists(), "that of a process that lives"
