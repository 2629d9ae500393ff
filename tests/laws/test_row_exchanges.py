"""Exchanges between hosts are the exchanges of one host. How rows are carried: test_row_format.py; what becomes of it
when hosts, links and learners fail: test_exchange_failures.py."""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.delayed_nesterov import OuterReport
from roundelay.algorithms.elastic import Pull, set_centre_
from roundelay.algorithms.parameter_server import GatheredReport, Report
from roundelay.core.effects import Begin, Exchange, Fetch, Rule, Wait
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.exchange.client import CpuBudget
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.procs.worker import Worker
from support.clusters import MINIBATCH, keeps_sum, plan
from support.two_hosts import LONG, ask, break_links, even, hosts, start, train
from support.until import until

BF16, THREE = RowFormat("bf16"), RowFormat(fragments=3)


# The same as on one host ----------------------------------------------------------------------------------------------

RULES: list[tuple[str, int, Callable[[Worker], Exchange]]] = [
    ("adpsgd", 0, lambda _: Exchange(0, pair_average_)),
    ("easgd", 2, lambda _: Exchange(2, Pull(0.3))),
    ("easgd-sync", 2, lambda worker: Exchange(2, set_centre_, (worker.me.memory["centre_seen"],))),
    ("asgd", 2, lambda worker: Exchange(2, Report(0.7), (worker.me.memory["pulled"],), since=0)),
    ("asgd", 2, lambda worker: Exchange(2, Report(1.0, True), (worker.me.memory["pulled"],), since=0)),
    ("rennala", 2, lambda worker: _beside(worker, GatheredReport(1))),
    ("rennala", 2, lambda worker: _beside(worker, GatheredReport(2, stale=True))),
    ("async-diloco", 2, lambda worker: _beside(worker, OuterReport(0.7, 0.9, 1, 2))),
    ("async-diloco", 2, lambda worker: _beside(worker, OuterReport(0.7, 0.9, 3, 2))),
]


def _beside(worker: Worker, report: Rule) -> Exchange:
    names = worker._strategy.centre_memory
    return Exchange(2, report, (worker.me.memory["pulled"],), since=0, theirs=names)


@pytest.mark.parametrize(("name", "peer", "request_of"), RULES)
def test_an_exchange_between_hosts_is_one_on_an_arena_to_the_bit(
    name: str, peer: int, request_of: Callable[[Worker], Exchange]
) -> None:
    """This holds when nobody else writes. Learner 1 asks; the centre is on the host of learner 0."""
    with hosts([0, 1], name) as (zero, one), hosts([0, 0], name) as (single,):
        results = []
        for theirs, mine in ((zero, one), (single, single)):
            worker = mine.workers[1]
            for vector in worker.me.memory.values():
                vector.copy_(start(9))
            for _ in range(3):
                with theirs.rows[peer].writing():
                    theirs.rows[peer].vector.mul_(1.5)
            for number, vector in enumerate(theirs.rows[peer].memory.values()):
                vector.fill_(number)
            version = ask(worker, request_of(worker))
            rows = mine.rows[1], theirs.rows[peer]
            results.append([version, *(row.version for row in rows), *(row.vector for row in rows)])
            results[-1] += [*worker.me.memory.values(), *theirs.rows[peer].memory.values()]
        for here, there in zip(*results, strict=True):
            assert torch.equal(here, there) if isinstance(here, Tensor) else here == there
        assert results[0][:3] == [4, 1, 4]


@pytest.mark.parametrize("row_format", [RowFormat(), THREE, RowFormat("int8")], ids=["whole", "in parts", "int8"])
@pytest.mark.parametrize("asker", [0, 1])
def test_an_exchange_of_rows_on_devices_is_one_of_rows_in_arenas(row_format: RowFormat, asker: int) -> None:
    """A processor stands in for the devices. What is in the arenas is not looked at but as a copy."""
    results = []
    for device in (None, torch.device("cpu")):
        with hosts([0, 1], row_format=row_format, device=device) as (zero, one):
            for host in (zero, one):
                assert (host.there is None) == (device is None)
                for rank in host.here if device is not None else ():
                    host.client.arena.vector("row", rank).fill_(torch.nan)
            for _ in range(4):
                with one.rows[1].writing():
                    one.rows[1].vector.mul_(1.5)
                ask((zero, one)[asker].workers[asker], Exchange(1 - asker, pair_average_))
            results.append([zero.rows[0].vector.clone(), one.rows[1].vector.clone()])
    for arenas, devices in zip(*results, strict=True):
        assert torch.equal(arenas, devices)


