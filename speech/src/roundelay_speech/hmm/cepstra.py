"""Features for Gaussian mixtures: 13 cepstra of the stored filterbank, normalised per speaker, with deltas.

Diagonal Gaussians want features that are little correlated, which neighbouring filters are not; the cosine transform
sees to that (Davis and Mermelstein 1980). Features that are no filterbank (cepstra, fMLLR, bottleneck features) were
made so by somebody else: of those the first 13 are taken as they are.

Legend: T frames of all utterances, F filters, C = 13 cepstra, or as many features as there are.
"""

import itertools

import numpy as np
import numpy.typing as npt

from roundelay_speech.features.store import FeatureStore

CEPSTRA = 13
LIFTER = 22
DELTA_WINDOW = 2  # frames to either side
STD_FLOOR = 1e-5

Float32 = npt.NDArray[np.float32]


def cepstral_matrix(filters: int) -> Float32:
    """Return (F, C): orthonormal type-2 cosine transform, times 1 + L/2 sin(pi n / L) so that all cepstra weigh
    alike."""
    n = np.arange(CEPSTRA)
    basis: npt.NDArray[np.float64] = np.sqrt(2 / filters) * np.cos(
        np.pi * n * (np.arange(filters)[:, None] + 0.5) / filters
    )
    basis[:, 0] /= np.sqrt(2)
    lift: npt.NDArray[np.float64] = 1 + LIFTER / 2 * np.sin(np.pi * n / LIFTER)
    return (basis * lift).astype(np.float32)


def deltas(frames: Float32, window: int = DELTA_WINDOW) -> Float32:
    """Return slopes over 2 window + 1 frames by linear regression, (T, C) -> (T, C); edge frames are repeated."""
    padded = np.pad(frames, ((window, window), (0, 0)), mode="edge")
    total = len(frames)
    slope = np.zeros_like(frames)
    for i in range(1, window + 1):
        slope += np.float32(i) * (padded[window + i : window + i + total] - padded[window - i : window - i + total])
    slope /= np.float32(2 * sum(i * i for i in range(1, window + 1)))
    return slope


def all_cepstra(store: FeatureStore) -> Float32:
    """Return (T, 3 C): cepstra with zero mean and unit variance per speaker, their deltas, and the deltas of those.

    Frames are in the store's order; deltas do not look across utterances.
    """
    store.must_be_whole("cepstra are normalised over")
    if any(part.filterbank for part in store.parts):
        columns = store.filterbank()
        plain = store.array[:, columns] @ cepstral_matrix(columns.stop - columns.start)
    else:
        plain = store.array[:, : min(store.parts[0].width, CEPSTRA)]
    width = plain.shape[1]
    speakers = store.frame_speakers
    counts = np.maximum(np.bincount(speakers, minlength=len(store.speakers.names)), 1)

    def by_speaker(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.bincount(speakers, values, minlength=len(counts)) / counts

    result = np.empty((len(plain), 3 * width), np.float32)
    for c in range(width):
        column = plain[:, c].astype(np.float64)
        column -= by_speaker(column)[speakers]
        column /= np.sqrt(by_speaker(column * column))[speakers] + STD_FLOOR
        result[:, c] = column
    for start, end in itertools.pairwise(store.offsets):
        if end > start:
            first = deltas(result[start:end, :width])
            result[start:end, width : 2 * width] = first
            result[start:end, 2 * width :] = deltas(first)
    return result
