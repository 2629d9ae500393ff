"""Bands that a recording lacks are told by the others."""

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.packed.upper import fitted, rows_of, weights_of, widened

LOWER, UPPER = 4, 3
MIXED = stream(0, "mixed").normal(size=(LOWER, UPPER))
USUAL = np.full(LOWER + UPPER, 2.0, np.float32), np.full(LOWER + UPPER, 3.0, np.float32)


def speech(frames: int, louder: float = 0.0) -> np.ndarray:
    """Features (T, F) whose upper bands are sums of the lower ones."""
    lower = stream(frames, "lower").normal(size=(frames, LOWER))
    whole = np.concatenate([lower, lower @ MIXED], axis=1)
    found: np.ndarray = ((whole - whole.mean(0)) / whole.std(0) * 3 + 2 + louder).astype(np.float32)
    return found


def of(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return features.mean(0), features.std(0)


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    found = speech(4000)
    return weights_of(rows_of(fitted([(found, *of(found))], LOWER, UPPER)))


def test_bands_that_are_lacking_come_back(weights: np.ndarray) -> None:
    """As loud as the rest of the recording; the map as text has three digits."""
    whole = speech(3000, louder=1.5)
    narrow = whole.copy()
    narrow[:, LOWER:] = -20 + 0.1 * whole[:, LOWER:]
    found = widened(narrow, of(narrow), USUAL, weights)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, :LOWER], narrow[:, :LOWER])
    np.testing.assert_allclose(found[:, LOWER:], whole[:, LOWER:], atol=0.6)


def test_bands_that_are_there_stay(weights: np.ndarray) -> None:
    whole = speech(3000, louder=-4.0)
    whole[:, -1] -= 30
    found = widened(whole, of(whole), USUAL, weights)
    np.testing.assert_array_equal(found[:, :-1], whole[:, :-1])
    assert found[:, -1].mean() > -10


@pytest.mark.parametrize("rows", [("1 2 3",), ("1 nan",), ("a",), (" ".join("1" * 10), "1")])
def test_a_map_that_is_none(rows: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="upper: not a map"):
        weights_of(rows)
