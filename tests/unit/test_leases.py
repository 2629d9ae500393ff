"""The work queue of all hosts: every minibatch is drawn, and counted, once."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.epochs import EpochPlan, Share
from roundelay.core.state import Statistics
from roundelay.runtime.base import Counts, SegmentPlan
from roundelay.runtime.hosts.control.leases import Leases, PrefetchedLeases, counted, enter
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import NONE, PREFETCH, TRAINED

PLAN = EpochPlan(epoch=0, examples=38, minibatch=12, learners=3, seed=0)
NOT_EMPTY = [index for index in range(PLAN.pieces) if PLAN.piece(index).frames]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["draw", "train", "die"])), max_size=60))
def test_whatever_happens_every_minibatch_is_settled_once(story: list[tuple[int, str]]) -> None:
    leases = Leases(PLAN, 0, PLAN.pieces)
    held: dict[int, list[int]] = {0: [], 1: [], 2: []}
    trained: list[int] = []
    for host, what in story:
        if what == "draw":
            held[host] += leases.draw(host, 2)[0]
        elif what == "train" and held[host]:
            index = held[host].pop(0)
            leases.settle(host, [index])
            trained.append(index)
        elif what == "die":
            assert leases.give_back(host) == len(held[host])
            held[host] = []
    for host in held:  # and then the rest
        leases.give_back(host)
    while True:
        indices, more = leases.draw(0, 3)
        trained += indices
        if not more:
            break
    assert sorted(trained) == NOT_EMPTY
    assert not leases.left


def test_a_stop_lets_the_begun_rounds_end() -> None:
    leases = Leases(PLAN, 0, PLAN.pieces)
    assert leases.draw(0, 4) == ([0, 1, 2, 3], True)
    leases.stop(lambda reached: reached)
    assert leases.draw(1, 9) == ([4, 5], False)
    assert leases.next == 6


SHARED = EpochPlan(
    epoch=0, examples=38, minibatch=12, learners=3, seed=0, shares=(Share(2, 21, (0, 2)), Share(1, 17, (1,)))
)


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["draw", "train", "die"])), max_size=60))
def test_every_host_is_leased_what_is_its_own_once_and_nobody_else_is(story: list[tuple[int, str]]) -> None:
    leases = Leases(SHARED, 0, SHARED.pieces)
    held: dict[int, list[int]] = {0: [], 1: []}
    trained: dict[int, list[int]] = {0: [], 1: []}
    for host, what in story:
        if what == "draw":
            held[host] += leases.draw(host, 2)[0]
        elif what == "train" and held[host]:
            index = held[host].pop(0)
            leases.settle(host, [index])
            trained[host].append(index)
        elif what == "die":
            assert leases.lose(host) == 0
            held[host] = []
    done = [sum(SHARED.piece(index).frames for index in trained[host]) for host in (0, 1)]
    missing = SegmentPlan(SHARED, 0.1).missing([done[0], 0, done[1]], SHARED.pieces, synchronous=False)
    assert missing == (SHARED.shares[0].examples - done[0], 0, SHARED.shares[1].examples - done[1])
    for host, ranks in ((0, {0, 1}), (1, {2})):
        leases.give_back(host)
        while leases.left_for([host]):
            trained[host] += leases.draw(host, 3)[0]
        assert {index % 3 for index in trained[host]} == ranks
        assert sum(SHARED.piece(index).frames for index in trained[host]) == SHARED.shares[host].examples
        assert len(set(trained[host])) == len(trained[host])
    assert leases.next == SHARED.pieces


def test_a_stop_ends_the_shares_of_all_hosts_after_one_round() -> None:
    leases = Leases(SHARED, 3, SHARED.pieces)
    assert leases.draw(0, 3) == ([3, 4, 6], True)
    leases.stop(lambda reached: reached)
    assert leases.draw(0, 9) == ([7], False)
    assert leases.draw(1, 9) == ([5, 8], False)
    assert leases.next == 9


@pytest.fixture
def arena() -> Iterator[Arena]:
    layout = Layout(learners=3, parameters=1)
    found = Arena(create_file(layout), layout, Patience(0, 1))
    found.queue.claims[:] = found.queue.assigned[:] = NONE
    queue.open_prefetch(found)
    yield found
    found.close()


def test_who_finds_the_stock_empty_is_to_ask_again_until_there_is_no_more(arena: Arena) -> None:
    assert queue.draw(arena, 0, PLAN) is queue.NONE_YET
    queue.put(arena, [7, 2], more=True)
    assert [batch.index for rank in (0, 1) if (batch := queue.draw(arena, rank, PLAN))] == [7, 2]
    assert queue.draw(arena, 2, PLAN) is queue.NONE_YET
    queue.put(arena, [], more=False)
    assert queue.draw(arena, 2, PLAN) is None


def test_a_node_draws_only_when_there_is_enough_for_all(arena: Arena) -> None:
    queue.put(arena, [4], more=True)
    assert queue.draw_together(arena, 0, (0, 1), PLAN) is queue.NONE_YET
    queue.put(arena, [5], more=True)
    found = [queue.draw_together(arena, rank, (0, 1), PLAN) for rank in (1, 0)]
    assert [batch.index for batch in found if batch] == [5, 4]
    queue.put(arena, [6], more=False)
    last = [queue.draw_together(arena, rank, (0, 1), PLAN) for rank in (0, 1)]
    assert [batch.frames for batch in last if batch] == [PLAN.piece(6).frames, 0]


def test_the_stock_is_a_ring(arena: Arena) -> None:
    found = []
    for number in range(3 * PREFETCH):
        queue.put(arena, [number % PLAN.pieces], more=True)
        batch = queue.draw(arena, 0, PLAN)
        assert batch is not None
        found.append(batch.index)
    assert found == [number % PLAN.pieces for number in range(3 * PREFETCH)]


def test_a_report_says_what_is_trained_and_what_was_counted_for_it_together(arena: Arena) -> None:
    prefetch = PrefetchedLeases(arena, (0, 1), lambda _: None)
    prefetch.fill([0, 1, 2, 3], True)
    first, second = queue.draw(arena, 0, PLAN), queue.draw(arena, 1, PLAN)
    assert first is not None
    assert second is not None
    queue.settle(arena, 0, Statistics(4, 1.5, 3))
    report = prefetch.report()
    assert report is not None
    assert report["settled"] == [0]
    assert (report["counts"]["frames"], report["counts"]["loss"]) == ([4, 0], [1.5, 0.0])
    again = prefetch.report()
    assert again is not None
    assert again["settled"] == []
    # What a dead learner worked on is not trained, and what nobody draws any more neither.
    queue.give_back(arena, 1)
    last = prefetch.report()
    assert last is not None
    assert last["settled"] == []
    queue.clear_prefetch(arena)
    assert queue.draw(arena, 0, PLAN) is queue.NONE_YET


def test_a_minibatch_that_is_finished_while_a_report_is_made_is_counted_if_it_is_said_to_be_trained(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be lost with a host that dies before its next report: no other would train it."""
    prefetch = PrefetchedLeases(arena, (0, 1), lambda _: None)
    prefetch.fill([0, 1], True)
    assert queue.draw(arena, 0, PLAN)
    untrained = queue.untrained

    def after_a_step(arena: Arena, ranks: Sequence[int]) -> list[int]:
        if arena.queue.claims[0] == 0:
            queue.settle(arena, 0, Statistics(4, 1.5, 3))
        return untrained(arena, ranks)

    monkeypatch.setattr(queue, "untrained", after_a_step)
    report = prefetch.report()
    assert report is not None
    assert (report["settled"], report["counts"]["frames"]) == ([0], [4, 0])


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1.5])
def test_a_loss_that_equals_nothing_is_reported_all_the_same(arena: Arena, loss: float) -> None:
    prefetch = PrefetchedLeases(arena, (0, 1), lambda _: None)
    prefetch.fill([0, 1], True)
    assert queue.draw(arena, 0, PLAN)
    queue.settle(arena, 0, Statistics(4, loss, 3))
    report = prefetch.report()
    assert report is not None
    assert report["settled"] == [0]
    total = Counts.zeros(3)
    enter(total, (0, 1), json.loads(json.dumps(report["counts"])))
    assert np.array_equal(total.loss, [loss, 0.0, 0.0], equal_nan=True)