def test_a_fetch_between_hosts() -> None:
    with hosts([0, 1], "asgd") as (zero, one):
        into = one.workers[1].me.memory["pulled"]
        with zero.rows[2].writing():
            zero.rows[2].vector.mul_(2.0)
        assert ask(one.workers[1], Fetch(2, into)) == 1
        assert torch.equal(into, zero.rows[2].vector)
        assert even(zero, one)


def test_a_row_that_is_here_needs_no_client() -> None:
    with hosts([0, 0, 1]) as (zero, one):
        assert ask(zero.workers[0], Exchange(1, pair_average_)) == 1
        assert torch.equal(zero.rows[0].vector, zero.rows[1].vector)
        assert (zero.client.traffic(), one.server.traffic()) == ({}, {})


def test_exchanges_and_bytes_are_counted_where_they_belong() -> None:
    with hosts([0, 1, 1]) as (zero, one):
        ask(zero.workers[0], Exchange(2, pair_average_))
        assert ask(zero.workers[0], Exchange(2, pair_average_)) == 2
        assert zero.arena.counts.exchanges.tolist() == [[0, 0, 2], [0] * 3, [0] * 3]
        asked = zero.client.traffic()[1]
        assert (asked.exchanges, asked.lost) == (2, 0)
        assert 2 * 4 * LONG < asked.sent_bytes < 2 * 4 * LONG + 2000
        assert 2 * 4 * LONG < asked.received_bytes < 2 * 4 * LONG + 2000
        assert asked.waited_s > 0
        until(lambda: one.server.traffic()[0].sent_bytes > 2 * 4 * LONG)
        answered = one.server.traffic()[0]
        assert (answered.exchanges, answered.lost) == (2, 0)
        assert answered.received_bytes > 2 * 4 * LONG


# The processor is the learners' ---------------------------------------------------------------------------------------


def test_an_exchange_rests_while_the_allowance_is_spent_unless_its_learner_waits() -> None:
    with hosts([0, 1]) as (zero, one):
        looked = threading.Event()

        def busy() -> float:  # cores that are never idle, and a clock that stands still: what was spent stays spent
            looked.set()
            return 0.0

        zero.client.cpu_budget = cpu_budget = CpuBudget(0.05, 1, lambda: 0.0, [busy])
        worker, before = zero.workers[0], one.rows[1].vector.clone()
        looked.clear()
        handle = worker.engine.perform(Begin(Exchange(1, pair_average_)))
        until(lambda: worker.remote.through)  # nothing spent yet
        assert worker.engine.perform(Wait(handle)) == 1
        assert not torch.equal(one.rows[1].vector, before)
        cpu_budget.spent(1.0)
        looked.clear()
        handle = worker.engine.perform(Begin(Exchange(1, pair_average_)))
        assert looked.wait(60)
        assert cpu_budget.pause() > 10
        assert one.rows[1].version == 1
        assert not handle.done
        assert worker.engine.perform(Wait(handle)) == 2
        assert one.rows[1].version == 2
        cpu_budget.spent(1.0)
        assert ask(worker, Exchange(1, pair_average_)) == 3  # a learner that waits from the beginning
        assert cpu_budget.pause() > 10


# Sums -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_format", [RowFormat(), BF16, THREE])
def test_an_exchange_lands_on_the_row_as_it_is_then(row_format: RowFormat) -> None:
    """Anything the learner adds while its row is in flight is neither lost nor mixed."""
    with hosts([0, 1], row_format=row_format) as (zero, one):
        worker = zero.workers[0]
        one.rows[1].lock.acquire()
        before = zero.rows[0].vector.clone(), one.rows[1].vector.clone()
        handle = ask(worker, Begin(Exchange(1, pair_average_)))
        for _ in range(5):
            with zero.rows[0].writing():
                zero.rows[0].vector.add_(1.0)
        assert not handle.done
        one.rows[1].lock.release()
        assert ask(worker, Wait(handle)) == 1
        sums = zero.rows[0].vector.double() + one.rows[1].vector.double()
        torch.testing.assert_close(sums, (before[0].double() + before[1].double() + 5), rtol=0, atol=1e-5)


