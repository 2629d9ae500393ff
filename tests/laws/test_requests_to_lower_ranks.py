"""A learner that wants a row of lower rank asks that rank's client, which makes the ordinary exchange."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.elastic import Pull
from roundelay.core.effects import Begin, Exchange, Wait
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.hosts.transport.wire import Link, LinkClosed
from roundelay.runtime.procs.worker import Worker
from support.two_hosts import LONG, SECRET, Host, ask, even, hosts, start
from support.until import together, until

PAIR = {"name": "pair_average_", "numbers": {}}
GOOD: dict[str, Any] = {"n": 1, "peer": 0, "rule": PAIR, "since": None, "private": 0, "wire": "fp32", "chunks": [0, 4]}
HELLO = {"what": "exchange", "host": 1, "rank": 1, "life": "x", "requests": True}


def test_the_asker_is_the_first_of_the_two_rows_whichever_travels() -> None:
    """A rule that treats its two rows differently, without keeping them for itself."""
    for asker in (0, 1):
        with hosts([0, 1]) as found, hosts([0, 0]) as (single,):
            for owner in (found[asker], single):
                rule = Pull(0.3)
                assert ask(owner.workers[asker], Exchange(1 - asker, rule)) == 1
            for rank in (0, 1):
                assert torch.equal(found[rank].rows[rank].vector, single.rows[rank].vector)


def test_an_exchange_does_not_wait_behind_a_request_of_its_row_to_a_lower_rank() -> None:
    """Learner 1 waits for row 0, which is locked; learner 2 gets row 1 all the same."""
    with hosts([0, 1, 2]) as (zero, one, two):
        zero.rows[0].lock.acquire()
        waits = ask(one.workers[1], Begin(Exchange(0, pair_average_)))
        until(lambda: bool(zero.server._sessions))
        assert ask(two.workers[2], Exchange(1, pair_average_)) is not None
        assert not waits.done
        middle = start(2).lerp(start(1), 0.5)
        torch.testing.assert_close(one.rows[1].vector, middle)
        zero.rows[0].lock.release()
        assert ask(one.workers[1], Wait(waits)) is not None
        torch.testing.assert_close(zero.rows[0].vector, middle.lerp(start(0), 0.5))
        assert even(zero, one, two)


@pytest.mark.parametrize("row_format", [RowFormat(), RowFormat("bf16", 2)], ids=["fp32", "bf16"])
def test_sums_are_kept_and_nothing_is_lost_though_links_break_all_the_time(
    row_format: RowFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learners of three hosts, up and down: a fifth of all messages breaks its link, before or behind it."""
    homes, times, chance, whole = [0, 1, 2, 0, 1, 2], 10, np.random.default_rng(0), Link.send
    broken: list[str] = []

    def send(link: Link, kind: str, header: dict[str, Any], payload: Any = ()) -> None:
        fate = chance.random() if kind != "hello" else 1.0
        if fate < 0.2:
            broken.append(kind)
        if fate < 0.1:
            link.close()
        whole(link, kind, header, payload)
        if fate < 0.2:
            link.close()

    with hosts(homes, parameters=CHUNK + 5, row_format=row_format) as found:
        rows = [found[home].rows[rank] for rank, home in enumerate(homes)]
        before = torch.stack([row.vector.double() for row in rows]).sum(0)
        monkeypatch.setattr(Link, "send", send)

        def live(rank: int) -> None:
            worker, numbers = found[homes[rank]].workers[rank], np.random.default_rng(rank)
            for _ in range(times):
                mixing = ask(worker, Begin(Exchange((rank + int(numbers.integers(1, 6))) % 6, pair_average_)))
                with rows[rank].writing():
                    rows[rank].vector.add_(2.0**-5)
                ask(worker, Wait(mixing))

        together(*(partial(live, rank) for rank in range(len(homes))))
        after = torch.stack([row.vector.double() for row in rows]).sum(0)
        torch.testing.assert_close(after, before + len(homes) * times * 2.0**-5, rtol=0, atol=3e-5)
        assert sum(traffic.lost for host in found for traffic in host.client.traffic().values()) == 0
        assert len(broken) > 10
        assert not any(host.arena.row_versions.in_flight.any() for host in found)
        assert even(*found)
        monkeypatch.undo()


def test_an_asker_that_has_given_up_is_not_visited() -> None:
    """The row comes up to it when it waits no longer: neither of the two is changed."""
    with hosts([0, 1]) as (zero, one):
        zero.rows[0].lock.acquire()
        waits = ask(one.workers[1], Begin(Exchange(0, pair_average_)))
        until(lambda: bool(zero.server._sessions))
        addresses = one.client.network.addresses
        one.client.peers_changed({})  # as far as it knows, that host is lost
        assert ask(one.workers[1], Wait(waits)) is None
        zero.rows[0].lock.release()
        until(lambda: sum(traffic.sent_bytes for traffic in zero.client.traffic().values()) > 4 * LONG)
        until(lambda: not zero.arena.row_versions.in_flight[0])
        one.client.peers_changed(addresses)
        for rank, row in ((0, zero.rows[0]), (1, one.rows[1])):
            assert torch.equal(row.vector, start(rank))
            assert row.version == 0
        assert ask(one.workers[1], Exchange(0, pair_average_)) == 1
        assert torch.equal(zero.rows[0].vector, one.rows[1].vector)


