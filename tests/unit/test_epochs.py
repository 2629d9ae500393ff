"""The cuts of an epoch: every example once, the same examples a round whatever the number of learners."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.epochs import EpochPlan


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 9), st.integers(0, 5))
def test_every_example_is_in_exactly_one_minibatch(examples: int, minibatch: int, learners: int, epoch: int) -> None:
    plan = EpochPlan(epoch, examples, minibatch, learners, seed=3)
    pieces = [plan.piece(i) for i in range(plan.pieces)]
    covered = np.concatenate([np.arange(p.start, p.stop) for p in pieces])
    assert np.array_equal(covered, np.arange(examples))
    assert [p.index for p in pieces] == list(range(plan.pieces))


@given(st.integers(1, 500), st.integers(9, 64), st.integers(1, 9))
def test_a_round_holds_the_same_examples_for_any_number_of_learners(
    examples: int, minibatch: int, learners: int
) -> None:
    alone, together = EpochPlan(0, examples, minibatch, 1, 3), EpochPlan(0, examples, minibatch, learners, 3)
    assert alone.rounds == together.rounds
    for round_ in range(alone.rounds):
        whole = alone.piece(round_)
        parts = [together.piece(round_ * learners + rank) for rank in range(learners)]
        assert (parts[0].start, parts[-1].stop) == (whole.start, whole.stop)
        assert max(p.frames for p in parts) - min(p.frames for p in parts) <= 1


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    plan = EpochPlan(2, 100, 10, 1, seed=7)
    assert np.array_equal(plan.order(), EpochPlan(2, 100, 50, 4, seed=7).order())
    assert sorted(plan.order()) == list(range(100))
    assert not np.array_equal(plan.order(), EpochPlan(3, 100, 10, 1, seed=7).order())
    assert not np.array_equal(plan.order(), EpochPlan(2, 100, 10, 1, seed=8).order())
