"""Orders by blocks: every example once, the same for everybody, told of before it is read, and as good as a shuffle."""

import dataclasses
import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from roundelay.core.block_order import BlockOrder, Integers, block_starts, expand
from roundelay.core.epochs import EpochPlan


def starts_of(sizes: NDArray[np.int64] | list[int]) -> Integers:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def shuffled(starts: Integers, plan: EpochPlan, window: int, told: list[int] | None = None) -> BlockOrder:
    """Examples shuffled within a window."""

    def arrange(rng: np.random.Generator, blocks: NDArray[np.int32], at: int, plan: EpochPlan) -> Integers:
        if told is not None:
            assert set(blocks.tolist()) <= set(told)
        return rng.permutation(expand(starts[blocks], starts[blocks + 1] - starts[blocks]))

    def ahead(blocks: NDArray[np.int32]) -> None:
        if told is not None:
            told.extend(blocks.tolist())

    return BlockOrder(plan, starts, arrange, ahead, window=window)


def whole(order: BlockOrder, plan: EpochPlan) -> Integers:
    return np.concatenate([order[p.start : p.stop] for p in map(plan.piece, range(plan.pieces))])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 50),
    st.integers(1, 300),
    st.integers(1, 5),
)
def test_every_example_is_drawn_once_wherever_one_begins(
    sizes: list[int], minibatch: int, window: int, learners: int
) -> None:
    starts = starts_of(sizes)
    plan = EpochPlan(1, int(starts[-1]), minibatch, learners, seed=3)
    drawn = whole(shuffled(starts, plan, window), plan)
    assert sorted(drawn) == list(range(plan.examples))
    alone = dataclasses.replace(plan, learners=1)
    assert np.array_equal(drawn, whole(shuffled(starts, alone, window), alone))
    resumed, order = plan.examples // 2, shuffled(starts, plan, window)
    assert np.array_equal(order[resumed : plan.examples], drawn[resumed:])
    assert np.array_equal(order[0:resumed], drawn[:resumed])
    assert len(order[resumed:resumed]) == 0


def test_the_order_depends_on_seed_and_epoch() -> None:
    starts = starts_of([10] * 40)
    plan = EpochPlan(2, 400, 20, 1, seed=7)
    drawn = whole(shuffled(starts, plan, 100), plan)
    for other in (dataclasses.replace(plan, epoch=3), dataclasses.replace(plan, seed=8)):
        assert not np.array_equal(drawn, whole(shuffled(starts, other, 100), other))


def test_a_plan_of_other_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="7 examples"):
        shuffled(starts_of([3, 3]), EpochPlan(0, 7, 2, 1, 0), 10)


def test_blocks_are_told_of_before_they_are_read() -> None:
    """Also from the middle of an epoch on; and at its end those that the next begins with."""
    starts = starts_of([10] * 64)
    plan = EpochPlan(0, 640, 8, 2, seed=1)
    following = shuffled(starts, dataclasses.replace(plan, epoch=1), 100).blocks(0).tolist()
    for first in (0, 3, 41):
        said: list[int] = []
        order = shuffled(starts, plan, 100, said)
        for index in range(2 * first, plan.pieces):
            piece = plan.piece(index)
            order[piece.start : piece.stop]
        needed = [b for window in range(order.windows) for b in order.blocks(window).tolist()]
        told = list(dict.fromkeys(said[: -len(following)]))  # blocks of a window are told again when it begins
        assert [*told, *said[-len(following) :]] == [*needed[-len(told) :], *following]
    told = []
    order = shuffled(starts, plan, 100, told)
    order[0:8]
    here, end = len(order.blocks(0)), len(order.blocks(0)) + len(order.blocks(1))
    assert here <= len(set(told)) < end
    order[80:90]
    assert len(set(told)) >= end - 1, "all of the next window, a while before it begins"


def test_blocks_are_whole_stretches_of_about_their_size() -> None:
    rng = np.random.default_rng(0)
    ends = starts_of(rng.integers(10, 400, 5000))
    blocks = block_starts(ends, 1000)
    sizes = np.diff(ends[blocks])
    assert (blocks[0], blocks[-1]) == (0, 5000)
    assert sizes[:-1].min() > 500  # the last may be what is left
    assert sizes.max() < 2000
    assert block_starts(starts_of([5]), 1000).tolist() == [0, 1]
    assert block_starts(starts_of([5000, 5000]), 1000).tolist() == [0, 1, 2]


