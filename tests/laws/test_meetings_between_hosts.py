"""Exchanges between hosts of rows and of what both learners keep beside them (a2cid2), and of parts of rows
(divshare)."""

import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.continuous_momentum import Meeting
from roundelay.core.effects import Begin, Exchange, Wait
from roundelay.core.errors import UserError
from roundelay.core.flat import VectorFragment
from roundelay.strategies.a2cid2 import AHEAD
from support.two_hosts import ask, hosts, start
from support.until import until


@pytest.mark.parametrize("asker", [0, 1])
def test_a_meeting_of_rows_and_what_learners_keep_beside_them_is_one_on_an_arena(asker: int) -> None:
    """Of the lower rank both travel, of the higher both are visited, whoever has asked."""
    with hosts([0, 1], "a2cid2") as found, hosts([0, 0], "a2cid2") as (single,):
        results = []
        for owners in (found, [single, single]):
            for rank, owner in enumerate(owners):
                owner.arena.vector(AHEAD, rank).copy_(start(7 + rank))
            worker = owners[asker].workers[asker]
            effect = Exchange(1 - asker, Meeting(0.5, 0.8), (worker.me.memory[AHEAD],), theirs=(AHEAD,))
            assert ask(worker, effect) == 1
            assert ask(worker, effect) == 2
            results.append([owner.rows[rank].vector for rank, owner in enumerate(owners)])
            results[-1] += [owner.arena.vector(AHEAD, rank) for rank, owner in enumerate(owners)]
        for here, there in zip(*results, strict=True):
            assert torch.equal(here, there)


def test_a_meeting_lands_on_the_row_as_it_is_then() -> None:
    """The learner goes on while its row is in flight; twice the row and what it keeps beside it keep their sum."""
    with hosts([0, 1], "a2cid2") as (zero, one):
        worker, kept = zero.workers[0], zero.arena.vector(AHEAD, 0).copy_(start(7))
        one.rows[1].lock.acquire()
        before = 2 * (zero.rows[0].vector + one.rows[1].vector).double() + kept.double()
        handle = ask(worker, Begin(Exchange(1, Meeting(0.5, 0.8), (worker.me.memory[AHEAD],), theirs=(AHEAD,))))
        until(lambda: zero.arena.row_versions.in_flight[0])
        with zero.rows[0].writing():
            zero.rows[0].vector.add_(1.0)
        one.rows[1].lock.release()
        assert ask(worker, Wait(handle)) == 1
        after = 2 * (zero.rows[0].vector + one.rows[1].vector).double()
        after += (kept + one.arena.vector(AHEAD, 1)).double()
        torch.testing.assert_close(after, before + 2.0, rtol=0, atol=2e-5)


@pytest.mark.parametrize("asker", [0, 1])
@pytest.mark.parametrize("part", [VectorFragment(0, 3), VectorFragment(2, 3), VectorFragment(1, 5)])
def test_an_exchange_of_a_part_between_hosts_is_one_on_an_arena(asker: int, part: VectorFragment) -> None:
    with hosts([0, 1], "divshare") as found, hosts([0, 0], "divshare") as (single,):
        results = []
        for owners in (found, [single, single]):
            effect = Exchange(1 - asker, pair_average_, fragment=part)
            assert ask(owners[asker].workers[asker], effect) == 1
            results.append([owner.rows[rank].vector for rank, owner in enumerate(owners)])
        for rank, (here, there) in enumerate(zip(*results, strict=True)):
            assert torch.equal(here, there)
            outside = torch.ones_like(here, dtype=torch.bool)
            outside[part.within(len(here))] = False
            assert torch.equal(here[outside], start(rank)[outside])
            assert not torch.equal(here, start(rank))


def test_parts_are_exchanged_one_after_the_other_and_their_learner_does_not_wait() -> None:
    with hosts([0, 1], "divshare") as (zero, one):
        worker = zero.workers[0]
        one.rows[1].lock.acquire()
        handles = [ask(worker, Begin(Exchange(1, pair_average_, fragment=VectorFragment(n, 3)))) for n in range(3)]
        assert not any(handle.done for handle in handles)
        one.rows[1].lock.release()
        assert [ask(worker, Wait(handle)) for handle in (handles[2], *handles)] == [3, 1, 2, 3]
        assert torch.equal(zero.rows[0].vector, one.rows[1].vector)


def test_a_part_of_more_than_rows_is_refused() -> None:
    with hosts([0, 1], "a2cid2") as (zero, _):
        mine = (zero.workers[0].me.memory[AHEAD],)
        effect = Exchange(1, Meeting(0.5, 0.8), mine, theirs=(AHEAD,), fragment=VectorFragment(0, 3))
        with pytest.raises(UserError, match="of a fragment and of more than rows"):
            ask(zero.workers[0], effect)
