"""SPHERE headers, and compressed files through a converter on PATH."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.audio.reading import AudioError, audio_length, read_audio, read_header, readable
from roundelay_speech.data.manifest import Utterance
from support.named_corpora import sphere

SAMPLES = 0.3 * stream(0, "sphere").uniform(-1, 1, (2, 800))
SHORTEN = "ulaw,embedded-shorten-v2.00"


def test_both_sides_can_be_read(tmp_path: Path) -> None:
    path = sphere(tmp_path / "sw02001.sph", list(SAMPLES))
    header = read_header(path)
    assert (header.channels, header.sampling_rate, header.samples, header.coding) == (2, 8000, 800, "ulaw")
    assert not header.compressed
    assert readable([path], tmp_path / "wav", Silent()) == ({path: path}, [])
    for channel in range(2):
        utterance = Utterance("u", "r", str(path), 0.01, 0.05, channel, 8000, 400, "s", "YES")
        heard = read_audio(utterance, tmp_path)
        # Mu-law keeps about six bits: the error is a small share of the sample.
        np.testing.assert_allclose(heard, SAMPLES[channel, 80:480], atol=0.01)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: b"RIFF" + data[4:], "not a SPHERE file"),
        (lambda data: b"", "not a SPHERE file"),
        (lambda data: data.replace(b"   1024\n", b"   many\n"), "at byte 8 .*not the length"),
        (lambda data: data.replace(b"   1024\n", b"9999999\n"), "at byte 8 .*not the length"),
        (lambda data: data[:500], "cut short in its header, after 500 of 1024 bytes"),
        (lambda data: data.replace(b"end_head", b"        "), "no `end_head`"),
        (lambda data: data.replace(b"rate -i 8000", b"rate -i 8k00"), "at byte 60, sample_rate is '8k00'"),
        (lambda data: data.replace(b"sample_rate -i 8000", b"sample_rate -i 0000"), "not a whole number above 0"),
        (lambda data: data.replace(b"sample_rate -i 8000", b"sampling_it -i 8000"), "has no sample_rate"),
        (lambda data: data.replace(b"count -i 2", b"count   =2"), "at byte 41 .*not `NAME -TYPE VALUE`"),
        *((lambda data, n=n: data[: 1024 + n], f"cut short: {n} of the 1600 bytes") for n in (0, 160, 800, 1599)),
    ],
)
def test_faults(tmp_path: Path, change: object, named: str) -> None:
    path = sphere(tmp_path / "a.sph", list(SAMPLES))
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(AudioError, match=named) as error:
        read_header(path)
    assert str(path) in str(error.value)
    assert readable([path], tmp_path / "wav", Silent()) == ({}, [str(error.value)])
    with pytest.raises(AudioError, match=str(path)):
        audio_length(path)


CONVERTER = f"""#!{sys.executable}
import sys
import numpy, soundfile
source, target = sys.argv[-2:]
assert sys.argv[1:4] == ["-f", "wav", "-p"], sys.argv
if "bad" in source:
    sys.exit("this is no audio")
samples = 400 if "short" in source else 800
soundfile.write(target, numpy.full((samples, 2), 0.25), 8000, format="WAV", subtype="PCM_16")
"""


@pytest.fixture
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that plays sph2pipe."""
    program = tmp_path / "bin" / "sph2pipe"
    program.parent.mkdir()
    program.write_text(CONVERTER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("converter")
def test_compressed_files_are_converted_once(tmp_path: Path) -> None:
    paths = [sphere(tmp_path / f"{name}.sph", list(SAMPLES), SHORTEN) for name in ("good", "bad", "short")]
    found, bad = readable(paths, tmp_path / "wav", Silent())
    assert found == {paths[0]: tmp_path / "wav" / "good.wav"}
    assert audio_length(tmp_path / "wav" / "good.wav") == (8000, 800)
    assert "bad.sph: sph2pipe gives up (this is no audio)" in bad[0]
    assert "short.sph: sph2pipe does not find the 800 samples" in bad[1]
    assert [path.name for path in (tmp_path / "wav").iterdir()] == ["good.wav"]
    before = (tmp_path / "wav" / "good.wav").stat().st_mtime_ns
    readable(paths[:1], tmp_path / "wav", Silent())
    assert (tmp_path / "wav" / "good.wav").stat().st_mtime_ns == before


def test_without_a_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = sphere(tmp_path / "a.sph", list(SAMPLES), SHORTEN)
    with pytest.raises(UserError, match=r"embedded-shorten.*sph2pipe.*on PATH") as error:
        readable([path], tmp_path / "wav", Silent())
    assert str(path) in str(error.value)
    with pytest.raises(AudioError, match="unpack it first"):
        audio_length(path)


def test_what_soundfile_writes_is_read(tmp_path: Path) -> None:
    """Another writer's header: other fields, in another order."""
    soundfile.write(tmp_path / "a.sph", SAMPLES.T, 16000, format="NIST", subtype="PCM_16")
    header = read_header(tmp_path / "a.sph")
    assert (header.channels, header.sampling_rate, header.samples, header.sample_bytes) == (2, 16000, 800, 2)
    assert audio_length(tmp_path / "a.sph") == (16000, 800)