def test_counts_that_are_none_are_entered_nowhere(arena: Arena) -> None:
    arena.counts.frames[:] = 4, 5, 6
    good, total = counted(arena, (1, 2)), Counts.zeros(3)
    wrong: tuple[Any, ...] = ([1], [[1], [2]], ["1", "2"], [2**70, 0], None, "12", {"0": 1}, [None, 1], [[], []])
    for name in good:
        for bad in wrong:
            with pytest.raises(InvalidMessage):
                enter(total, (1, 2), {**good, name: bad})
    for name in ("frames", "steps", "exchanges"):
        for number in (0.5, float("nan"), 1 << 60, -(1 << 60)):
            with pytest.raises(InvalidMessage):
                enter(total, (1, 2), {**good, name: np.full(np.shape(good[name]), number).tolist()})
    with pytest.raises(InvalidMessage):
        enter(total, (1, 2), {name: value for name, value in good.items() if name != "means"})
    assert all(not table.any() for table in vars(total).values())


def test_while_a_dead_learner_has_counted_by_half_there_is_no_report(arena: Arena) -> None:
    prefetch = PrefetchedLeases(arena, (0, 1), lambda _: None)
    prefetch.fill([0], True)
    assert queue.draw(arena, 0, PLAN)
    arena.queue.totals[:, 0] = 4, 3, 1.5
    arena.queue.claims[0] = TRAINED
    assert prefetch.report() is None
    queue.give_back(arena, 0)
    report = prefetch.report()
    assert report is not None
    assert (report["settled"], report["counts"]["frames"]) == ([0], [4, 0])


def test_counts_of_a_host_that_came_back_are_added_to_those_of_before(arena: Arena) -> None:
    arena.counts.frames[:], arena.counts.stalest[:] = (4, 5, 6), (1, 9, 2)
    arena.counts.staleness[1, 3] = 2
    found, total, base = counted(arena, (1, 2)), Counts.zeros(3), Counts.zeros(3)
    base.frames[:], base.stalest[:] = 100, 4
    enter(total, (1, 2), found, base)
    assert total.frames.tolist() == [0, 105, 106]
    assert total.stalest.tolist() == [0, 9, 4]
    assert total.staleness[1, 3] == 2
    assert np.array_equal(total.staleness[0], np.zeros_like(total.staleness[0]))
