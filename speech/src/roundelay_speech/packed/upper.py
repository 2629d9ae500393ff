"""Bands that a recording lacks, such as all above 4 kHz by telephone, told by those below.

A linear map gives each upper band y at a frame of what telephones let through there and in the frames around it, all
brought to mean 0 and deviation 1 by speaker:

    y_t = W (x_(t-K), ..., x_(t+K), 1),    K = 4

fitted by ridge regression to training speech. A band is lacking where the recording's mean lies far below that of the
training speakers. What the map gives is brought to the recording's own mean and deviation afterwards, as all features.

Legend: T frames, L lower bands, H upper bands.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

LOWER = 3800.0
"""Hz: centres of the bands that tell the others lie below."""
FRAMES_FITTED = 60_000
_AROUND = 4
_RIDGE = 10.0
_LACKING = 3.0  # nats below a usual recording as loud


def fitted(speech: Iterable[tuple[Float32, Float32, Float32]], lower: int, upper: int) -> Float64:
    """Return W (H, (2 K + 1) L + 1).

    Args:
        speech: features (T, F), and mean (F,) and deviation (F,) of the speaker; as many as give `FRAMES_FITTED` frames
            are taken.
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


def widened(
    features: Float32, own: tuple[Float32, Float32], usual: tuple[Float32, Float32], weights: Float64
) -> Float32:
    """Return features (T, F) with the bands that they lack.

    Args:
        own: mean (F,) and deviation (F,) of the recording.
        usual: those of an average training speaker.
        weights: W of `fitted`.
    """
    lower = (weights.shape[1] - 1) // (2 * _AROUND + 1)
    upper = slice(lower, lower + len(weights))
    louder = float((own[0][:lower] - usual[0][:lower]).mean())
    lacking = lower + np.flatnonzero(own[0][upper] < usual[0][upper] + louder - _LACKING)
    told = _around(((features - own[0]) / own[1])[:, :lower]) @ weights[lacking - lower].T
    result = features.copy()
    result[:, lacking] = usual[0][lacking] + louder + usual[1][lacking] * told
    return result


def rows_of(weights: Float64) -> tuple[str, ...]:
    """Return W (H, D) as text, row by row."""
    return tuple(" ".join(f"{weight:.3g}" for weight in row) for row in weights)


def weights_of(rows: Sequence[str]) -> Float64:
    """Return W (H, D) of its rows as text.

    Raises:
        UserError: not rows of finite numbers, or of the same number of them.
    """
    try:
        found = np.array([[float(weight) for weight in row.split()] for row in rows])
    except ValueError:
        found = np.full(1, np.nan)
    if not np.isfinite(found).all() or (len(rows) and (found.ndim != 2 or (found.shape[1] - 1) % (2 * _AROUND + 1))):
        raise UserError("upper: not a map of bands to bands. Pack the model again.")
    return found


def _around(bands: npt.NDArray[np.floating]) -> Float64:
    """Return (T, (2 K + 1) L + 1): each frame with those around it, the first and last again and again, and a 1."""
    padded = np.pad(bands, ((_AROUND, _AROUND), (0, 0)), mode="edge")
    shifted = [padded[k : k + len(bands)] for k in range(2 * _AROUND + 1)]
    return np.concatenate([*shifted, np.ones((len(bands), 1))], axis=1).astype(np.float64)