def test_a_billion_examples_take_little_memory() -> None:
    """Two windows and a number for each block, where a shuffle takes 8 GB."""
    starts = np.arange(0, 10**9 + 1, 1000)
    plan = EpochPlan(0, 10**9, 1024, 4, seed=0)
    tracemalloc.start()
    order = shuffled(starts, plan, 1 << 17)
    made = tracemalloc.get_traced_memory()
    for at in (0, 1 << 17, 1 << 18, 5 * 10**8):
        order[at : at + 256]
    used = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made[0] < 5e6
    assert used[0] < 10e6
    assert used[1] < 50e6


# Against a true shuffle -----------------------------------------------------------------------------------------------

BLOCKS, SIZE, WINDOW = 400, 8, 640
EXAMPLES = BLOCKS * SIZE
DRAWS = 200
"""Epochs that are looked at: 200 orders of 3,200 examples in 5 windows of 80 blocks."""


@pytest.fixture(scope="module")
def orders() -> Integers:
    """(DRAWS, EXAMPLES)."""
    starts = starts_of([SIZE] * BLOCKS)
    plans = [EpochPlan(epoch, EXAMPLES, 32, 1, seed=11) for epoch in range(DRAWS)]
    return np.stack([shuffled(starts, plan, WINDOW)[0:EXAMPLES] for plan in plans])


def test_an_example_may_be_drawn_at_any_time(orders: Integers) -> None:
    """Counts of examples by tenth of corpus and tenth of epoch: chi-squared with 81 degrees of freedom, of which blocks
    of 8 leave an eighth of the independence."""
    tenth = np.arange(EXAMPLES) * 10 // EXAMPLES
    counts = np.zeros((10, 10))
    for order in orders:
        np.add.at(counts, (order * 10 // EXAMPLES, tenth), 1)
    expected = DRAWS * EXAMPLES / 100
    assert ((counts - expected) ** 2 / expected).sum() / SIZE < 81 + 5 * np.sqrt(2 * 81)


def test_neighbours_are_not_drawn_one_after_the_other(orders: Integers) -> None:
    """Followed by its neighbour in storage: a shuffle, once in EXAMPLES; here, in a window, as both are in it."""
    followed = (np.diff(orders, axis=1) == 1).sum()
    expected = DRAWS * BLOCKS * (SIZE - 1) / WINDOW
    assert abs(followed - expected) < 5 * np.sqrt(expected)


def test_successive_epochs_are_independent(orders: Integers) -> None:
    """Rank correlation of an example's positions in two epochs: blocks are shuffled, so 400 of them vary."""
    positions = np.argsort(orders, axis=1)
    found = [np.corrcoef(a, b)[0, 1] for a, b in itertools.pairwise(positions)]
    assert abs(np.mean(found)) < 5 / np.sqrt(BLOCKS * len(found))
    assert np.std(found) < 2 / np.sqrt(BLOCKS)


def test_minibatches_are_as_various_as_those_of_a_shuffle() -> None:
    """At the true proportions: blocks of one speaker, windows of 1,024 of them, minibatches of 256 frames.

    On paper, 226 speakers in a minibatch and a shuffle's 241; and where half of the variance is the speaker's, the
    variance of a minibatch's mean is 2 / 256 for a shuffle, and by that of a window's mean, 1 / 1,024, more here.
    """
    blocks, size = 4096, 64
    starts = starts_of([size] * blocks)
    examples = blocks * size
    rng = np.random.default_rng(5)
    speaker = np.repeat(np.arange(blocks) // 2, size)  # two blocks each
    value = rng.normal(size=blocks // 2)[speaker] + rng.normal(size=examples)
    plan = EpochPlan(0, examples, 256, 1, seed=2)
    various, spread = [], []
    for order in (shuffled(starts, plan, 1024 * size)[0:examples], plan.order()):
        batches = order.reshape(-1, 256)
        various.append(np.mean([len(np.unique(speaker[batch])) for batch in batches]))
        spread.append(value[batches].mean(1).var())
    assert various[0] > 0.9 * various[1]
    assert spread[0] < 1.25 * spread[1]
