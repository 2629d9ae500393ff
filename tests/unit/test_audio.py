"""Samples come back exact; whatever is wrong with a file is said, with the utterance's name."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from roundelay_speech.audio.reading import AudioError, audio_length, bad_audio, read_audio
from roundelay_speech.data.problems import LeftOut
from support.corpora import RATE, recorded, speechlike, utterance


@pytest.mark.parametrize("extension", ["wav", "flac"])
def test_samples_are_exact(tmp_path: Path, extension: str) -> None:
    wave = speechlike(0.5, RATE)
    soundfile.write(tmp_path / f"a.{extension}", wave, RATE, subtype="PCM_16")
    read = read_audio(utterance("a", f"a.{extension}"), tmp_path)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, wave)
    assert audio_length(tmp_path / f"a.{extension}") == (RATE, RATE // 2)


def test_a_stretch_of_one_channel(tmp_path: Path) -> None:
    left, right = speechlike(1, RATE, "left"), speechlike(1, RATE, "right")
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], 1), RATE, subtype="PCM_16")
    cut = utterance("a", "a.wav", start=0.25, seconds=0.5, channel=1)
    np.testing.assert_array_equal(read_audio(cut, tmp_path), right[2000:6000])


def test_absolute_paths_do_not_care_for_the_folder(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    assert len(read_audio(utterance("a", str(tmp_path / "a.wav")), Path("/nowhere"))) == 4000


def failure(utterance_path: Path, **fields: object) -> str:
    with pytest.raises(AudioError) as error:
        read_audio(utterance("a-1", utterance_path.name, **fields), utterance_path.parent)
    assert str(error.value).startswith(f"a-1: {utterance_path}: ")
    return str(error.value)


def test_what_can_be_wrong_with_a_file(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    path = tmp_path / "a.wav"
    assert "no such file" in failure(tmp_path / "none.wav")
    assert "sampled at 8000 Hz, 16000 Hz when it was prepared" in failure(path, sampling_rate=16000)
    assert "has 1 channel, no channel 1" in failure(path, channel=1)
    assert "ends after 4000 samples, the utterance needs samples 0 to 8000" in failure(path, seconds=1.0)
    (tmp_path / "folder.wav").mkdir()
    assert "is a folder" in failure(tmp_path / "folder.wav")
    (tmp_path / "zero.wav").touch()
    assert "the file is empty" in failure(tmp_path / "zero.wav")
    (tmp_path / "text.wav").write_text("this is no sound")
    assert "cannot be read as audio" in failure(tmp_path / "text.wav")
    soundfile.write(tmp_path / "none.wav", np.zeros(0), RATE)
    assert "holds no samples" in failure(tmp_path / "none.wav")
    with pytest.raises(AudioError, match="holds no samples"):
        audio_length(tmp_path / "none.wav")


def test_samples_that_are_not_numbers(tmp_path: Path) -> None:
    wave = speechlike(0.5, RATE)
    wave[[100, 200]] = np.nan, np.inf
    soundfile.write(tmp_path / "a.wav", wave, RATE, subtype="FLOAT")
    assert "holds NaN or infinity, first at sample 100" in failure(tmp_path / "a.wav")
    wave[[100, 200]] = 32768.0  # of 16-bit numbers that were not scaled
    soundfile.write(tmp_path / "a.wav", wave, RATE, subtype="FLOAT")
    assert "holds samples up to 32768, where 1 is as loud as can be" in failure(tmp_path / "a.wav")


def test_wav_cut_short(tmp_path: Path) -> None:
    """libsndfile reads what is left as if that were all: its own header says otherwise."""
    recorded(tmp_path, "a")
    path = tmp_path / "a.wav"
    path.write_bytes(path.read_bytes()[:-1000])
    assert soundfile.info(path).frames == 3500
    assert "is cut short: 7000 of the 8000 bytes" in failure(path, seconds=3500 / RATE)
    with pytest.raises(AudioError, match="is cut short"):
        audio_length(path)


@pytest.mark.parametrize("length", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_wav_written_to_a_pipe_is_whole(tmp_path: Path, length: int) -> None:
    """Its writer could not go back to fill in the length."""
    recorded(tmp_path, "a")
    content = (tmp_path / "a.wav").read_bytes()
    at = content.index(b"data") + 4
    (tmp_path / "a.wav").write_bytes(content[:at] + length.to_bytes(4, "little") + content[at + 4 :])
    if soundfile.info(tmp_path / "a.wav").frames:  # libsndfile takes a length of 0 at its word
        assert len(read_audio(utterance("a", "a.wav"), tmp_path)) == 4000


def test_all_culprits_are_counted_and_twenty_shown() -> None:
    message = str(bad_audio([LeftOut(f"bad-{i:02d}", f"bad-{i:02d}: no such file") for i in range(25)], 26))
    assert message.startswith("25 of 26 utterances cannot be used")
    assert re.findall(r"bad-\d\d: ", message) == [f"bad-{i:02d}: " for i in range(20)]
    assert message.endswith("... and 5 more")
    assert "`--on-bad-audio skip`" in message