def test_what_a_dead_learner_has_asked_a_lower_rank_for_does_not_change_the_row_of_its_successor() -> None:
    with hosts([0, 1]) as (zero, one):
        zero.rows[0].lock.acquire()
        ask(one.workers[1], Begin(Exchange(0, pair_average_)))
        until(lambda: bool(zero.server._sessions))
        successor = Worker(one.spec(1))  # the first is dead now
        with one.rows[1].writing():
            one.rows[1].vector.fill_(7.0)
        zero.rows[0].lock.release()
        assert ask(successor, Exchange(0, pair_average_)) == 1
        middle = torch.full((LONG,), 7.0).lerp(start(0), 0.5)
        assert torch.equal(zero.rows[0].vector, middle)
        assert torch.equal(one.rows[1].vector, middle)


def test_a_dead_learner_of_lower_rank_is_none() -> None:
    with hosts([0, 1]) as (zero, one):
        zero.arena.liveness.alive[0] = 0
        assert ask(one.workers[1], Exchange(0, pair_average_)) is None
        assert one.client.traffic()[0].lost == zero.server.traffic()[1].lost == 1
        assert even(zero, one)
        assert torch.equal(one.rows[1].vector, start(1))


def test_a_flood_of_requests_is_served_one_after_another_and_changes_nothing() -> None:
    """None of them is what a learner of that host waits for, so its server refuses them all."""
    with hosts([0, 1]) as (zero, one):
        link = Link.connect(zero.listener.address, SECRET, HELLO, 60.0)
        for number in range(1, 31):
            link.send("request", {**GOOD, "n": number})
        answers = [link.receive(60.0) for _ in range(30)]
        assert [answer.header["n"] for answer in answers] == list(range(1, 31))
        assert {answer.kind for answer in answers} == {"gone"}
        link.close()
        assert torch.equal(zero.rows[0].vector, start(0))
        assert torch.equal(one.rows[1].vector, start(1))
        assert ask(one.workers[1], Exchange(0, pair_average_)) == 1


OTHER_WAY = {**HELLO, "host": 0, "rank": 0, "requests": False}


def test_what_makes_no_sense_closes_its_link() -> None:
    """A request of a higher rank, and an exchange that says for which request it is."""
    rules: Any = {"name": "Report", "numbers": {}}
    wrong = ({"private": 1}, {"since": 3}, {"asked": 1}, {"peer": 1}, {"rule": rules})
    with hosts([0, 1]) as (zero, one):
        for hello, kind, cases in (
            (HELLO, "request", wrong),
            (OTHER_WAY, "exchange", ({"peer": 1, "asked": -1}, {"peer": 1, "asked": "1"})),
        ):
            host = zero if kind == "request" else one
            for number, changed in enumerate(cases, 1):
                link = Link.connect(host.listener.address, SECRET, hello, 60.0)
                link.largest = 4 * LONG
                link.send(kind, {**GOOD, **changed}, [bytes(4 * LONG)] if kind == "exchange" else ())
                with pytest.raises(LinkClosed):
                    link.receive(60.0)
                until(lambda: host.rejected.malformed == number)  # noqa: B023
                link.close()
        assert ask(one.workers[1], Exchange(0, pair_average_)) == 1


def test_an_exchange_for_a_request_that_nobody_has_made_changes_nothing() -> None:
    with hosts([0, 1]) as (_, one):
        link = Link.connect(one.listener.address, SECRET, OTHER_WAY, 60.0)
        link.largest = 4 * LONG
        link.send("exchange", {**GOOD, "peer": 1, "asked": 1}, [bytes(4 * LONG)])
        assert link.receive(60.0).kind == "gone"
        link.close()
        assert torch.equal(one.rows[1].vector, start(1))
        assert one.rows[1].version == 0


VALUES: st.SearchStrategy[Any] = st.sampled_from([0, 1, -1, 0.5, 2**63, 2**70, True, None, "1", [1], {}])
WORDS = st.dictionaries(st.sampled_from(sorted({*GOOD, "asked"})), VALUES)


@pytest.fixture(scope="module")
def asked() -> Iterator[Host]:
    """The first of two hosts."""
    with hosts([0, 1], parameters=37) as (zero, _):
        yield zero


@given(words=WORDS, kind=st.sampled_from(["request", "again", "exchange"]))
def test_whatever_is_requested_is_answered_or_ends_its_link(asked: Host, words: dict[str, Any], kind: str) -> None:
    link = Link.connect(asked.listener.address, SECRET, HELLO, 60.0)
    link.send(kind, {**GOOD, "chunks": [0, 1], **words})
    with suppress(LinkClosed):
        assert link.receive(60.0).kind in ("gone", "unknown")
    link.close()
    assert not asked.server.error
    assert even(asked)
    assert torch.equal(asked.rows[0].vector, start(0, 37))
