"""Sound and spectrograms for pages: read back, they are what was given."""

import io
import struct
import zlib

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from roundelay_speech.audio.sound import flac, spectrogram_png

RATE = 16_000


def pixels(png: bytes) -> npt.NDArray[np.uint8]:
    """The grey levels of a PNG, chunk by chunk, with every checksum held."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, body = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        assert struct.unpack(">I", png[place + 8 + length : place + 12 + length]) == (zlib.crc32(kind + body),)
        chunks[kind], place = body, place + 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0, 0])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:]


@pytest.mark.parametrize("hertz", [500, 3000, 7500])
def test_a_tone_is_a_dark_line_at_its_frequency(hertz: int) -> None:
    tone = (0.5 * np.sin(2 * np.pi * hertz * np.arange(RATE) / RATE)).astype(np.float32)
    grey = pixels(spectrogram_png(tone, RATE, height=160))
    assert grey.shape[0] == 160
    rows = grey.mean(axis=1).argmin()
    assert (160 - rows - 0.5) / 160 * RATE / 2 == pytest.approx(hertz, abs=100)


def test_time_goes_to_the_right_and_columns_are_bounded() -> None:
    sound = np.zeros(RATE * 20, np.float32)
    sound[RATE * 15 : RATE * 16] = np.random.default_rng(0).uniform(-0.5, 0.5, RATE)
    grey = pixels(spectrogram_png(sound, RATE, most_columns=400))
    assert 350 <= grey.shape[1] <= 450
    assert grey.mean(axis=0).argmin() / grey.shape[1] == pytest.approx(0.775, abs=0.03)


@pytest.mark.parametrize("samples", [1, 10, 400, 401])
def test_the_shortest_sounds_have_a_picture_too(samples: int) -> None:
    assert pixels(spectrogram_png(np.full(samples, 0.1, np.float32), RATE)).size > 0


def test_sound_is_read_back_as_it_was() -> None:
    samples = (np.round(np.sin(np.arange(1000) / 9) * 30000) / 32768).astype(np.float32)
    read, rate = soundfile.read(io.BytesIO(flac(samples, 8000)), dtype="float32")
    assert rate == 8000
    assert np.array_equal(read, samples)
