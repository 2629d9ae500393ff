"""Bands that a recording lacks, such as all above 4 kHz by telephone, predicted from those below.

A linear map gives each upper band y at a frame of the bands that telephones let through there and in the frames around
it, all brought to mean 0 and deviation 1 by speaker:

    y_t = W (x_(t-K), ..., x_(t+K), 1),    K = 4

fitted by ridge regression to training speech. That a recording lacks bands is seen in its features, not in its file:
one as loud as usual has a band far below its usual level. The map's results are brought to the recording's own mean and
deviation afterwards, as all features.

Legend: T frames, F features, L lower bands, H upper bands, H' of them lacking.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Float32, Float64

Integers = npt.NDArray[np.intp]

LOWER = 3800.0
"""Frequency in Hz below which are the centres of the bands that predict the others."""
FRAMES_FITTED = 60_000
_AROUND = 4
_RIDGE = 10.0
# Nats below a usual recording as loud. No band of 1,112 recordings of speech at 16 kHz was further down than 3.9; at 8
# kHz the lowest was 15 or more.
_NARROW = 8.0  # the lowest band of a recording that lacks some
_LACKING = 3.0  # these, then


def fitted(speech: Iterable[tuple[Float32, Float32, Float32]], lower: int, upper: int) -> Float64:
    """Fit the map W (H, (2 K + 1) L + 1) from lower to upper bands.

    Args:
        speech: features (T, F), and mean (F,) and deviation (F,) of the speaker; read until there are `FRAMES_FITTED`
            frames.
        lower, upper: first columns of the features that are lower bands, and upper ones after them.
    """
    width = (2 * _AROUND + 1) * lower + 1
    square: Float64 = _RIDGE * np.eye(width, dtype=np.float64)
    cross: Float64 = np.zeros((width, upper))
    frames = 0
    for features, mean, std in speech:
        scaled = ((features - mean) / std)[:, : lower + upper]
        around = _around(scaled[:, :lower])
        square += around.T @ around
        cross += around.T @ scaled[:, lower:].astype(np.float64)
        if (frames := frames + len(features)) >= FRAMES_FITTED:
            break
    return np.asarray(np.linalg.solve(square, cross).T, np.float64)


def lacking(weights: Float64, mean: Float32, usual: Float32) -> Integers:
    """Return the columns that a recording lacks (H',).

    Args:
        weights: W from `fitted`.
        mean: (F,) mean over the frames of the recording, however few.
        usual: (F,) mean of an average training speaker.
    """
    lower = lower_bands(weights)
    below = mean[:lower].mean() - usual[:lower].mean() + usual - mean
    narrow = below[lower : lower + len(weights)]
    return lower + np.flatnonzero((narrow > _LACKING) & (narrow.max() > _NARROW))


@final
@dataclass(frozen=True, eq=False)
class Told:
    """The prediction of bands that a recording lacks, from the others."""

    columns: Integers  # (H',) of the features, that it lacks
    weights: Float64  # (H', (2 K + 1) L + 1), their rows of W
    # mean (F,) and deviation (F,) of the recording; of the bands that it lacks, those to expect.
    own: tuple[Float32, Float32]

    @property
    def reach(self) -> int:
        """Frames on each side that a frame depends on."""
        return _AROUND

    def heard(self, features: Float32) -> Float32:
        """Return features (T, F) with missing bands filled in."""
        if not len(features):
            return features
        result, (mean, std) = features.copy(), self.own
        around = _around(((features - mean) / std)[:, : lower_bands(self.weights)])
        result[:, self.columns] = mean[self.columns] + std[self.columns] * (around @ self.weights.T)
        return result


class Step(Protocol):
    """A step from features to those that a network hears."""

    @property
    def reach(self) -> int:
        """Frames on each side that a frame depends on."""

    def heard(self, features: Float32) -> Float32:
        """Return what is made of an utterance's features (T, F)."""


@final
class Telling:
    """A step for features that come piece by piece.

    Attributes:
        delay: number of frames that must follow a frame before it is complete.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._done, self.delay = step, 0, step.reach
        self._held: Float32 | None = None  # frames that are not complete yet, after those around them that are

    def push(self, features: Float32) -> Float32:
        """Take the next frames (T, F); return the frames that are complete now."""
        held = features if self._held is None else np.concatenate([self._held, features])
        known = max(self._done, len(held) - self.delay)
        found = self._step.heard(held)[self._done : known]
        gone = max(0, known - self.delay)
        self._held, self._done = held[gone:], known - gone
        return found


def lower_bands(weights: Float64) -> int:
    """Return L, the number of lower bands."""
    return int((weights.shape[1] - 1) // (2 * _AROUND + 1))


def rows_of(weights: Float64) -> tuple[str, ...]:
    """Return the map W (H, D) as text, row by row."""
    return tuple(" ".join(f"{weight:.3g}" for weight in row) for row in weights)


def weights_of(rows: Sequence[str]) -> Float64:
    """Return the map W (H, D) in rows of text from `rows_of`.

    Raises:
        UserError: the rows are not of finite numbers, or differ in length.
    """
    try:
        found = np.array([[float(weight) for weight in row.split()] for row in rows])
    except ValueError:
        found = np.full(1, np.nan)
    if not np.isfinite(found).all() or (len(rows) and (found.ndim != 2 or (found.shape[1] - 1) % (2 * _AROUND + 1))):
        raise UserError("upper: not a map of bands to bands. Pack the model again.")
    return found


def _around(bands: npt.NDArray[np.floating]) -> Float64:
    """Return frames (T, (2 K + 1) L + 1): each with those around it (the first and last are repeated), and a 1."""
    padded = np.pad(bands, ((_AROUND, _AROUND), (0, 0)), mode="edge")
    shifted = [padded[k : k + len(bands)] for k in range(2 * _AROUND + 1)]
    return np.concatenate([*shifted, np.ones((len(bands), 1))], axis=1).astype(np.float64)
