"""Sound that comes through a pipe, however its bytes are cut."""

import io
from collections.abc import Iterable
from io import BytesIO

import numpy as np
import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay_speech.audio.arriving import arriving
from support.corpora import RATE, speechlike


class Trickle:
    """A pipe that gives so many bytes at a time."""

    def __init__(self, data: bytes, sizes: Iterable[int]) -> None:
        self._data, self._sizes = BytesIO(data), iter(sizes)

    def read1(self, size: int, /) -> bytes:
        return self._data.read(min(size, next(self._sizes, 1000)))


def wav(wave: object, subtype: str, kind: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, RATE, format=kind, subtype=subtype)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_samples_are_those_of_the_file(subtype: str, kind: str) -> None:
    wave = np.stack([speechlike(0.5, RATE, "left"), speechlike(0.5, RATE, "right")], 1)
    data = wav(wave, subtype, kind)
    for sizes in ([5] * 100, [len(data)], [1, 2, 3, 50, 7777]):
        sound = arriving(Trickle(data, sizes), None)
        assert (sound.rate, sound.channels) == (RATE, 2)
        np.testing.assert_array_equal(np.concatenate(list(sound.blocks))[: len(wave)], wave)


def test_a_recorder_does_not_know_the_length() -> None:
    """The length in the header of a stream is ignored."""
    wave = speechlike(0.5, RATE)
    data = bytearray(wav(wave, "PCM_16"))
    for length in (b"\xff\xff\xff\xff", b"\0\0\0\0"):
        data[40:44] = length
        sound = arriving(Trickle(bytes(data), [64]), None)
        np.testing.assert_array_equal(np.concatenate(list(sound.blocks))[:, 0], wave)


def test_bare_samples() -> None:
    wave = speechlike(0.5, RATE)
    sound = arriving(Trickle((wave * 32768).astype("<i2").tobytes(), [3, 5, 1]), 22050)
    assert (sound.rate, sound.channels) == (22050, 1)
    np.testing.assert_array_equal(np.concatenate(list(sound.blocks))[:, 0], wave)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with the header of a WAV file"),
        (b"ID3 something else", "give --rate HZ"),
        (wav(np.zeros(100), "PCM_16")[:30], "ends within the header"),
        (wav(np.zeros(100), "PCM_24"), "WAV of 24 bits"),
        (b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\x7f", "is broken"),
    ],
)
def test_what_is_no_stream(data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        arriving(Trickle(data, []), None)
