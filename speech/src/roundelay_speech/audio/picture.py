"""Sound for a page: a file that browsers play, and a spectrogram as a picture."""

import io
import struct
import zlib

import numpy as np
import numpy.typing as npt

from roundelay_speech.audio.reading import Samples
from roundelay_speech.bindings import soundfile

_WINDOW_S, _SHIFT_S = 0.025, 0.005
_RANGE_DB = 55.0  # below the loudest point is white
_PNG_GREY = 0


def flac(samples: Samples, rate: int) -> bytes:
    """Return samples, (N,) between -1 and 1, as a FLAC file of 16 bits."""
    file = io.BytesIO()
    soundfile.write(file, np.clip(samples, -1, 1), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def spectrogram_png(samples: Samples, rate: int, height: int = 160, most_columns: int = 1200) -> bytes:
    """Return the spectrogram as a PNG: time to the right over its whole width, frequency upwards from 0 to half the
    rate, darker for louder, white 55 dB below the loudest point."""
    window, shift = round(_WINDOW_S * rate), max(1, round(_SHIFT_S * rate))
    shift = max(shift, len(samples) // most_columns)
    padded = np.pad(samples.astype(np.float64), (0, max(0, window - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::shift] * np.hanning(window)
    power = np.square(np.abs(np.fft.rfft(frames, n=max(2 * height, 1 << (window - 1).bit_length()), axis=1)))
    edges = np.linspace(0, power.shape[1], height + 1).astype(int)[:-1]
    bands = np.add.reduceat(power, edges, axis=1)  # (columns, height)
    level = 10 * np.log10(np.maximum(bands, 1e-12))
    dark = np.clip((level - level.max() + _RANGE_DB) / _RANGE_DB, 0, 1)
    return _png(np.round(255 * (1 - dark)).astype(np.uint8).T[::-1])


def _png(grey: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture of grey levels, (H, W), by the PNG specification (W3C, third edition)."""
    height, width = grey.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), grey], axis=1).tobytes()  # filter 0 before each line
    head = struct.pack(">IIBBBBB", width, height, 8, _PNG_GREY, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
