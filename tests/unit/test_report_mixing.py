"""Matrices of exchanges: sums, and the gap that the counts imply, against closed forms."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from roundelay.core.records import Exchanges
from roundelay.reports.panels import Gap, counted, effective_gap, exchange_map, gap_note, groups
from roundelay.reports.runs import load_run
from support.fake_runs import Fake, write_run


def everybody(learners: int, count: int = 3) -> list[list[int]]:
    return [[count * (i != j) for j in range(learners)] for i in range(learners)]


def ring(learners: int, count: int = 2) -> list[list[int]]:
    """Each learner asks its left and right neighbour alike."""
    matrix = np.zeros((learners, learners), int)
    for i in range(learners):
        for j in ((i - 1) % learners, (i + 1) % learners):
            matrix[i, j] += count
    return [[int(count) for count in row] for row in matrix]


@pytest.mark.parametrize("learners", [2, 3, 4, 7, 16])
def test_pairs_drawn_evenly_have_the_gap_of_gossip(learners: int) -> None:
    """W = I - (L I - J) / (L (L - 1)): one exchange in a clique takes 1 / (L - 1) off, so that two learners agree."""
    gap = effective_gap(everybody(learners))
    assert gap is not None
    assert gap.exchange == pytest.approx(1 / (learners - 1))
    assert gap.round == pytest.approx(1 - (1 - 1 / (learners - 1)) ** learners)
    assert gap.learners == learners


@pytest.mark.parametrize("learners", [3, 4, 5, 8, 33])
def test_a_fixed_ring_has_the_gap_of_its_circulant(learners: int) -> None:
    """L pairs of equal weight: 1 - lambda_2 = (1 - cos(2 pi / L)) / L."""
    gap = effective_gap(ring(learners))
    assert gap is not None
    assert gap.exchange == pytest.approx((1 - math.cos(2 * math.pi / learners)) / learners)


def test_who_began_does_not_matter() -> None:
    assert effective_gap([[0, 6], [0, 0]]) == effective_gap([[0, 3], [3, 0]]) == Gap(1.0, 1.0, 2)


def test_learners_that_never_met_have_no_gap() -> None:
    apart = effective_gap([[0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 5], [0, 0, 5, 0]])
    assert apart == Gap(0.0, 0.0, 4)
    assert "some learners never heard of some others" in gap_note([[0, 5, 0, 0], [0] * 4, [0, 0, 0, 1], [0] * 4])


def test_learners_that_took_no_part_are_left_out() -> None:
    """Of super-learners only some exchange."""
    assert effective_gap([[0, 0, 4], [0, 0, 0], [4, 0, 0]]) == Gap(1.0, 1.0, 2)


@pytest.mark.parametrize("matrix", [[], [[0]], [[0, 0], [0, 0]], [[3, 0], [0, 4]]])
def test_without_exchanges_there_is_no_gap(matrix: list[list[int]]) -> None:
    assert effective_gap(matrix) is None


@given(
    st.integers(2, 7).flatmap(lambda n: arrays(np.int64, (n, n), elements=st.integers(0, 50))),
    st.integers(0, 2**32 - 1),
)
def test_the_gap_is_the_least_an_exchange_removes_in_the_mean(counts: np.ndarray, seed: int) -> None:
    """Over all pairs in proportion to their counts, for any rows x of mean 0: E|P x|^2 <= (1 - gap) |x|^2."""
    learners = len(counts)
    np.fill_diagonal(counts, 0)
    gap = effective_gap(counts.tolist())
    if gap is None or gap.learners < learners:
        return
    x = np.random.default_rng(seed).normal(size=learners)
    x -= x.mean()
    pairs = [(i, j) for i in range(learners) for j in range(learners) if i != j]

    def averaged(i: int, j: int) -> np.ndarray:
        met = x.copy()
        met[[i, j]] = (x[i] + x[j]) / 2
        return met

    after = sum(counts[i, j] * np.square(averaged(i, j)).sum() for i, j in pairs) / counts.sum()
    assert after <= (1 - gap.exchange) * np.square(x).sum() * (1 + 1e-9) + 1e-12


def test_exchanges_with_a_centre_are_counted_and_drawn_without_a_gap(tmp_path: Path) -> None:
    """Two learners, three columns: the last is the centre."""
    run = load_run(write_run(tmp_path, Fake(learners=2, epochs=2)))
    first, second = [[0, 0, 7], [0, 0, 5]], [[0, 1, 2], [0, 0, 3]]
    epochs = [dataclasses.replace(e, matrix=m) for e, m in zip(run.exchanges, (first, second), strict=True)]
    matrix = counted([dataclasses.replace(run, exchanges=tuple(epochs))])
    assert matrix == [[0, 1, 9], [0, 0, 8]]
    assert effective_gap(matrix) is None
    assert gap_note(matrix) == "18 exchanges. With the centre they are not averages, so there is no spectral gap."
    drawn = exchange_map(matrix, 0, "label")
    assert ">centre</text>" in drawn
    assert "1 began 8 exchanges with centre" in drawn


def test_many_learners_and_their_centre_are_drawn_in_groups() -> None:
    matrix = [[0] * 100 + [2] for _ in range(100)]
    assert groups(100, 32)[:2] == [(0, 4), (4, 8)]
    drawn = exchange_map(matrix, 0, "label")
    assert "96-99 began 8 exchanges with centre" in drawn


def test_several_runs_add_up_and_damaged_rows_do_no_harm(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, Fake(learners=2, epochs=1)))
    record = Exchanges(wall_s=0.0, epoch=0, matrix=[[0, 2], [1, 0]])
    whole = dataclasses.replace(run, exchanges=(record,))
    assert counted([whole, whole]) == [[0, 4], [2, 0]]
    odd = dataclasses.replace(run, exchanges=(dataclasses.replace(record, matrix=[[1], [0, 1, 5, 9, 9]]),))
    assert [len(row) for row in counted([whole, odd])] == [3, 3]
    assert counted([dataclasses.replace(run, exchanges=())]) == []
