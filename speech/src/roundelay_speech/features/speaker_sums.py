"""Mean and standard deviation of every feature over the frames of each speaker: sums in double precision.

Legend: F features.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from roundelay_speech.features.store import Float32, SpeakerStats, StoredPart


class SpeakerSums:
    """Sums per speaker. They depend on the order of what is added in their last digits only, and on nothing else."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._sums: dict[str, tuple[int, npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}

    def add(self, speaker: str, features: Float32) -> None:
        """Add more frames (frames, F) of a speaker."""
        zero = (0, np.zeros(self._features), np.zeros(self._features))
        count, total, squares = self._sums.get(speaker, zero)
        double = features.astype(np.float64)
        self._sums[speaker] = (
            count + len(double),
            total + double.sum(0),
            squares + np.einsum("tf,tf->f", double, double),
        )

    def finish(self, parts: Sequence[StoredPart]) -> SpeakerStats:
        """Return the statistics of all speakers; columns of parts that are not normalised have mean 0 and deviation
        1."""
        names = tuple(sorted(self._sums))
        counts = np.array([self._sums[name][0] for name in names], dtype=np.int64)
        mean = np.stack([self._sums[name][1] for name in names]) / counts[:, None]
        variance = np.stack([self._sums[name][2] for name in names]) / counts[:, None] - np.square(mean)
        std = np.maximum(np.sqrt(np.maximum(variance, 0.0)), SpeakerStats.STD_FLOOR)
        first = 0
        for part in parts:
            if part.normalise == "none":
                mean[:, first : first + part.width] = 0.0
                std[:, first : first + part.width] = 1.0
            first += part.width
        return SpeakerStats(names, mean.astype(np.float32), std.astype(np.float32), counts)
