"""The cuts of an epoch: every example once, the same examples a round whatever the number of learners."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.epochs import EpochPlan, Share


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


SHARES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 400)), min_size=2, max_size=4).filter(
    lambda hosts: any(examples for _, examples in hosts)
)


def in_shares(hosts: list[tuple[int, int]], minibatch: int) -> EpochPlan:
    shares = tuple(Share(learners, examples, (number,)) for number, (learners, examples) in enumerate(hosts))
    learners = sum(share.learners for share in shares)
    return EpochPlan(2, sum(share.examples for share in shares), minibatch, learners, seed=3, shares=shares)


@given(SHARES, st.integers(1, 64))
def test_every_host_draws_its_own_examples_once_and_keeps_step(hosts: list[tuple[int, int]], minibatch: int) -> None:
    plan = in_shares(hosts, minibatch)
    drawn: list[list[int]] = [[] for _ in hosts]
    owner = np.repeat(np.arange(len(hosts)), [learners for learners, _ in hosts])
    begins = np.cumsum([0, *(examples for _, examples in hosts)])
    for round_ in range(plan.rounds):
        before = sum(map(len, drawn))
        for rank in range(plan.learners):
            batch = plan.piece(round_ * plan.learners + rank)
            drawn[owner[rank]] += range(batch.start, batch.stop)
            own, begin = plan.own(batch)
            assert (own.examples, own.shards) == (hosts[owner[rank]][1], (owner[rank],))
            assert begin == begins[owner[rank]]
        trained = sum(map(len, drawn))
        assert abs(trained - before - min(minibatch, plan.examples - round_ * minibatch)) <= len(hosts)
        for some, (_, examples) in zip(drawn, hosts, strict=True):  # whoever has more draws more, and all end together
            assert abs(len(some) - examples * min(1.0, (round_ + 1) * minibatch / plan.examples)) < 1 + 1e-6
    for some, begin, end in zip(drawn, begins, begins[1:], strict=False):
        assert some == list(range(begin, end))


@given(SHARES)
def test_a_plan_is_told_by_json(hosts: list[tuple[int, int]]) -> None:
    for plan in (in_shares(hosts, 10), EpochPlan(1, 5, 2, 3, 4), EpochPlan(1, 5, 2, 3, 4, shards=(1, 2))):
        assert EpochPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert set(EpochPlan(1, 5, 2, 3, 4).to_json()) == {"epoch", "examples", "minibatch", "learners", "seed"}


def test_a_division_is_said_in_words() -> None:
    plan = EpochPlan(0, 30, 10, 3, 0, shares=(Share(2, 20, (0, 2)), Share(1, 10, (1,))))
    assert plan.division((10, -1, 10, -1)) == (
        "host 0 draws from shards 0, 2 (20 frames); host 1 draws from shards 1 (10 frames); "
        "shards 3 of 4 are nowhere: the corpus is smaller by them"
    )
    assert EpochPlan(0, 30, 10, 3, 0).division((10, 20)) == ""
    assert EpochPlan(0, 30, 10, 3, 0).division(()) == ""
    with pytest.raises(ValueError, match="above the learners that have shares"):
        plan.share(3)
