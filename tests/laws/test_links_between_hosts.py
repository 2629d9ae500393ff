"""Links between the hosts of a synchronous run are those that its strategy uses."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from threading import Thread
from typing import Any

import pytest

from roundelay.core.effects import GradMean, Mean, Mix
from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control import host_links
from roundelay.runtime.hosts.control.host_links import HostLinks, PeerLinks, Placed
from roundelay.runtime.hosts.terms import CHAIN, MIX, ROLES, HostTerms, PeerHello, identity
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkTimeout
from roundelay.runtime.messages import Dialect, Message
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences
from roundelay.runtime.sim.backend import SimBackend
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import SYNCHRONOUS, cluster, make_strategy, plan
from support.hosts import place
from support.ports import free_port
from support.until import together, until

SECRET = b"a secret of these tests alone"
HOSTS = [[0], [1], [2, 3], [4]]


@pytest.fixture
def met() -> Iterator[Callable[[bool], list[PeerLinks]]]:
    """Hosts that have met, with links for mixes or without."""
    with ExitStack() as stack:

        def meet(mixes: bool) -> list[PeerLinks]:
            links, addresses = list[PeerLinks](), []
            for host, ranks in enumerate(HOSTS):
                router = Router(Listener(("127.0.0.1", 0), SECRET, identity(ranks[0])), ROLES, 60)
                stack.callback(router.close)
                links.append(PeerLinks(router, HOSTS, host, 60, 4, mixes))
                stack.callback(links[-1].close)
                addresses.append(router.listener.address)
            together(*(partial(one.dial, addresses, SECRET, 60) for one in links))
            return links

        yield meet


def test_hosts_that_take_means_alone_have_links_to_their_neighbours_alone(
    met: Callable[[bool], list[PeerLinks]],
) -> None:
    links = met(False)
    assert [sorted(one.chain) for one in links] == [[1], [0, 2], [1, 3], [2]]
    assert not any(one.mix_links for one in links)


def test_hosts_that_mix_have_links_to_all_others(met: Callable[[bool], list[PeerLinks]]) -> None:
    links = met(True)
    assert [sorted(one.chain) for one in links] == [[1], [0, 2], [1, 3], [2]]
    everybody = {*range(len(HOSTS))}
    assert [{*one.mix_links} for one in links] == [everybody - {host} for host in everybody]


def test_a_host_that_comes_back_has_links_for_mixes_to_all_others_but_those_that_are_lost(
    met: Callable[[bool], list[PeerLinks]],
) -> None:
    """The second, at another address: when it has a link, the other end has it in the place of the old one. The last
    is lost when it comes to dial that: it tries as long as that lives."""
    links = met(True)
    with ExitStack() as stack:
        router = Router(Listener(("127.0.0.1", 0), SECRET, identity(1)), ROLES, 60)
        stack.callback(router.close)
        back, old = PeerLinks(router, HOSTS, 1, 60, 4), {host: links[host].mix_links[1] for host in (0, 2)}
        stack.callback(back.close)
        others = links[0].addresses[0], ("", 0), links[0].addresses[2], ("127.0.0.1", free_port())
        back.addresses = others[0], router.listener.address, *others[2:]
        thread = Thread(target=back.dial, args=(others, SECRET, 60, True))
        thread.start()
        until(lambda: back.mix_links.keys() == {0, 2})
        assert all(links[host].mix_links[1] is not link and link.closed for host, link in old.items())
        assert thread.is_alive()
        back.addresses = *back.addresses[:3], ("", 0)
        thread.join(60)
        assert not thread.is_alive()
        assert back.mix_links.keys() == {0, 2}


def test_a_host_that_comes_back_waits_for_the_place_of_the_link_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not know which of two got the place."""
    monkeypatch.setattr(host_links, "DIAL_SECONDS", 0.5)
    hear, late = Link.hear, list[Link]()

    def noted(self: Link, *given: Any) -> Message:
        try:
            return hear(self, *given)
        except LinkTimeout:
            late.append(self)
            raise

    monkeypatch.setattr(Link, "hear", noted)
    with ExitStack() as stack:
        routers = [Router(Listener(("127.0.0.1", 0), SECRET, identity(rank)), ROLES, 60) for rank in range(2)]
        back = PeerLinks(routers[1], [[0], [1]], 1, 60, 4)
        others = routers[0].listener.address, ("", 0)
        thread = Thread(target=back.dial, args=(others, SECRET, 60, True))
        thread.start()
        until(lambda: len(late) > 1)
        there = PeerLinks(routers[0], [[0], [1]], 0, 60, 4)
        for close in [*(router.close for router in routers), back.close, there.close]:
            stack.callback(close)
        thread.join(60)
        assert {*late} == {back.mix_links[0]}
        there.mix_links[1].say(Placed())
        assert back.mix_links[0].hear(Dialect(Placed), 60) == Placed()


