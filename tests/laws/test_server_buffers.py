"""Buffers of a host's server: as many as exchanges are in flight, not as many as learners have ever asked."""

import threading

import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.elastic import Pull
from roundelay.core.effects import Begin, Exchange, Wait
from roundelay.runtime.hosts.exchange.buffer_pool import BufferPool
from roundelay.runtime.hosts.exchange.row_format import Buffer
from roundelay.runtime.hosts.exchange.server import BUFFERS_A_ROW
from roundelay.runtime.hosts.transport.wire import Link
from support.two_hosts import LONG, Host, ask, break_links, hosts, start
from support.until import until

ASKERS = 8
HOMES = [1] + [0] * ASKERS
"""The learner that is asked has the lowest rank, and the centre with it: rows of all the others come to its host."""


def settled(host: Host) -> bool:
    """Has every asker all that it has asked for?"""
    return host.server.buffers.taken == 0


def test_learners_that_ask_one_after_another_need_one_buffer_together() -> None:
    with hosts(HOMES, "easgd") as (askers, asked):
        for worker in askers.workers.values():
            assert ask(worker, Exchange(1 + ASKERS, Pull(0.3))) is not None
            until(lambda: settled(asked))
        assert asked.server.buffers.peak == 1


def test_a_host_that_all_ask_at_once_has_no_more_buffers_than_its_rows_need() -> None:
    """The others wait in their senders' sockets; all are served."""
    with hosts(HOMES, "easgd") as (askers, asked):
        asked.rows[-1].lock.acquire()
        begun = [ask(worker, Begin(Exchange(1 + ASKERS, Pull(0.3)))) for worker in askers.workers.values()]
        until(lambda: len(asked.server._sessions) == ASKERS)
        until(lambda: asked.server.buffers.taken == 2 * BUFFERS_A_ROW)
        asked.rows[-1].lock.release()
        for worker, handle in zip(askers.workers.values(), begun, strict=True):
            assert ask(worker, Wait(handle)) is not None
        until(lambda: settled(asked))
        assert asked.server.buffers.peak == 2 * BUFFERS_A_ROW < ASKERS


def test_a_reply_that_is_not_heard_of_is_kept_until_its_asker_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says whether it has arrived, and it may be asked for again."""
    with hosts([0, 1]) as (zero, one):
        broken = break_links(monkeypatch, "settled")
        assert ask(zero.workers[0], Exchange(1, pair_average_)) is not None
        until(lambda: broken != [])
        session = one.server._sessions[0, False]
        until(lambda: session._link is not None and session._link.closed)
        one.server.living_changed()
        assert one.server.buffers.taken == 1
        one.arena.liveness.alive[0] = 0
        one.server.living_changed()
        until(lambda: settled(one))  # the thread of a link that ends looks, too
        middle = start(0).lerp(start(1), 0.5)
        assert torch.equal(one.rows[1].vector, middle)


def test_whoever_asks_after_its_death_for_a_reply_that_is_not_kept_is_told_that_it_is_gone() -> None:
    """Were it told that its exchange is unknown, it would send its row again, and the visited one be changed twice."""
    with hosts([0, 1]) as (zero, one):
        whole, heard = Link.send, list[str]()

        def send(link: Link, kind: str, header: dict[str, object], payload: object = ()) -> None:
            if kind == "row":
                link.close()
                one.arena.liveness.alive[0] = 0
            heard.append(kind)
            whole(link, kind, header, payload)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Link, "send", send)
            assert ask(zero.workers[0], Exchange(1, pair_average_)) is None
        assert heard.count("exchange") == 1
        assert one.rows[1].version == 1
        assert zero.rows[0].version == 0
        until(lambda: settled(one))  # the thread of a link that ends looks, too


def test_who_waits_for_a_buffer_has_the_next_that_comes_back() -> None:
    pool = BufferPool(lambda: Buffer(LONG), 1, 600.0)
    first = pool.take()
    found: list[Buffer] = []
    waiting = threading.Thread(target=lambda: found.append(pool.take()), daemon=True)
    waiting.start()
    assert not found
    pool.give_back(first)
    waiting.join(60)
    assert found == [first]
    assert pool.peak == 1


def test_where_no_buffer_comes_back_there_is_one_more() -> None:
    """Rows of several hosts may wait for each other by way of their buffers."""
    pool = BufferPool(lambda: Buffer(LONG), 2, 0.001)
    out = [pool.take() for _ in range(5)]
    assert len(set(map(id, out))) == pool.peak == pool.taken == 5
    for buffer in out:
        pool.give_back(buffer)
    again = [pool.take() for _ in range(2)]
    assert {*map(id, again)} <= {*map(id, out)}
