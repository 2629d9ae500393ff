"""Exchanges between hosts whose two rows travel at the same time, one each way."""

import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Exchange
from roundelay.runtime.hosts.transport.wire import Link, LinkClosed, LinkOptions
from roundelay.runtime.messages import Frame
from support.two_hosts import LONG, SECRET, Host, ask, even, hosts, start
from support.until import until

HELLO = {"what": "exchange", "host": 0, "rank": 0, "life": "x"}
BOTH = {"n": 1, "peer": 1, "rule": {"name": "pair_average_", "numbers": {}}, "chunks": [0, 4], "both": True}


def begun(one: Host) -> tuple[Link, Frame]:
    """An exchange of learner 0 that has said what it wants, and what comes before its row has gone."""
    link = Link.connect(one.listener.address, SECRET, HELLO, 60.0, LinkOptions(largest=9 * LONG))
    link.send("exchange", BOTH)
    return link, link.receive(60.0)


def of(frame: Frame) -> torch.Tensor:
    return torch.frombuffer(frame.payload, dtype=torch.float32)


def in_flight(host: Host, rank: int) -> bool:
    return host.rows[rank].away


def test_the_visited_row_comes_before_the_other_has_gone_and_is_in_flight_until_then() -> None:
    with hosts([0, 1, 1]) as (_, one):
        link, found = begun(one)
        assert found.kind == "found"
        assert torch.equal(of(found), start(1))
        assert in_flight(one, 1)
        assert ask(one.workers[2], Exchange(1, pair_average_)) is None
        with one.rows[1].writing():
            one.rows[1].vector.add_(1.0)  # a step meanwhile
        link.send("give", {"n": 1}, [bytes(4 * LONG)])
        reply = link.receive(60.0)
        assert (reply.kind, reply.header["version"], len(reply.payload)) == ("row", 2, 0)
        assert not in_flight(one, 1)
        torch.testing.assert_close(one.rows[1].vector, start(1) / 2 + 1.0, rtol=0, atol=1e-6)
        link.send("again", {"n": 1})  # the reply with the row, for who has not had it
        assert torch.equal(of(link.receive(60.0)), start(1))
        link.close()


@pytest.mark.parametrize("end", ["link", "learner", "row"])
def test_a_row_that_does_not_come_leaves_the_visited_one_as_it_was(end: str) -> None:
    """The link breaks, its learner dies while the link stands, or the learner of the visited row is replaced."""
    with hosts([0, 1, 1]) as (_, one):
        link, _ = begun(one)
        if end == "link":
            link.close()
        elif end == "learner":
            one.arena.liveness.alive[0] = 0
            one.server.living_changed()
            with pytest.raises(LinkClosed):
                link.receive(60.0)
        else:
            one.rows[1].check_in(1)  # the first lease: as a replacement does that begins
            link.send("give", {"n": 1}, [bytes(4 * LONG)])
            assert link.receive(60.0).kind == "gone"
        until(lambda: not one.rows[1].away and one.server.buffers.taken == 0)
        assert torch.equal(one.rows[1].vector, start(1))
        assert one.rows[1].version == 0
        assert ask(one.workers[2], Exchange(1, pair_average_)) == 1
        link.close()


def test_a_row_of_another_size_closes_its_link_and_changes_nothing() -> None:
    with hosts([0, 1]) as (_, one):
        for number, size in ((1, 4 * LONG - 4), (2, 4 * LONG)):
            link, _ = begun(one)
            link.send("give", {"n": number}, [bytes(size)])
            with pytest.raises(LinkClosed):
                link.receive(60.0)
            until(lambda: one.rejected.malformed == number)  # noqa: B023
        assert torch.equal(one.rows[1].vector, start(1))
        assert even(one)


def test_who_is_refused_may_ask_again_over_the_same_link() -> None:
    """Its row was on its way all the same."""
    with hosts([0, 1]) as (zero, one):
        ask(zero.workers[0], Exchange(1, pair_average_))
        links = zero.client.channels[0].carrier.links._links
        link = links[1]
        one.arena.liveness.alive[1] = 0
        assert ask(zero.workers[0], Exchange(1, pair_average_)) is None
        one.arena.liveness.alive[1] = 1
        assert ask(zero.workers[0], Exchange(1, pair_average_)) == 2
        assert links[1] is link
        assert torch.equal(zero.rows[0].vector, one.rows[1].vector)