# One exchange at a time for each row ---------------------------------------------------------------------------------


def orders(rows: list[Tensor], pairs: Sequence[tuple[int, int]]) -> list[list[Tensor]]:
    """Rows after pairs average one after another, in any order."""
    found = []
    for order in itertools.permutations(pairs):
        now = [row.clone() for row in rows]
        for mine, theirs in order:
            pair_average_(now[mine], now[theirs])
        found.append(now)
    return found


@pytest.mark.parametrize(
    ("homes", "pairs"),
    [
        ([0, 1], [(0, 1), (1, 0)]),
        ([0, 1, 2], [(0, 1), (1, 2), (2, 0)]),
        ([0, 1, 1, 2], [(0, 1), (1, 3), (3, 2), (2, 0)]),
    ],
)
def test_exchanges_at_the_same_moment_come_out_as_one_after_another(
    homes: list[int], pairs: list[tuple[int, int]]
) -> None:
    """Two who ask each other, and circles. Halves of both at once would swap rows instead of averaging them."""
    with hosts(homes) as found:
        rows = [found[home].rows[rank] for rank, home in enumerate(homes)]
        for number in range(10):
            for rank, row in enumerate(rows):
                row.vector.copy_(start(rank + len(rows) * number))
            before = [row.vector.clone() for row in rows]
            handles = [
                (rank, ask(found[homes[rank]].workers[rank], Begin(Exchange(peer, pair_average_))))
                for rank, peer in pairs
            ]
            for rank, handle in handles:
                assert ask(found[homes[rank]].workers[rank], Wait(handle)) is not None
            now = torch.stack([row.vector for row in rows])
            assert any(torch.allclose(now, torch.stack(want), atol=1e-5) for want in orders(before, pairs)), number
        assert even(*found)


def test_a_row_that_is_under_way_takes_part_in_nothing_else() -> None:
    """Learner 2 of its host finds it away, now and at its next step, and tries another next; learner 3 of another host
    waits until it is back."""
    with hosts([0, 1, 0, 1]) as (zero, one):
        one.rows[1].lock.acquire()
        mixing = ask(zero.workers[0], Begin(Exchange(1, pair_average_)))
        until(lambda: zero.arena.row_versions.in_flight[0])
        assert ask(zero.workers[2], Exchange(0, pair_average_)) is None
        deferred = ask(zero.workers[2], Begin(Exchange(0, pair_average_)))
        assert ask(zero.workers[2], Wait(deferred)) is None
        assert torch.equal(zero.rows[2].vector, start(2))
        waits = ask(one.workers[3], Begin(Exchange(0, pair_average_)))
        until(lambda: bool(zero.server._sessions))
        assert not waits.done
        one.rows[1].lock.release()
        assert ask(zero.workers[0], Wait(mixing)) == 1
        assert ask(one.workers[3], Wait(waits)) is not None
        middle = start(0).lerp(start(1), 0.5)
        assert torch.equal(one.rows[1].vector, middle)
        assert torch.equal(one.rows[3].vector, start(3).lerp(middle, 0.5))
        assert torch.equal(zero.rows[0].vector, one.rows[3].vector)
        assert ask(zero.workers[2], Exchange(0, pair_average_)) is not None
        assert not zero.arena.row_versions.in_flight.any()


def test_a_row_comes_back_from_an_asker_that_dies() -> None:
    """Learner 1 has been given row 0 and dies before it answers: row 0 is as it was, and free again."""
    with hosts([0, 1, 1]) as (zero, one):
        one.rows[1].lock.acquire()
        ask(one.workers[1], Begin(Exchange(0, pair_average_)))
        until(lambda: zero.arena.row_versions.in_flight[0])
        zero.arena.liveness.alive[1] = 0
        zero.client.living_changed()
        assert not zero.arena.row_versions.in_flight[0]
        assert ask(one.workers[2], Exchange(0, pair_average_)) is not None
        middle = start(2).lerp(start(0), 0.5)
        assert torch.equal(zero.rows[0].vector, middle)
        one.arena.liveness.alive[1] = 0
        one.rows[1].lock.release()
        until(lambda: one.arena.requests.done[1] == one.arena.requests.asked[1])
        assert torch.equal(one.rows[1].vector, start(1))
        assert torch.equal(zero.rows[0].vector, middle)


