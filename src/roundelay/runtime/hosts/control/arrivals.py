"""Listens to other hosts, and keeps those that want to join until somebody looks at them."""

import secrets
from contextlib import suppress
from queue import Empty, SimpleQueue

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.terms import CONTROL, NO_SESSION, ROLES, HostTerms, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkOptions
from roundelay.runtime.launch.rendezvous import Rendezvous
from roundelay.runtime.launch.world import HostPlace


def open_router(place: HostPlace, terms: HostTerms) -> Router:
    """Listen, and let the others know where.

    Raises:
        UserError: the address is not one of this host, or taken.
    """
    try:
        hello = {**identity(place.ranks[0]), "life": secrets.token_hex(8)}  # tells this process from a later one
        options = LinkOptions(terms.encrypt)
        listener = Listener(place.listen, place.secret, hello, terms.host_patience, options=options)
    except OSError as error:
        host, port = place.listen
        raise UserError(
            f"rank {place.ranks[0]}: cannot listen at {host} port {port} ({error.strerror}). Give an address of this "
            "host by --listen ADDRESS[:PORT], and another MASTER_PORT if that one is taken."
        ) from error
    if place.conducts and place.hosted:
        host, port = listener.address
        Rendezvous(place.world, terms.patience_seconds).say("coordinator", {"host": host, "port": port})
    return Router(listener, ROLES, terms.patience_seconds)


class PendingJoins:
    """Hosts that have come and have not been looked at yet. They hear that somebody is there, who may be busy."""

    def __init__(self, router: Router, patience: float) -> None:
        self._patience, self.listener = patience, router.listener
        self._monitored: SimpleQueue[MonitoredLink] = SimpleQueue()
        self._early: list[MonitoredLink] = []  # for another session
        self.session = 0
        """Number, among several of one process, of that to which hosts may come now: their hello says which they want,
        0 where it says nothing. Others are kept."""
        router.give(CONTROL, self._take)

    def _take(self, link: Link) -> None:
        if link.hello.get("session") == NO_SESSION:
            link.close()
            return
        monitored = MonitoredLink(link, self._patience)
        monitored.beat()
        self._monitored.put(monitored)

    def next(self, seconds: float = 0.0) -> MonitoredLink | None:
        """The next, if there is one within so many seconds."""
        with suppress(Empty):
            self._early.append(self._monitored.get(timeout=seconds) if seconds else self._monitored.get_nowait())
        for number, monitored in enumerate(self._early):
            if monitored.link.hello.get("session", 0) == self.session:
                return self._early.pop(number)
        return None
