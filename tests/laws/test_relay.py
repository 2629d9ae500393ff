"""A relay between two hosts can pass on what they say, or end it: it cannot change it without being found out.

The one between knows neither the secret nor the keys. Whatever it does to what goes over a link after the handshake
closes that link at once, is counted as tampering, and says between whom.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Exchange
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.means import MeanLinks
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkError, LinkOptions, RejectedConnections, UnknownPeer
from support.mean_hosts import end, mean_host
from support.messages import WORDS, Word
from support.relay import MISCHIEF, PIECE, Relay, relay
from support.two_hosts import ask, even, hosts, start
from support.until import until

SECRET = b"known to the hosts, and to nobody between them"
TAMPERED = "was changed, left out, repeated or put in on its way"
PATIENCE = 20.0


@contextmanager
def through(
    what: str, forward: bool = True, encrypts: bool = True
) -> Iterator[tuple[Link, Link, Relay, RejectedConnections]]:
    """Both ends of a link that goes through somebody else, and what is counted at both."""
    rejected = RejectedConnections()
    options = LinkOptions(encrypts, rejected=rejected)
    listener = Listener(("127.0.0.1", 0), SECRET, {"what": "host"}, PATIENCE, options=options)
    with relay(listener.address, what, forward) as between:
        near = Link.connect(between.address, SECRET, {"host": 1}, PATIENCE, options)
        far = listener.accept(PATIENCE)
        assert far is not None
        try:
            yield near, far, between, rejected
        finally:
            near.close()
            far.close()
            listener.close()


@pytest.mark.parametrize("encrypts", [True, False], ids=["encrypted", "tagged"])
def test_who_only_passes_things_on_is_a_cable(encrypts: bool) -> None:
    with through("change", encrypts=encrypts) as (near, far, between, rejected):
        near.send("row", {"n": 1}, [b"secret weights"])
        assert bytes(far.receive(PATIENCE).payload) == b"secret weights"
        assert between.links == 1
        assert rejected.all == 0


@pytest.mark.parametrize("encrypts", [True, False], ids=["encrypted", "tagged"])
@pytest.mark.parametrize("forward", [True, False], ids=["there", "back"])
@pytest.mark.parametrize("what", MISCHIEF)
def test_control_lines(what: str, forward: bool, encrypts: bool) -> None:
    with through(what, forward, encrypts) as (near, far, between, rejected):
        heard: list[Any] = []
        reasons: list[str] = []
        lines = [MonitoredLink(link, PATIENCE) for link in (near, far)]
        for line in lines:
            line.listen(WORDS, lambda message: heard.append(getattr(message, "n", None)), reasons.append)
        sender = lines[0 if forward else 1]
        sender.say(Word(0))
        until(lambda: heard == [0])
        between.go()
        numbers = count(1)

        def ended() -> bool:
            with suppress(LinkError):  # it may be closed by then
                sender.say(Word(next(numbers)))
            return len(reasons) == 2

        until(ended)
        assert any(TAMPERED in reason and "127.0.0.1" in reason for reason in reasons)
        assert rejected.tampered == 1
        assert heard == list(range(len(heard))), "what came was in order, and nothing came twice"
        assert near.closed
        assert far.closed
        for line in lines:
            line.close()


@pytest.mark.parametrize("what", MISCHIEF)
@pytest.mark.parametrize("forward", [True, False], ids=["there", "back"])
@pytest.mark.parametrize("asker", [0, 1])
def test_exchanges(what: str, forward: bool, asker: int) -> None:
    """The exchange is done once all the same, over another link, to the same bits. Rows travel from the host of the
    lower rank, whoever asks."""
    with hosts([0, 1]) as found, relay(found[1].listener.address, what, forward) as between:
        found[0].client.peers_changed({1: between.address})
        worker = found[asker].workers[asker]
        ask(worker, Exchange(1 - asker, pair_average_))
        for rank in (0, 1):
            found[rank].rows[rank].vector.copy_(start(rank))
        between.go(PIECE)
        assert ask(worker, Exchange(1 - asker, pair_average_)) is not None
        assert between.done
        assert found[0].rejected.tampered + found[1].rejected.tampered == 1
        assert TAMPERED in [*found[0].rejected.reasons, *found[1].rejected.reasons][0]
        middle = start(0).lerp(start(1), 0.5)
        for rank in (0, 1):
            torch.testing.assert_close(found[rank].rows[rank].vector, middle)
            assert found[rank].rows[rank].version == 2
        assert between.links >= 2
        assert even(*found)


@pytest.mark.parametrize("forward", [True, False], ids=["up", "down"])
@pytest.mark.parametrize("what", MISCHIEF)
def test_means(what: str, forward: bool) -> None:
    """No learner gets a mean that is none: the part fails, with a reason."""
    size = 4 * CHUNK
    with through(what, forward) as (near, far, between, rejected):
        sides = []
        for rank, link in enumerate((near, far)):
            link.largest = 4 * size
            sides.append(mean_host(size, MeanLinks([[0], [1]], rank, {1 - rank: link}, {})))
        exact = torch.full((size,), 1.5)
        for number in range(3):
            if number:
                between.go(PIECE)
            for rank, side in enumerate(sides):
                side.means[rank].publish(torch.full((size,), 1.0 + rank), 1.0, (0, 1))
            until(lambda: all(s.complete > number for s in sides) or any(s.failures for s in sides))  # noqa: B023
            assert all(torch.equal(side.mean, exact) for side in sides if side.complete > number)
            if any(side.failures for side in sides):
                break
        until(lambda: any(TAMPERED in failure for side in sides for failure in side.failures))
        assert rejected.tampered == 1
        end(sides)


def test_a_link_that_is_led_to_another_host_is_none() -> None:
    """That one knows the secret, too; and it is not whom we mean."""
    listener = Listener(("127.0.0.1", 0), SECRET, {"what": "host", "first": 2})
    refused = pytest.raises(UnknownPeer, match=r"is not what 'host', first 4: it says first 2")
    with relay(listener.address) as between, refused:
        Link.connect(between.address, SECRET, {}, PATIENCE, expected={"what": "host", "first": 4})
    listener.close()