def test_a_link_of_an_earlier_chain_that_comes_late_takes_no_place(met: Callable[[bool], list[PeerLinks]]) -> None:
    """Nor one of another session of the same processes."""
    one = met(True)[0]
    numbers = [(3, 2), (3, 1), (2, 7)]
    came = [Link.connect(one.addresses[0], SECRET, PeerHello(CHAIN, 1, number).said, 60.0) for number in numbers]
    came.append(Link.connect(one.addresses[0], SECRET, PeerHello(CHAIN, 1, (9, 9), session=1).said, 60.0))
    until(lambda: all(link_is_closed(link) for link in came[1:]))
    assert one._chains[1][0] == (3, 2)
    assert not link_is_closed(came[0])
    came[0].close()


def test_a_link_for_mixes_is_refused_where_there_are_none(met: Callable[[bool], list[PeerLinks]]) -> None:
    links = met(False)
    address = links[0].addresses[0]
    with Link.connect(address, SECRET, {"what": MIX, "host": 3}, 60.0) as link:
        until(lambda: link_is_closed(link))
    assert not links[0].mix_links


def link_is_closed(link: Link) -> bool:
    try:
        link.receive(0.05)
    except Exception:
        return link.closed
    return False


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_strategy_that_does_not_mix_gives_no_vector_to_single_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    for method in ("publish", "publish_gradient", "gradient"):
        whole = getattr(SimBackend, method)

        def noted(self: Any, effect: Any, *others: Any, whole: Any = whole) -> object:
            asked.append(effect)
            return whole(self, effect, *others)

        monkeypatch.setattr(SimBackend, method, noted)
    learners = 1 if name == "sgd" else 4
    with SimRuntime(cluster(name, learners)) as runtime:
        runtime.segment(plan(9, learners))
    mixes = any(isinstance(effect, Mix) for effect in asked)
    coded = any(isinstance(effect, Mean | GradMean) and not effect.codec.exact for effect in asked)
    assert asked
    assert make_strategy(name).mixes == (mixes or coded)


@pytest.mark.parametrize(
    ("name", "terms", "all_to_all"),
    [
        ("ssgd", {}, False),
        ("delay-by-one", {}, False),
        ("diloco period=3", {}, False),
        ("diloco period=3 codec=int8", {}, True),
        ("sparseloco period=3", {}, True),
        ("dpsgd", {}, True),
        ("gossip-diloco period=3", {}, True),
        ("ssgd", {"on_death": "go-on"}, True),
        ("ssgd", {"means": "gloo", "trusted_network": True}, True),
        ("adpsgd", {}, None),
    ],
)
def test_hosts_have_all_links_where_they_mix_or_agree_on_who_takes_part(
    name: str, terms: dict[str, Any], all_to_all: bool | None
) -> None:
    here, facts = place([1, 1, 1], 2, 1), HostTerms(**terms)
    router = Router(Listener(("127.0.0.1", 0), SECRET, identity(2)), ROLES, 60)
    links = HostLinks(here, facts, router, make_strategy(name))
    try:
        links.settle(2, [[0], [1], [2]], 5)
        assert (None if links._peers is None else links._peers.mixes) == all_to_all
    finally:
        links.close()
        router.close()


def test_a_mix_with_learners_elsewhere_that_is_not_declared_is_refused_at_once() -> None:
    """It would wait for a vector that nobody sends."""
    layout = Layout(3, 4, views=(HostMeanSequences, BellTable))
    arena = Arena(create_file(layout), layout, Patience(0, 60))
    vector, here = arena.vector("row", 0).clone(), [0, 1]
    with pytest.raises(UserError, match=r"learner 0 .* set `mixes` in its traits"):
        Means(arena, 0, Patience(0, 60), here).publish(vector, 1.0, readers=(1, 2))
    Means(arena, 0, Patience(0, 60), here).publish(vector, 1.0, readers=(1,))
    arena.close()
