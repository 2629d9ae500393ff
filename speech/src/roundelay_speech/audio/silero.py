"""Chances of speech by a network that was trained on thousands of hours in many languages: Silero VAD (MIT licence),
as its package carries it, evaluated by onnxruntime.

It hears windows of 32 ms and remembers those before. Its chances are spread over frames of 10 ms.

Legend: N samples, T frames.
"""

import importlib.util
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from roundelay.core.extras import load, need
from roundelay_speech.audio.speed import Resampler

Samples = npt.NDArray[np.float32]

_WHO = "--detector silero"
_WINDOWS, _CONTEXT = {8000: 256, 16000: 512}, {8000: 32, 16000: 64}  # samples, by sampling rate
_FRAMES_PER_SECOND = 100


def _session() -> Any:
    """Load the network. Raises UserError: it is not installed."""
    need("detector", _WHO)
    runtime = load("onnxruntime", "detector", _WHO)
    spec = importlib.util.find_spec("silero_vad")  # its code would load torch's audio as well
    assert spec is not None
    assert spec.origin is not None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    file = Path(spec.origin).parent / "data" / "silero_vad.onnx"
    return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


@final
class Silero:
    """Chances of speech in a signal that comes block by block. `rate`: of the samples, Hz; other rates than 8 and 16
    kHz are brought to 16. Raises UserError: the package is not installed."""

    def __init__(self, rate: int) -> None:
        self._network = _session()
        self._resampler = None if rate in _WINDOWS else Resampler(rate, 16000)
        self._rate = rate if rate in _WINDOWS else 16000
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros((1, _CONTEXT[self._rate]), np.float32)
        self._waiting = np.zeros(0, np.float32)
        self._chances: list[float] = []  # by window, from `_first` on
        self._first = 0

    def push(self, samples: Samples) -> None:
        """Take the samples (N,) that come next."""
        samples = samples if self._resampler is None else self._resampler.push(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        size = _WINDOWS[self._rate]
        for first in range(0, len(self._waiting) - size + 1, size):
            window = np.concatenate([self._context, self._waiting[None, first : first + size]], axis=1)
            given = {"input": window, "state": self._state, "sr": np.array(self._rate, np.int64)}
            chance, self._state = self._network.run(None, given)
            self._context = window[:, -self._context.shape[1] :]
            self._chances.append(float(chance[0, 0]))
        self._waiting = self._waiting[len(self._waiting) // size * size :]

    def frames(self, first: int, end: int) -> Samples:
        """Return (T,) chances of frames `first` to `end`; those of the last window stand for what has not filled one
        yet."""
        if not self._chances:
            return np.zeros(end - first, np.float32)
        window = self._window(np.arange(first, end)) - self._first
        found: Samples = np.array(self._chances, np.float32)[np.minimum(window, len(self._chances) - 1)]
        return found

    def forget(self, before: int) -> None:
        """Drop what is known of frames before this one, but for the last window."""
        window = int(self._window(np.array([before]))[0])
        drop = min(window - self._first, len(self._chances) - 1)
        if drop > 0:
            self._chances, self._first = self._chances[drop:], self._first + drop

    def _window(self, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the windows in which frames begin."""
        return frames * self._rate // (_FRAMES_PER_SECOND * _WINDOWS[self._rate])
