"""Gatherings of learners on two hosts (docs/quorum.md): the centre is on the first, and what counts, counts once."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.rules import describe, find
from roundelay.core.effects import Fetch, Gather, Quorum
from roundelay.runtime.base import wall_clock
from roundelay.runtime.gathering import Gatherings, GatheringTable
from roundelay.runtime.hosts.exchange.messages import FetchMessage, asked_by, read_gather
from roundelay.runtime.messages import Frame, InvalidMessage
from roundelay.runtime.procs.memory.arena import Layout
from roundelay.runtime.procs.memory.views import NONE
from roundelay.runtime.procs.worker import Worker
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.quorate import BASE, SUMS, Quorate
from support.clusters import cluster, make_strategy, plan
from support.two_hosts import Host, ask, break_links, hosts, start, train
from support.until import meanwhile, together, until

AVERAGING = ("bsp", "bmuf", "bmuf nesterov=true", "bmuf-fairseq", "slowmo", "diloco")
ALL, ANYBODY, FIRST = Quorum(2), Quorum(1, grace=0.0), Quorum(1, grace=60.0)
"""Everybody is waited for; nobody; a minute after the first."""
P = 37


# The strategy itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("terms", ["quorum=2", "guard=1000"])
def test_a_quorum_of_all_and_a_guard_against_nothing_are_the_strategy_itself(name: str, terms: str) -> None:
    """To rounding, on two hosts, in two segments that end inside a block, with local momentum. Learners draw as under
    the strategy itself, by rounds."""
    with SimRuntime(cluster(f"{name} period=3", 2, momentum=0.5)) as runtime:
        for epoch in range(2):
            runtime.segment(plan(8, 2, epoch=epoch))
        expected = runtime.consensus().clone()
        begun = cluster(name, 2).task.build().initial()
    with hosts([0, 1], f"{name} period=3 {terms}", P, momentum=0.5) as found:
        centre = found[0].rows[2].vector
        for row in (*found[0].rows, *found[1].rows):
            row.vector.copy_(begun)
        for host in found:
            for worker in host.workers.values():
                worker._work._synchronous = True
        for epoch in range(2):
            answers = train(found, plan(8, 2, epoch=epoch))
            assert [answer for answer in answers if answer.problem] == []
        for row in (found[0].rows[0], found[1].rows[1]):
            assert torch.equal(row.vector, centre)
        torch.testing.assert_close(centre, expected, rtol=1e-5, atol=1e-6)
        assert found[0].arena.gatherings.counted.tolist() == [6, 6]


# One gathering --------------------------------------------------------------------------------------------------------


def opened(*found: Host) -> list[Worker]:
    """A learner of each host, which has opened a segment at the centre."""
    workers = [worker for host in found for worker in host.workers.values()]
    for worker in workers:
        strategy = worker._strategy
        assert isinstance(strategy, Quorate)
        worker._backend.begin_segment()
        role = strategy.learn(worker.me)
        ask(worker, role.send(None))
        role.close()
    return workers


def gather(worker: Worker, terms: Quorum, moved: float = 0.0, weight: float = 1.0, **told: Any) -> Gather:
    """The gathering to which a learner comes that has moved by so much."""
    strategy, me = worker._strategy, worker.me
    assert isinstance(strategy, Quorate)
    with me.row.writing():
        me.x.add_(moved)
    role = strategy._gather(me, weight, 0.0, bool(told.get("last")))
    asked: Any = role.send(None)
    role.close()
    return Gather(terms, asked.give, asked.close, **told)


def go_on(worker: Worker) -> None:
    """From the centre as it is now."""
    assert ask(worker, Fetch(2, worker.me.memory[BASE])) is not None
    worker.me.replace(worker.me.memory[BASE])


def begun(*found: Host) -> Tensor:
    """All rows as the centre's, which is copied."""
    for row in (*found[0].rows, *found[1].rows):
        row.vector.copy_(start(2, P))
    return start(2, P)


def test_what_learners_of_both_hosts_bring_is_weighed_and_each_goes_on_with_the_mean() -> None:
    with hosts([0, 1], "bsp quorum=2", P) as (zero, one):
        before = begun(zero, one)
        mine, theirs = opened(zero, one)
        said: dict[int, bool] = {}
        together(
            lambda: said.update({0: ask(mine, gather(mine, ALL, 1.0, 3.0))}),
            lambda: said.update({1: ask(theirs, gather(theirs, ALL, 5.0, 1.0))}),
        )
        assert said == {0: True, 1: True}
        torch.testing.assert_close(zero.rows[2].vector, before + 2.0)
        go_on(theirs)
        assert torch.equal(theirs.me.x, zero.rows[2].vector)


