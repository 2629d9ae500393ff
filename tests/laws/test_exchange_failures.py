"""Outcomes of an exchange between hosts when hosts, links and learners fail, or talk nonsense."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.codecs import CODECS
from roundelay.algorithms.parameter_server import Report
from roundelay.core.effects import Begin, Exchange, Fetch, Wait
from roundelay.core.errors import UserError
from roundelay.runtime.hosts.transport.wire import Link, LinkClosed, LinkOptions
from roundelay.runtime.procs.worker import Worker
from support.overwriting import Overwrite
from support.two_hosts import LONG, SECRET, Host, Impostor, ask, even, hosts, start
from support.until import until


def test_a_dead_learner_of_another_host_is_none() -> None:
    """It is none whether this host has heard of it or not."""
    with hosts([0, 1]) as (zero, one):
        one.arena.liveness.alive[1] = 0
        assert ask(zero.workers[0], Exchange(1, pair_average_)) is None
        assert zero.client.traffic()[1].lost == 1
        zero.arena.liveness.alive[1] = 0
        assert ask(zero.workers[0], Exchange(1, pair_average_)) is None
        handle = ask(zero.workers[0], Begin(Exchange(1, pair_average_)))
        assert handle.done
        assert handle.reply is None
        assert zero.client.traffic()[1].exchanges == 1
        assert torch.equal(zero.rows[0].vector, start(0))
        assert torch.equal(one.rows[1].vector, start(1))
        assert zero.arena.counts.exchanges.sum() == 0
        assert even(zero, one)


def silent(link: Any) -> None:
    with suppress(Exception):
        link.receive(None)
        link.receive(None)


def gone_at_once(link: Any) -> None:
    link.close()


def gone_after_the_request(link: Any) -> None:
    with suppress(Exception):
        link.receive(None)
        link.close()


def gone_in_the_middle_of_the_reply(link: Any) -> None:
    with suppress(Exception):
        request = link.receive(None)
        Impostor.half(link, {"n": request.header["n"], "version": 1}, bytes(4 * LONG))


def talks_nonsense(link: Any) -> None:
    with suppress(Exception):
        link.receive(None)
        link.write([memoryview(b"x" * 100)])
        link.receive(None)


def answers_too_little(link: Any) -> None:
    with suppress(Exception):
        request = link.receive(None)
        link.send("row", {"n": request.header["n"], "version": 1}, [bytes(4 * LONG - 4)])
        link.receive(None)


BAD_ENDS = (
    silent,
    gone_at_once,
    gone_after_the_request,
    gone_in_the_middle_of_the_reply,
    talks_nonsense,
    answers_too_little,
)


@pytest.mark.parametrize("behave", BAD_ENDS)
@pytest.mark.parametrize("heard", [True, False])
def test_a_host_that_fails_in_the_middle_costs_one_exchange_and_tears_nothing(
    behave: Callable[[Any], None], heard: bool
) -> None:
    """Either somebody hears that it is dead, or patience ends."""
    impostor = Impostor(behave)
    addresses = {1: impostor.address}
    with hosts([0, 1], addresses=addresses, patience=60.0 if heard else 0.5) as (zero, one):
        worker = zero.workers[0]
        handle = ask(worker, Begin(Exchange(1, pair_average_)))
        if heard:
            until(lambda: impostor.met > 0)
            zero.client.peers_changed({})
        assert ask(worker, Wait(handle)) is None
        assert torch.equal(zero.rows[0].vector, start(0))
        assert zero.rows[0].version == 0
        assert not zero.rows[0].torn
        zero.client.peers_changed({1: one.listener.address})
        zero.client.network.patience = 60.0
        assert ask(worker, Exchange(1, pair_average_)) == 1
        assert torch.equal(zero.rows[0].vector, one.rows[1].vector)
    impostor.close()


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("when", ["exchange", "give", "found", "row"])
def test_an_exchange_whose_link_breaks_is_done_once(when: str, middle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a message, or in the middle of it."""
    with hosts([0, 1]) as (zero, one):
        ask(zero.workers[0], Exchange(1, pair_average_))
        for rank, row in ((0, zero.rows[0]), (1, one.rows[1])):
            row.vector.copy_(start(rank))
        broken: list[str] = []
        whole = Link.send

        def send(link: Link, kind: str, header: dict[str, Any], payload: Any = ()) -> None:
            if not broken and kind == when:
                broken.append(kind)
                if middle:
                    Impostor.half(link, header, bytes(1000))
                link.close()
            whole(link, kind, header, payload)

        monkeypatch.setattr(Link, "send", send)
        assert ask(zero.workers[0], Exchange(1, pair_average_)) == 2
        assert broken
        mean = start(0).lerp(start(1), 0.5)
        assert torch.equal(zero.rows[0].vector, mean)
        assert torch.equal(one.rows[1].vector, mean)
        assert zero.rows[0].version == one.rows[1].version == 2


