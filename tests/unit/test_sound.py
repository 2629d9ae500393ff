"""Sound of every kind comes back as samples, block by block; what is none says why."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from roundelay_speech.audio import sound
from roundelay_speech.audio.reading import AudioError
from roundelay_speech.audio.sound import open_sound
from support.corpora import RATE, speechlike


def samples(path: Path) -> npt.NDArray[np.float32]:
    with open_sound(path) as opened:
        blocks = list(opened.blocks)
        assert all(block.shape[1] == opened.channels for block in blocks)
    return np.concatenate(blocks)


@pytest.fixture
def stereo() -> npt.NDArray[np.float32]:
    return np.stack([speechlike(1, RATE, "left"), speechlike(1, RATE, "right")], 1)


@pytest.mark.parametrize("extension", ["wav", "flac", "aiff"])
def test_samples_are_exact(tmp_path: Path, extension: str, stereo: npt.NDArray[np.float32]) -> None:
    path = tmp_path / f"a.{extension}"
    soundfile.write(path, stereo, RATE, subtype="PCM_16")
    with open_sound(path) as opened:
        assert (opened.rate, opened.channels, opened.samples) == (RATE, 2, RATE)
    np.testing.assert_array_equal(samples(path), stereo)


@pytest.mark.parametrize("extension", ["mp3", "ogg"])
def test_lossy_kinds(tmp_path: Path, extension: str, stereo: npt.NDArray[np.float32]) -> None:
    path = tmp_path / f"a.{extension}"
    soundfile.write(path, stereo, RATE)
    read = samples(path)
    assert read.shape[1] == 2
    assert abs(len(read) - RATE) < 4000  # encoders pad
    lag = len(read) - RATE if extension == "mp3" else 0
    assert max(np.corrcoef(read[s : s + 6000, 0], stereo[:6000, 0])[0, 1] for s in range(max(1, lag + 1))) > 0.9


@pytest.mark.parametrize(("broken", "lost"), [("cut", True), ("gap", True), ("tail", False)])
def test_part_of_an_mp3(tmp_path: Path, capfd: pytest.CaptureFixture[str], broken: str, lost: bool) -> None:
    """Its decoder prints nothing; what cannot be read is said of the sound."""
    path = tmp_path / "a.mp3"
    soundfile.write(path, speechlike(6, 16000), 16000)
    data = path.read_bytes()
    half = len(data) // 2
    whole = {"cut": data[:half], "gap": data[:half] + bytes(700) + data[half + 700 :], "tail": data + 90 * b"no sound "}
    path.write_bytes(whole[broken])
    with open_sound(path) as opened:
        count = sum(map(len, opened.blocks))
        assert opened.samples is not None
    assert capfd.readouterr().err == ""
    seconds = (opened.samples - count) / 16000
    said = [f"damaged or cut short: about {seconds:.1f} s of it cannot be read; get the file again"]
    assert (seconds > 0.1) == lost
    assert opened.remarks == said * lost


def test_blocks_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stereo: npt.NDArray[np.float32]) -> None:
    monkeypatch.setattr(sound, "READ_AT_ONCE", 1000)
    soundfile.write(tmp_path / "a.wav", stereo, RATE, subtype="PCM_16")
    with open_sound(tmp_path / "a.wav") as opened:
        assert {len(block) for block in opened.blocks} == {500}
    np.testing.assert_array_equal(samples(tmp_path / "a.wav"), stereo)


def failure(path: Path) -> str:
    with pytest.raises(AudioError) as error:
        samples(path)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value)


def test_what_can_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no ffmpeg there
    assert "no such file" in failure(tmp_path / "none.wav")
    (tmp_path / "empty.m4a").touch()
    assert "empty" in failure(tmp_path / "empty.m4a")
    (tmp_path / "text.m4a").write_text("this is no sound")
    assert "install the program ffmpeg" in failure(tmp_path / "text.m4a")
    wave = speechlike(1, RATE)
    soundfile.write(tmp_path / "whole.flac", wave, RATE)
    data = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(data[: len(data) // 2])
    assert "cut short" in failure(tmp_path / "cut.flac") or "cannot be read" in failure(tmp_path / "cut.flac")
    (tmp_path / "damaged.wav").write_bytes(b"RIFF\x00\x01\x00\x00WAVEfmt ")
    assert "cannot be read as audio" in failure(tmp_path / "damaged.wav")
    for value, message in ((np.nan, "NaN or infinity, first at sample 5"), (20_000.0, "samples up to 20000")):
        wave[5] = value
        soundfile.write(tmp_path / "odd.wav", wave, RATE, subtype="FLOAT")
        assert message in failure(tmp_path / "odd.wav")


def fake_ffmpeg(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A program of that name, in Python, and a file of a kind that only such a program reads."""
    program = folder / "ffmpeg"
    program.write_text(f"#!{sys.executable}\nimport os, sys, time\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    (folder / "a.m4a").write_bytes(b"....ftypM4A no sound")
    return folder / "a.m4a"


def test_samples_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of ffmpeg is taken as it comes; ffmpeg is told to open this file and no address."""
    header = struct.pack(">4sIIIII", b".snd", 28, 0xFFFFFFFF, 6, 22050, 2) + b"\0\0\0\0"
    data = (np.arange(200) / 200).astype(">f4")
    (tmp_path / "data").write_bytes(header + data.tobytes())
    script = f"open({str(tmp_path / 'said')!r}, 'w').write(' '.join(sys.argv))\n"
    script += f"sys.stdout.buffer.write(open({str(tmp_path / 'data')!r}, 'rb').read())"
    path = fake_ffmpeg(tmp_path, monkeypatch, script)
    with open_sound(path) as opened:
        assert (opened.rate, opened.channels, opened.samples) == (22050, 2, None)
    np.testing.assert_array_equal(samples(path), data.reshape(-1, 2))
    said = (tmp_path / "said").read_text()
    assert " -protocol_whitelist file,pipe -format_whitelist mov,mp4,m4a," in said
    assert f" -i file:{path} " in said


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("sys.stderr.write('moov atom not found\\n'); sys.exit(1)", "by ffmpeg (moov atom not found)"),
        ("print('hello, this is no header at all')", "something else than samples"),
        ("time.sleep(60)", "wrote nothing for 0.3 s"),
        (
            "os.write(1, b'.snd' + bytes([0,0,0,24, 255,255,255,255, 0,0,0,6, 0,0,31,64, 0,0,0,1])); sys.exit(3)",
            "damaged",
        ),
        ("os.write(1, b'.snd' + bytes([0,0,0,24, 255,255,255,255, 0,0,0,6, 0,0,31,64, 0,0,0,1]))", "holds no samples"),
    ],
)
def test_a_program_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    monkeypatch.setattr(sound, "_PATIENCE", 0.3 if "sleep" in script else 60.0)
    assert message in failure(fake_ffmpeg(tmp_path, monkeypatch, script))


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_m4a(tmp_path: Path) -> None:
    wave = speechlike(2, 16000)
    soundfile.write(tmp_path / "a.wav", wave, 16000, subtype="PCM_16")
    command = ["ffmpeg", "-v", "error", "-i", str(tmp_path / "a.wav"), "-b:a", "64k", str(tmp_path / "a.m4a")]
    subprocess.run(command, check=True, timeout=60)
    read = samples(tmp_path / "a.m4a")
    assert read.shape[1] == 1
    assert abs(len(read) - len(wave)) < 3000
    half = len(wave) // 2
    assert max(np.corrcoef(read[s : s + half, 0], wave[:half])[0, 1] for s in range(2500)) > 0.9