@pytest.mark.parametrize("coming", [0, 1])
def test_nobody_waits_for_a_learner_of_the_other_host_when_the_quorum_is_there(coming: int) -> None:
    """Any learner that comes closes the gathering, wherever it is; the other is late then, and goes on at once."""
    with hosts([0, 1], "bsp quorum=1", P) as found:
        before = begun(*found)
        workers = opened(*found)
        first, second = workers[coming], workers[1 - coming]
        assert ask(first, gather(first, ANYBODY, 2.0))
        torch.testing.assert_close(found[0].rows[2].vector, before + 2.0)
        assert ask(second, gather(second, ALL, 7.0)), "it is late, and does not wait"
        torch.testing.assert_close(found[0].rows[2].vector, before + 2.0)
        assert found[0].arena.gatherings.late.tolist() == [int(rank == 1 - coming) for rank in range(2)]
        go_on(first)
        assert ask(first, gather(first, ANYBODY, 1.0))
        torch.testing.assert_close(found[0].rows[2].vector, before + 2.0 + (7.0 + 1.0) / 2)


def test_a_late_learner_of_another_host_gives_nothing_where_late_is_dropped() -> None:
    with hosts([0, 1], "bsp quorum=1 late=drop", P) as (zero, one):
        before = begun(zero, one)
        mine, theirs = opened(zero, one)
        drop = Quorum(1, grace=0.0, drops_late=True)
        assert ask(mine, gather(mine, drop, 2.0))
        assert not ask(theirs, gather(theirs, drop, 7.0))
        go_on(theirs)
        assert ask(theirs, gather(theirs, drop, 1.0))
        torch.testing.assert_close(zero.rows[2].vector, before + 3.0)


def test_a_guard_judges_learners_of_both_hosts_by_one_measure() -> None:
    with hosts([0, 1], "bsp guard=3", P) as (zero, one):
        begun(zero, one)
        _, theirs = opened(zero, one)
        guarded = Quorum(1, grace=0.0, guard=3.0)
        for _ in range(12):
            assert ask(theirs, gather(theirs, guarded, 0.0, norm=1.0, loss=1.0))
        assert not ask(theirs, gather(theirs, guarded, 1.0, norm=50.0, loss=1.0))
        assert not ask(theirs, gather(theirs, guarded, 1.0, norm=1.0, loss=float("nan")))
        assert zero.arena.gatherings.left_out.tolist() == [0, 2]
        assert zero.arena.gatherings.usual_seen[0] == 14