def test_a_row_that_somebody_holds_for_ever_counts_as_dead() -> None:
    """A learner stopped in the middle of a step, say."""
    with hosts([0, 1]) as (zero, one):
        one.server.patience = 0.2
        one.rows[1].lock.acquire()
        assert ask(zero.workers[0], Exchange(1, pair_average_)) is None
        one.rows[1].lock.release()
        assert ask(zero.workers[0], Exchange(1, pair_average_)) == 1
        assert even(zero, one)


def test_what_a_dead_learner_has_asked_for_does_not_change_the_row_of_its_successor() -> None:
    with hosts([0, 1]) as (zero, one):
        one.rows[1].lock.acquire()
        ask(zero.workers[0], Begin(Exchange(1, pair_average_)))
        links = zero.client.channels[0].carrier.links._links
        until(lambda: any(link.sent_bytes > 4 * LONG for link in list(links.values())))
        successor = Worker(zero.spec(0))  # the first is dead now
        with zero.rows[0].writing():
            zero.rows[0].vector.fill_(7.0)
        one.rows[1].lock.release()
        assert ask(successor, Exchange(1, pair_average_)) == 2
        assert torch.equal(one.rows[1].vector, torch.full((LONG,), 7.0).lerp(start(0).lerp(start(1), 0.5), 0.5))
        assert torch.equal(zero.rows[0].vector, one.rows[1].vector)
        assert zero.rows[0].version == 2


# Nonsense -------------------------------------------------------------------------------------------------------------

PAIR = {"name": "pair_average_", "numbers": {}}
GOOD = {
    "n": 1,
    "peer": 1,
    "rule": PAIR,
    "since": None,
    "private": 0,
    "wire": "fp32",
    "chunks": [0, 4],
}
WRONG: list[tuple[str, dict[str, Any], int]] = [
    ("steal", {}, 4 * LONG),
    ("exchange", {"n": -1}, 4 * LONG),
    ("exchange", {"peer": 0}, 4 * LONG),
    ("exchange", {"peer": 2}, 4 * LONG),
    ("exchange", {"rule": {"name": "os.system", "numbers": {}}}, 4 * LONG),
    ("exchange", {"rule": None}, 4 * LONG),
    ("exchange", {"private": 1}, 8 * LONG),
    ("exchange", {"private": 10**9}, 4 * LONG),
    ("exchange", {"since": 3}, 4 * LONG),
    ("exchange", {"since": -3}, 4 * LONG),
    ("exchange", {"wire": "fp8"}, 4 * LONG),
    ("exchange", {"wire": "bf16"}, 4 * LONG),
    ("exchange", {"wire": "int8"}, CODECS["int8"].bytes_of(LONG) - 1),
    ("exchange", {"wire": "bf16", "memory": "row"}, 2 * LONG),
    ("exchange", {"wire": "bf16", "memory": ["pulled"]}, 2 * LONG),
    ("exchange", {"wire": "bf16", "memory": None}, 2 * LONG),
    ("exchange", {"chunks": [0, 5]}, 4 * LONG),
    ("exchange", {"chunks": [2, 2]}, 0),
    ("exchange", {"chunks": [3, 1]}, 0),
    ("exchange", {"chunks": [0, 4.0]}, 4 * LONG),
    ("exchange", {"both": True}, 4 * LONG),
    ("exchange", {"both": True, "along": ["m"]}, 0),
    ("exchange", {"both": 1}, 0),
    ("request", {"both": True, "peer": 1}, 0),
    ("exchange", {}, 4 * LONG - 4),
    ("exchange", {}, 0),
    ("fetch", {}, 4),
    ("fetch", {"peer": 7}, 0),
    ("again", {"n": None}, 0),
]


@pytest.mark.parametrize(("kind", "changed", "size"), WRONG)
def test_a_request_that_makes_no_sense_closes_its_link_and_changes_nothing(
    kind: str, changed: dict[str, Any], size: int
) -> None:
    hello = {"what": "exchange", "host": 0, "rank": 0, "life": "x"}
    with hosts([0, 1]) as (zero, one):
        link = Link.connect(one.listener.address, SECRET, hello, 60.0, LinkOptions(largest=9 * LONG))
        with suppress(LinkClosed):  # a frame that is too large is not read to its end
            link.send(kind, {**GOOD, **changed}, [bytes(size)])
        with pytest.raises(LinkClosed):
            link.receive(60.0)
        until(lambda: one.rejected.malformed == 1)
        link.close()
        assert torch.equal(one.rows[1].vector, start(1))
        assert one.rows[1].version == 0
        assert ask(zero.workers[0], Exchange(1, pair_average_)) == 1


