"""Projections: neighbours, discriminants and semi-tied covariances."""

import numpy as np
import pytest

from roundelay.core.streams import stream
from roundelay_speech.adapt.sat import discriminant, projected, semi_tied, spliced
from roundelay_speech.hmm.gmm import single_gaussians


def test_edges_of_utterances_are_repeated() -> None:
    frames = np.arange(10, dtype=np.float32)[:, None]
    found = spliced(frames, np.array([0, 4, 10]), 2)
    assert found[0].tolist() == [0, 0, 0, 1, 2]
    assert found[3].tolist() == [1, 2, 3, 3, 3]
    assert found[4].tolist() == [4, 4, 4, 5, 6]
    assert found[6].tolist() == [4, 5, 6, 7, 8]
    assert (spliced(frames, np.array([0, 4, 10]), 2, np.array([3, 9])) == found[[3, 9]]).all()


def test_discriminants_whiten_classes_and_order_what_tells_them_apart() -> None:
    rng = stream(0, "classes")
    classes = rng.integers(0, 5, 20_000)
    centres = rng.standard_normal((5, 6)) * np.array([3.0, 1.0, 0.3, 0.0, 0.0, 0.0])
    mixed = rng.standard_normal((6, 6))
    frames = ((centres[classes] + rng.standard_normal((20_000, 6))) @ mixed).astype(np.float32)
    projection = discriminant(frames, classes, 3)
    found = frames @ projection[:, :-1].T + projection[:, -1]
    means = np.stack([found[classes == k].mean(0) for k in range(5)])
    within = found - means[classes]
    np.testing.assert_allclose(within.T @ within / len(within), np.eye(3), atol=0.02)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-3)
    spread = means.var(0)
    assert (np.diff(spread) < 0).all()
    # As large as the best direction in the space before it was mixed: discriminants do not care.
    _, _, axes = np.linalg.svd(centres - np.average(centres, axis=0, weights=np.bincount(classes)))
    assert spread[0] == pytest.approx(((centres - centres.mean(0)) @ axes[0]).var(), rel=0.1)


def test_frames_without_a_class_do_not_count() -> None:
    rng = stream(1, "classes")
    classes = rng.integers(0, 3, 500)
    frames = rng.standard_normal((500, 4)).astype(np.float32) + classes[:, None]
    more = np.concatenate([frames, np.full((50, 4), 1e3, np.float32)])
    both = discriminant(frames, classes, 2), discriminant(more, np.append(classes, np.full(50, -1)), 2)
    np.testing.assert_allclose(*both)


def test_a_projection_is_made_piece_by_piece() -> None:
    rng = stream(2, "pieces")
    frames = rng.standard_normal((40, 3)).astype(np.float32)
    projection = rng.standard_normal((2, 10))
    offsets = np.array([0, 15, 40])
    expected = spliced(frames, offsets, 1) @ projection[:, :-1].T + projection[:, -1]
    np.testing.assert_allclose(projected(frames, offsets, projection, 1), expected, atol=1e-5)


def test_semi_tied_covariances_find_the_axes() -> None:
    """Gaussians that are diagonal in a rotated space: the matrix turns it back, but for order, sign and scale."""
    rng = stream(3, "turned")
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    pdfs = rng.integers(0, 8, 30_000)
    means, spreads = 3 * rng.standard_normal((8, 4)), rng.uniform(0.2, 3.0, (8, 4))
    straight = means[pdfs] + spreads[pdfs] * rng.standard_normal((30_000, 4))
    frames = (straight @ turn.T).astype(np.float32)
    total = np.eye(4)
    for _ in range(15):
        now = (frames @ total.T).astype(np.float32)
        matrix, objective = semi_tied(single_gaussians(now, pdfs, 8), now, pdfs)
        assert np.diff(objective).min() > -1e-9
        total = matrix @ total
    product = np.abs(total @ turn)
    product /= product.max(1, keepdims=True)
    assert sorted(product.argmax(1)) == [0, 1, 2, 3]
    assert np.sort(product, axis=1)[:, -2].max() < 0.1