@pytest.mark.parametrize("when", ["request", "exchange", "row", "settled", "done"])
def test_a_request_to_a_lower_rank_is_done_once_though_its_link_breaks(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link breaks under any of its messages, or right behind one."""
    with hosts([0, 1]) as (zero, one):
        broken = break_links(monkeypatch, when)
        assert ask(one.workers[1], Exchange(0, pair_average_)) is not None
        assert broken
        middle = start(1).lerp(start(0), 0.5)
        assert torch.equal(zero.rows[0].vector, middle)
        assert torch.equal(one.rows[1].vector, middle)
        assert zero.rows[0].version == one.rows[1].version == 1
        assert not zero.arena.row_versions.in_flight.any()


# Strategies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "homes"),
    [
        ("adpsgd", [0, 1]),
        ("adpsgd:fixed-ring", [0, 0, 1, 1]),
        ("adpsgd:random", [0, 1, 2]),
        ("adpsgd:random weights=progress", [0, 1, 2]),
        ("asgd", [0, 0, 1]),
        ("asgd period=3", [0, 1]),
        ("asgd staleness_aware=true", [0, 1, 2]),
        ("easgd period=2", [0, 1, 1]),
        ("rennala", [0, 1, 1]),
        ("a2cid2 mixing_rate=0.3 pull=0.8", [0, 0, 1]),
        ("async-gasloc:random period=2 momentum=0.3", [0, 1, 1]),
        ("divshare fragments=3", [0, 1, 1]),
        ("async-diloco period=2", [0, 1]),
        ("async-diloco period=2 decay=0.1 cutoff=20 keep=0.3", [0, 1]),
        ("bsp period=3 quorum=2", [0, 1, 1]),
        ("bmuf period=2 nesterov=true guard=9", [0, 0, 1]),
    ],
)
@pytest.mark.parametrize("row_format", [RowFormat(), RowFormat("bf16", 2)])
def test_strategies_train_over_hosts(name: str, homes: list[int], row_format: RowFormat) -> None:
    """They do not know. Each host goes through the epoch; the strategy keeps its sum, and learns."""
    with hosts(homes, name, 2 * CHUNK + 3, row_format) as found:
        rows = [found[home].rows[rank].vector for rank, home in enumerate(homes)]
        rows += [row.vector for row in found[0].rows[len(homes) :]]
        traits = found[0].cluster.strategy.traits
        before = torch.stack(rows).double()
        answers = train(found, plan(6, len(homes), rate=0.0))
        assert [answer for answer in answers if answer.problem] == []
        if keeps_sum(found[0].cluster.strategy):
            torch.testing.assert_close(torch.stack(rows).double().sum(0), before.sum(0), rtol=0, atol=2e-5)
        train(found, plan(10, len(homes), rate=0.3, epoch=1))
        model = rows[-1] if traits.model == "centre" else torch.stack(rows).mean(0)
        learner = found[0].cluster.task.build()
        assert learner.evaluate(model, "dev").mean_loss < learner.evaluate(start(0, 2 * CHUNK + 3), "dev").mean_loss
        trained = sum(int(host.arena.counts.frames.sum()) for host in found)
        assert trained == len(found) * 16 * MINIBATCH
        assert sum(host.client.traffic()[n].lost for host in found for n in host.client.traffic()) == 0
        assert sum(int(host.arena.counts.exchanges.sum()) for host in found) > 0
        assert even(*found)


def test_a_client_that_is_closed_while_it_rests_ends() -> None:
    """The rest may take the byte that is to end the thread."""
    with hosts((0, 1)) as (host, _):
        channel = host.client.channels[0]

        class Rest:
            def pause(self) -> float:
                host.client.network.closing = True
                os.write(channel._bell, b"!")
                return 60.0

        host.client.cpu_budget = cast(CpuBudget, Rest())
        host.arena.requests.asked[0] = host.arena.requests.done[0] + 1
        os.write(channel._bell, b"!")
        thread = channel._thread
        assert thread is not None
        until(lambda: not thread.is_alive())
