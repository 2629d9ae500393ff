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
from roundelay_speech.data.arrays import Samples
from roundelay_speech.packed.given import given_models, model_folder
from roundelay_speech.packed.growing import GrowingScores
from roundelay_speech.packed.model import load_model
from roundelay_speech.transcription.live import Live

SAID = "OCTOBER NINETEEN SEVENTY"
RATE = 16_000


@pytest.fixture
def voice(tmp_path: Path) -> Samples:
    """A synthesised voice, with no sound before, behind or after it."""
    wav = tmp_path / "voice.wav"
    asked = {"file": str(wav), "text": SAID.lower(), "voice": "en-us", "rate": 150, "pitch": 50}
    command = [sys.executable, "-m", "roundelay_speech.corpus.demo.voice"]
    subprocess.run(command, input=json.dumps(asked), text=True, check=True, timeout=220, capture_output=True)
    spoken, rate = soundfile.read(wav, dtype="float32")
    resampler, quiet = Resampler(rate, RATE), np.zeros(RATE // 2)
    parts = [quiet, 0.3 * resampler.push(spoken), 0.3 * resampler.finish(), quiet]
    samples: Samples = np.concatenate(parts).astype(np.float32)
    return samples


@pytest.fixture
def talk(voice: Samples, tmp_path: Path) -> Path:
    """A synthesised voice in a room."""
    room = np.convolve(stream(0, "room").normal(0.0, 0.01, len(voice)), np.ones(8) / 8, "same")
    soundfile.write(tmp_path / "talk.wav", (voice + room).astype(np.float32), RATE)
    return tmp_path / "talk.wav"


def test_a_voice_needs_no_room(voice: Samples) -> None:
    """Valleys between the formants of a synthesised one are deeper than of any speech that was recorded: words that are
    found in it are said for all that."""
    assert {"OCTOBER", "SEVENTY"} <= set(load_model("an4").recognise(voice).words)


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


def test_digital_silence_is_a_quiet_room(talk: Path) -> None:
    """Pauses without any sound, as a gate leaves, hide no word; frames with sound stay as they are. However
    long nothing is heard before the first sound and after the last, the speaker is one."""
    model, (sound, _) = load_model("an4"), soundfile.read(talk, dtype="float32")
    (hearing,) = model.hearings
    features = hearing.with_rooms(heard := model.features(sound).of_network[0])
    assert features is heard
    gated = sound.copy()
    gated[: RATE // 2] = gated[-RATE // 2 :] = 0.0
    inner = slice(50, len(features) - 52)
    np.testing.assert_allclose(model.features(gated).of_network[0][inner], features[inner], atol=1e-4)
    assert model.recognise(gated).text == SAID
    (short,), (long,) = (
        model.statistics([model.features(np.pad(gated, seconds * RATE))]).of_network for seconds in (0, 3)
    )
    np.testing.assert_allclose(long, short, atol=1e-4)
    soon, late = (model.recognise(np.pad(gated, (seconds * RATE, 2 * RATE))) for seconds in (0, 3))
    assert [(word.word, word.start + 3) for word in soon.timed] == [(word.word, word.start) for word in late.timed]
    padded, known = np.pad(gated, (0, RATE)), model.usual
    growing = GrowingScores(model, known).push(padded)
    assert set(growing[-50:].argmax(1).tolist()) <= set(model._quiet)
    sound = slice(55, -160)  # further from either end than the network sees, and less than a gap into the silence
    np.testing.assert_allclose(
        growing[sound], model.scores(model.features(padded), known)[: len(growing)][sound], atol=1e-3
    )
    assert model.recognise(np.zeros(RATE, np.float32)).text == ""


def test_a_telephone_is_heard_alike_by_all(
    talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of 8 kHz, the same samples from Python, and live: the bands that lack are told, and the words are one."""
    monkeypatch.chdir(tmp_path)
    model, (wide, _) = load_model("an4"), soundfile.read(talk, dtype="float32")
    down, up = Resampler(RATE, RATE // 2), Resampler(RATE // 2, RATE)
    soundfile.write("narrow.wav", np.concatenate([down.push(wide), down.finish()]), RATE // 2)
    samples, _ = soundfile.read("narrow.wav", dtype="float32")
    samples = np.concatenate([up.push(samples), up.finish()])
    features = model.features(samples)
    assert model.statistics([model.features(wide)]).told == (None,)
    known = model.statistics([features])
    assert known.told != (None,)
    scores = model.scores(features, known)
    growing = GrowingScores(model, known)
    rows = np.concatenate([growing.push(block) for block in np.array_split(samples, 40)])
    assert 0 < len(scores) - len(rows) <= growing.delay / model.frame_seconds
    np.testing.assert_allclose(rows, scores[: len(rows)], atol=1e-3)

    live = Live(model)
    (final,) = [one for one in (*live.push(samples), *live.finish()) if one.final]
    first, last = (round(at * RATE) for at in (final.segment.start, final.segment.end))
    assert final.segment.text == model.recognise(samples[first:last]).text
    assert main(["transcribe", "an4", "narrow.wav"]) == 0
    assert capsys.readouterr().out == f"{model.recognise(samples).text}\n" == f"{SAID}\n"


@pytest.mark.parametrize("name", given_models())
def test_each_is_small_whole_and_says_whose_it_is(name: str) -> None:
    folder = model_folder(name)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert sum(sizes) < 1_000_000
    card = load_model(name).card
    cards = sum((folder / own).stat().st_size for own in ("card.json", "README.md", "confidences.svg"))
    assert card["size"] == sum(sizes) - cards
    assert card["licence"]
    assert card["word_errors"]["test"]["words"] > 0
    assert "Redistribution" in (folder / "LICENSE").read_text()
    assert main(["verify", str(folder)]) == 0
    assert folder == Path(str(files("roundelay_speech"))) / "packed/given" / name


def test_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert given_models() == ["an4"]
    assert main(["list", "packed", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["model"], told["words"], told["Hz"], told["MB"]) == ("an4", "101", "16000", "0.93")
    assert "test 5.56 % of 773" in told["errors"]