@pytest.mark.parametrize("when", ["exchange", "row", "fetch"])
def test_a_contribution_counts_once_though_its_link_breaks(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link breaks under a message, and right behind one."""
    with hosts([0, 1], "bsp quorum=2", P) as (zero, one):
        before = begun(zero, one)
        mine, theirs = opened(zero, one)
        broken = break_links(monkeypatch, when)
        with meanwhile(lambda: ask(theirs, gather(theirs, ALL, 4.0))):
            until(lambda: bool(zero.arena.gatherings.came[1]) and (when != "fetch" or len(broken) == 2))
            assert ask(mine, gather(mine, ALL, 2.0))
        assert broken
        torch.testing.assert_close(zero.rows[2].vector, before + 3.0)
        assert zero.arena.gatherings.counted.tolist() == [1, 1]
        assert zero.arena.gatherings.closed[0] == 1
        assert not any(vector.any() for name, vector in zero.rows[2].memory.items() if name in SUMS)


def test_the_dead_of_a_lost_host_are_waited_for_no_longer() -> None:
    with hosts([0, 1], "bsp quorum=2", P) as (zero, one):
        before = begun(zero, one)
        mine, theirs = opened(zero, one)
        with meanwhile(lambda: ask(mine, gather(mine, ALL, 2.0))) as (thread,):
            until(lambda: bool(zero.arena.gatherings.came[0]))
            assert thread.is_alive()
            zero.arena.liveness.alive[1] = 0
        torch.testing.assert_close(zero.rows[2].vector, before + 2.0)
        # It is back, and begins at what the centre is now.
        zero.arena.liveness.alive[1] = 1
        opened(one)
        assert torch.equal(theirs.me.x, zero.rows[2].vector)
        assert ask(theirs, gather(theirs, ANYBODY, 1.0))
        torch.testing.assert_close(zero.rows[2].vector, before + 3.0)


def test_all_wait_for_the_last_gathering_of_a_segment_whoever_brings_nothing() -> None:
    with hosts([0, 1], "bsp quorum=1", P) as (zero, one):
        before = begun(zero, one)
        mine, theirs = opened(zero, one)
        said: list[bool] = []
        with meanwhile(lambda: said.append(ask(theirs, gather(theirs, FIRST, weight=0.0, last=True)))) as (thread,):
            until(lambda: bool(zero.arena.gatherings.came[1]))
            assert thread.is_alive()
            assert ask(mine, gather(mine, FIRST, 2.0, last=True))
        assert said == [False]
        torch.testing.assert_close(zero.rows[2].vector, before + 2.0)


def test_who_waits_at_a_centre_that_is_lost_gives_again_to_the_one_that_is_made_of_what_it_had_read() -> None:
    with hosts([0, 1], "bsp quorum=2", P) as (zero, one):
        begun(zero, one)
        mine, theirs = opened(zero, one)
        with meanwhile(lambda: ask(mine, gather(mine, ALL, 2.0))):
            assert ask(theirs, gather(theirs, ALL, 6.0))
        go_on(theirs)
        table, read, said = one.arena.requests, int(one.arena.requests.read[1]), list[bool]()
        with meanwhile(lambda: said.append(ask(theirs, gather(theirs, ALL, 4.0)))):
            until(lambda: bool(zero.arena.gatherings.came[1]))
            lost = zero.rows[2].vector.clone()
            one.arena.liveness.alive[0] = 0
            table.centre[0] = NONE
            one.client.peers_changed({})
            until(lambda: bool(table.done[1] == table.asked[1]))
            assert table.read[1] == read, "it does not read the centre by coming to a gathering"
            assert torch.equal(theirs.me.memory[BASE], lost)
            one.rows[2].vector.copy_(lost)
            Gatherings(one.arena.gatherings).begin_part(wall_clock())
            table.centre[0] = 1
        assert said == [True]
        torch.testing.assert_close(one.rows[2].vector, lost + 4.0)


def test_nobody_waits_at_a_new_centre_for_those_who_had_finished_at_the_one_that_is_lost() -> None:
    gatherings = Gatherings(GatheringTable.zeros(2))
    gatherings.begin_part(0.0)
    gatherings.arrive(1, True, 1.0)
    assert not gatherings.begin_closing(1, ANYBODY, (0, 1), 2.0)
    gatherings.finish([0])
    assert gatherings.begin_closing(1, ANYBODY, (0, 1), 2.0)


# Nonsense -------------------------------------------------------------------------------------------------------------


NUMBERS = {"learners": 2, "minibatches_a_round": 1, "learning_rate": 0.1, "share": 1.0, "last": False}
WHOLE: dict[str, Any] = {
    "quorum": {"needed": 2, "grace": None, "spread": 3.0, "drops_late": False, "guard": None},
    "close": {"name": "GatheringClosed", "numbers": NUMBERS},
    "beside": ["gathered", "gathered_weight"],
    "last": True,
    "norm": None,
    "loss": 0.5,
}


def read(**changed: Any) -> Gather:
    strategy = make_strategy("bsp quorum=2")
    layout = Layout(2, P, strategy.memory, True, centre_memory=strategy.centre_memory)
    message = asked_by(layout).read(Frame("fetch", {"n": 1, "peer": 2, "gather": {**WHOLE, **changed}}))
    assert isinstance(message, FetchMessage)
    assert message.gather is not None
    return read_gather(message.gather, layout, None, strategy)


def test_a_gathering_is_read_as_it_was_said() -> None:
    gather = read()
    assert gather.terms == Quorum(2)
    assert (gather.close.peer, gather.close.theirs, gather.last, gather.loss) == (2, SUMS, True, 0.5)
    assert math.isnan(gather.norm)


@pytest.mark.parametrize(
    "changed",
    [
        {"quorum": None},
        {"quorum": {"needed": "all"}},
        {"quorum": {"needed": -1}},
        {"quorum": {"needed": 1, "grace": "long"}},
        {"quorum": {"needed": 1, "more": 1}},
        {"close": {"name": "GatheringClosed", "numbers": {}}},
        {"close": {"name": "GatheringClosed", "numbers": {**NUMBERS, "strategy": 1}}},
        {"close": {"name": "pair_average_", "numbers": {}}},
        {"beside": ["row"]},
        {"beside": "gathered"},
        {"norm": "large"},
        {"loss": [1]},
    ],
)
def test_a_gathering_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        read(**changed)


def test_rules_of_a_strategy_are_for_those_who_train_by_it() -> None:
    rule, strategy = WHOLE["close"], make_strategy("bsp quorum=2")
    assert describe(find(rule, 2, False, strategy)) == rule
    for other in (None, make_strategy("bsp"), make_strategy("adpsgd")):
        with pytest.raises(ValueError, match="not a rule of the run's strategy"):
            find(rule, 2, False, other)