@pytest.mark.parametrize("hello", [{}, {"rank": 1, "host": 0}, {"rank": 2, "host": 0}, {"rank": "0", "host": 0}])
def test_only_learners_of_other_hosts_have_a_desk(hello: dict[str, Any]) -> None:
    with hosts([0, 1]) as (_, one):
        link = Link.connect(one.listener.address, SECRET, {"what": "exchange", **hello}, 60.0)
        with pytest.raises(LinkClosed):
            link.receive(60.0)
        link.close()
        until(lambda: one.rejected.malformed == 1)


def test_the_good_request_is_good() -> None:
    """The wrong ones are made of this one."""
    with hosts([0, 1]) as (_, one):
        link = Link.connect(one.listener.address, SECRET, {"what": "exchange", "host": 0, "rank": 0}, 60.0)
        for _ in range(2):  # the same number again is another request: only "again" asks what became of it
            link.send("exchange", GOOD, [bytes(4 * LONG)])
            found = torch.frombuffer(link.receive(60.0).payload, dtype=torch.float32)
        assert torch.equal(found, start(1) / 2)
        link.send("again", {"n": 1})
        assert torch.equal(torch.frombuffer(link.receive(60.0).payload, dtype=torch.float32), start(1) / 2)
        link.close()
        assert torch.equal(one.rows[1].vector, start(1) / 4)


def test_what_another_host_cannot_do_is_said() -> None:
    with hosts([0, 1], "asgd") as (_, one):
        worker, elsewhere = one.workers[1], torch.zeros(LONG)
        with pytest.raises(UserError, match="only use vectors that the strategy has declared"):
            ask(worker, Fetch(2, elsewhere))
        with pytest.raises(UserError, match="Overwrite with row 2, of another host: only Exchange, Fetch and Gather"):
            ask(worker, Overwrite(2, elsewhere))
        with pytest.raises(UserError, match="is not known by name"):
            ask(worker, Exchange(2, lambda mine, theirs: None))


NUMBERS = st.sampled_from([0, 1, -1, 0.5, 1e300, -1e300, 2**53, 2**63, 2**70, 10**300, True, None, "1", [1]])
RULES = st.one_of(
    st.just(PAIR),
    st.fixed_dictionaries({"name": st.just("Pull"), "numbers": st.fixed_dictionaries({"alpha": NUMBERS})}),
    st.fixed_dictionaries(
        {
            "name": st.just("Report"),
            "numbers": st.dictionaries(st.sampled_from([field.name for field in fields(Report)]), NUMBERS),
        }
    ),
    st.fixed_dictionaries({"name": st.just("set_centre_"), "numbers": st.just({})}),
)
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "n": NUMBERS,
        "peer": NUMBERS,
        "rule": st.one_of(RULES, NUMBERS),
        "private": NUMBERS,
        "chunks": st.lists(NUMBERS),
        "since": st.one_of(NUMBERS, st.just(2**61)),
        "wire": st.sampled_from([*CODECS, "", None]),
        "memory": st.sampled_from(["", "row", "pulled", 3, None]),
    },
)


@given(
    kind=st.sampled_from(["exchange", "request", "fetch", "again"]),
    rule=RULES,
    words=WORDS,
    size=st.sampled_from([0, 8 * 37, 5, *(codec.bytes_of(37) for codec in CODECS.values())]),
    aged=st.booleans(),
)
def test_whatever_is_asked_is_answered_or_ends_its_link(
    kind: str, rule: dict[str, Any], words: dict[str, Any], size: int, aged: bool
) -> None:
    """The desk goes on for the next who comes; no row stays half written, and nothing is wrong with the run."""
    good = {**GOOD, "chunks": [0, 1], "rule": rule, "private": int(size == 8 * 37), "since": 0 if aged else None}
    hello = {"what": "exchange", "host": 0, "rank": 0, "life": "x"}
    with _one_host() as one:
        link = Link.connect(one.listener.address, SECRET, hello, 60.0)
        link.send(kind, {**good, **words}, [bytes(size)])
        with suppress(LinkClosed):
            link.receive(60.0)
            link.send("fetch", {"n": 77, "peer": 1})
            assert link.receive(60.0).header["n"] == 77
        link.close()
        assert not one.server.error
        assert even(one)


@contextmanager
def _one_host() -> Iterator[Host]:
    """Kept from one example to the next."""
    global _kept  # noqa: PLW0603
    if _kept is None:
        _kept = Host(1, [0, 1], "asgd", 37)
    yield _kept


_kept: Host | None = None


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Iterator[None]:
    yield
    if _kept is not None:
        _kept.close()
