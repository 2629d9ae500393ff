"""Bands that a recording lacks are told by the others."""

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.packed.upper import Telling, Told, fitted, lacking, rows_of, weights_of

LOWER, UPPER = 4, 3
MIXED = stream(0, "mixed").normal(size=(LOWER, UPPER))
USUAL, DEVIATION = np.full(LOWER + UPPER, 2.0, np.float32), 3.0


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


def told_of(narrow: np.ndarray, weights: np.ndarray, usual: np.ndarray = USUAL) -> Told:
    """Return the bands that a recording lacks: as loud as it is otherwise."""
    columns = lacking(weights, narrow.mean(0), usual)
    mean, std = of(narrow)
    mean[columns] = usual[columns] + (mean - usual)[:LOWER].mean()
    std[columns] = DEVIATION
    return Told(columns, weights[columns - LOWER], (mean, std))


def lacking_all(whole: np.ndarray) -> np.ndarray:
    narrow = whole.copy()
    narrow[:, LOWER:] = -20 + 0.1 * whole[:, LOWER:]
    return narrow


def test_bands_that_are_lacking_come_back(weights: np.ndarray) -> None:
    """As loud as the rest of the recording; the map as text has three digits."""
    whole = speech(3000, louder=1.5)
    narrow = lacking_all(whole)
    found = told_of(narrow, weights).heard(narrow)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, :LOWER], narrow[:, :LOWER])
    np.testing.assert_allclose(found[:, LOWER:], whole[:, LOWER:], atol=0.6)


def test_bands_that_are_there_stay(weights: np.ndarray) -> None:
    whole = speech(3000, louder=-4.0)
    assert not len(lacking(weights, whole.mean(0), USUAL))
    whole[:, LOWER] -= 4  # quieter than usual: that, of a recording that lacks nothing, is the speaker's
    assert not len(lacking(weights, whole.mean(0), USUAL))
    whole[:, -1] -= 30
    assert lacking(weights, whole.mean(0), USUAL).tolist() == [LOWER, LOWER + UPPER - 1]
    found = told_of(whole, weights).heard(whole)
    np.testing.assert_array_equal(found[:, LOWER + 1 : -1], whole[:, LOWER + 1 : -1])
    assert found[:, -1].mean() > -10


@pytest.mark.parametrize("block", [1, 3, 7, 40])
def test_frames_that_come_are_told_as_those_that_are_there(weights: np.ndarray, block: int) -> None:
    """All but the last few, which wait for those after them; cuts do not matter."""
    narrow = lacking_all(speech(100))
    told = told_of(narrow, weights)
    telling = Telling(told)
    found = np.concatenate([telling.push(narrow[at : at + block]) for at in range(0, 100, block)])
    np.testing.assert_allclose(found, told.heard(narrow)[: 100 - telling.delay], rtol=1e-5)


@pytest.mark.parametrize("rows", [("1 2 3",), ("1 nan",), ("a",), (" ".join("1" * 10), "1")])
def test_a_map_that_is_none(rows: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="upper: not a map"):
        weights_of(rows)
