"""The model that comes with the package: the first words after an installation."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import soundfile

from roundelay.cli import main
from roundelay.core.streams import stream
from roundelay_speech.audio.speed import Resampler
from roundelay_speech.packed.given import given_models, model_folder
from roundelay_speech.packed.model import load_model

SAID = "OCTOBER NINETEEN SEVENTY"
RATE = 16_000


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A synthesised voice in a room: without any noise behind it, it is unlike all speech that was recorded."""
    wav = tmp_path / "voice.wav"
    asked = {"file": str(wav), "text": SAID.lower(), "voice": "en-us", "rate": 150, "pitch": 50}
    command = [sys.executable, "-m", "roundelay_speech.corpus.demo.voice"]
    subprocess.run(command, input=json.dumps(asked), text=True, check=True, timeout=100, capture_output=True)
    voice, rate = soundfile.read(wav, dtype="float32")
    resampler, quiet = Resampler(rate, RATE), np.zeros(RATE // 2)
    samples = np.concatenate([quiet, 0.3 * resampler.push(voice), 0.3 * resampler.finish(), quiet])
    room = np.convolve(stream(0, "room").normal(0.0, 0.01, len(samples)), np.ones(8) / 8, "same")
    soundfile.write(tmp_path / "talk.wav", (samples + room).astype(np.float32), RATE)
    return tmp_path / "talk.wav"


def test_the_first_words(
    talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name, wherever one is; a model of one's own of that name goes before it."""
    monkeypatch.chdir(tmp_path)
    assert main(["transcribe", "an4", str(talk)]) == 0
    assert capsys.readouterr().out == f"{SAID}\n"
    (tmp_path / "an4").mkdir()
    assert model_folder("an4").is_absolute()
    (tmp_path / "an4/packed.json").write_text("{}")
    assert model_folder("an4") == Path("an4")
    assert main(["transcribe", "an4", str(talk)]) == 2
    assert main(["transcribe", "an5", str(talk)]) == 2
    assert "an5: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", given_models())
def test_each_is_small_whole_and_says_whose_it_is(name: str) -> None:
    folder = model_folder(name)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert sum(sizes) < 1_000_000
    card = load_model(name).card
    assert card["licence"]
    assert card["word_errors"]["test"]["words"] > 0
    assert "Redistribution" in (folder / "LICENSE").read_text()
    assert main(["verify", str(folder)]) == 0
    assert folder == Path(str(files("roundelay_speech"))) / "packed/given" / name


def test_there_is_one() -> None:
    assert given_models() == ["an4"]
