"""Gaussian mixtures against their formulas, and EM against its law: likelihood never falls."""

import math
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.hmm.gmm import Mixtures, load_mixtures, reestimate, save_mixtures, single_gaussians, split

PDFS, DIMENSIONS = 5, 3


def material(
    frames: int = 600,
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Frames of five pdfs, each of two clusters; every seventh frame belongs to none."""
    rng = stream(0, "frames")
    pdfs = rng.integers(0, PDFS, frames).astype(np.int32)
    centres = rng.normal(size=(PDFS, 2, DIMENSIONS)) * 4
    x = centres[pdfs, rng.integers(0, 2, frames)] + rng.normal(size=(frames, DIMENSIONS))
    pdfs[::7] = -1
    return x.astype(np.float32), pdfs


def grown() -> Mixtures:
    x, pdfs = material()
    counts = np.bincount(pdfs[pdfs >= 0], minlength=PDFS)
    return reestimate(split(single_gaussians(x, pdfs, PDFS), counts, 12, stream(0, "split")), x, pdfs)


def mean_loglike(mixtures: Mixtures) -> float:
    x, pdfs = material()
    used = pdfs >= 0
    return float(mixtures.loglikes(x[used])[np.arange(used.sum()), pdfs[used]].mean())


def test_loglikes_are_the_formula() -> None:
    mixtures, (x, _) = grown(), material()
    found = mixtures.loglikes(x[:40])
    assert mixtures.components > PDFS
    for t in range(40):
        for s in range(PDFS):
            total = 0.0
            for k in range(mixtures.first[s], mixtures.first[s + 1]):
                m, v = mixtures.means[k], mixtures.variances[k]
                density = np.exp(-0.5 * (x[t] - m) ** 2 / v) / np.sqrt(2 * math.pi * v)
                total += mixtures.weights[k] * float(density.prod())
            assert found[t, s] == pytest.approx(math.log(total), abs=1e-3)


def test_some_pdfs_are_some_columns() -> None:
    mixtures, (x, _) = grown(), material()
    some = np.array([3, 0, 4])
    np.testing.assert_allclose(mixtures.loglikes(x, some), mixtures.loglikes(x)[:, some], rtol=1e-5, atol=1e-5)


def test_single_gaussian_is_mean_and_variance() -> None:
    x, pdfs = material()
    mixtures = single_gaussians(x, pdfs, PDFS + 1)
    np.testing.assert_allclose(mixtures.means[2], x[pdfs == 2].mean(0), rtol=1e-5)
    np.testing.assert_allclose(mixtures.variances[2], x[pdfs == 2].var(0), rtol=1e-5)
    np.testing.assert_allclose(mixtures.means[PDFS], x[pdfs >= 0].mean(0), rtol=1e-5)  # a pdf without frames


def test_em_never_loses_likelihood_and_finds_the_clusters() -> None:
    x, pdfs = material()
    mixtures = single_gaussians(x, pdfs, PDFS)
    one = mean_loglike(mixtures)
    counts = np.bincount(pdfs[pdfs >= 0], minlength=PDFS)
    mixtures = split(mixtures, counts, 2 * PDFS, stream(1, "split"))
    before = mean_loglike(mixtures)
    for _ in range(12):
        mixtures = reestimate(mixtures, x, pdfs, rounds=1)
        after = mean_loglike(mixtures)
        assert after >= before - 1e-5
        before = after
    assert mixtures.components == 2 * PDFS
    assert before > one + 1.0
    np.testing.assert_allclose(np.add.reduceat(mixtures.weights, mixtures.first[:-1]), 1.0)
    assert (mixtures.variances >= mixtures.floor).all()


def test_a_pdf_with_few_frames_is_left_alone() -> None:
    x, pdfs = material()
    mixtures = single_gaussians(x, pdfs, PDFS)
    pdfs = np.where(pdfs == 1, -1, pdfs)
    assert np.array_equal(reestimate(mixtures, x, pdfs).means[1], mixtures.means[1])


def test_file_round_trip(tmp_path: Path) -> None:
    mixtures, (x, _) = grown(), material()
    save_mixtures(tmp_path / "gmm.npz", mixtures)
    assert np.array_equal(load_mixtures(tmp_path / "gmm.npz").loglikes(x), mixtures.loglikes(x))
    (tmp_path / "gmm.npz").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(UserError, match=r"gmm\.npz: broken mixtures"):
        load_mixtures(tmp_path / "gmm.npz")
    with pytest.raises(UserError, match=r"none\.npz: no such file"):
        load_mixtures(tmp_path / "none.npz")
