"""Two hosts in a session of attached learners, both in this process; the learners' parts are played by the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from roundelay.runtime.attached.hosts.agent import SessionAgent
from roundelay.runtime.attached.hosts.coordinator import SessionCoordinator
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.hosts.starting import SessionRequest, named
from roundelay.runtime.hosts.control.finding import PendingJoins, open_router
from roundelay.runtime.hosts.options import SessionHostOptions
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.coordination.lives import life_lock
from roundelay.runtime.procs.memory.arena import Arena, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.strategies import make_strategy
from support.until import meanwhile

PATIENCE = 60.0
PARAMETERS = 5
SHOWN_BYTES = 64


@dataclass
class SessionHosts:
    """The first host with learner 0, and the other with learner 1."""

    first: SessionHost
    other: SessionHost
    coordinator: SessionCoordinator
    agent: SessionAgent
    learners: list[Arena]  # of learner 0 and of learner 1, each on its host


def place(rank: int, port: int) -> HostPlace:
    return HostPlace((rank,), 2, 0, "127.0.0.1", port, listen=("127.0.0.1", 0), secret=b"of these tests")


def request(where: HostPlace, strategy: str) -> SessionRequest:
    options = SessionHostOptions(host_patience=PATIENCE)
    of = named(make_strategy(strategy, {}))
    return SessionRequest(1, where, of, options, {}, PATIENCE, PARAMETERS, SHOWN_BYTES, 1, ())


@contextmanager
def session_hosts(strategy: str, before: Callable[[SessionAgent], None] = lambda agent: None) -> Iterator[SessionHosts]:
    """Yield both hosts, once they have met. `before` is called on the second host's agent before it joins."""
    asked = request(place(0, 0), strategy)
    router = open_router(asked.place, asked.terms)
    arrivals = PendingJoins(router, asked.place, asked.terms)
    asked_other = request(place(1, router.listener.address[1]), strategy)
    router_other = open_router(asked_other.place, asked_other.terms)
    files = [create_file(one.layout) for one in (asked, asked_other)]
    learners = [Arena(file, asked.layout, Patience(rank, PATIENCE)) for rank, file in enumerate(files)]
    for rank, arena in enumerate(learners):
        arena.liveness.alive[:] = 1
        life_lock(arena, rank, Patience(rank, PATIENCE)).acquire()
    hosts = [
        SessionHost(one, file, where)
        for one, file, where in zip((asked, asked_other), files, (router, router_other), strict=True)
    ]
    coordinator, agent = SessionCoordinator(hosts[0], arrivals), SessionAgent(hosts[1], router_other)

    def come() -> None:
        before(agent)
        agent.open()

    over = threading.Event()
    with meanwhile(come):
        coordinator.open()
    running = [threading.Thread(target=part.run, args=(over.is_set,)) for part in (coordinator, agent)]
    for thread in running:
        thread.start()
    try:
        yield SessionHosts(hosts[0], hosts[1], coordinator, agent, learners)
    finally:
        over.set()
        for thread in running:
            thread.join()
        for part in (agent, coordinator):
            part.close()
        for host in hosts:
            host.close()
        for one in (router, router_other):
            one.close()
        for arena in learners:
            arena.close()
