"""Monitored links: heartbeats both ways, several senders, one listener; and the router of accepted links.

A host that has said nothing for as long as hosts are patient is gone, and so is one that has closed its link. Large
things are sent in pieces, each of which is a sign of life, so that a slow link is not taken for a dead one.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkError, LinkTimeout
from roundelay.runtime.messages import Dialect, Message

BEATS = 10
"""Number of heartbeats that are sent within the patience."""
UNCLAIMED_LOOK_SECONDS = 0.5
"""Interval at which a listener looks for links that are not taken."""

Handle = Callable[[Message], None]
Gone = Callable[[str], None]


class Beat(Message):
    """Heartbeat, which says that the sender lives."""


class MonitoredLink:
    """Link to another host with heartbeats, on which several threads may send.

    Args:
        link: a link whose ends have proved themselves.
        patience: seconds of silence after which the other end counts as gone.
    """

    def __init__(self, link: Link, patience: float) -> None:
        self.link, self._patience = link, patience
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self.says: Callable[[], Message] = Beat
        """Return the next heartbeat. One that says something is given to the handler at the other end."""
        self.heard = time.monotonic()
        """The moment at which the other end last said anything, a heartbeat too."""

    def say(self, message: Message, payload: Sequence[Any] = ()) -> None:
        """Send a message.

        Raises:
            LinkError: the other end is gone.
        """
        self.link.say(message, payload)

    def beat(self) -> None:
        """Start the thread that sends heartbeats."""
        self._start(self._beat)

    def listen(self, dialect: Dialect, handle: Handle, gone: Gone) -> None:
        """Call `handle` for every message that is not a heartbeat, and `gone` with the reason once the other end is
        gone, on a thread of this link's own; not after `close`. A message that is none of `dialect`, or on which
        `handle` raises any error, is counted as malformed, and the link is closed."""
        self._start(self._hear, dialect, handle, gone)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name=f"line {self.link.peer}")
        self._threads.append(thread)
        thread.start()

    def _beat(self) -> None:
        with suppress(LinkError):
            while not self._closed.wait(self._patience / BEATS):
                self.say(self.says())

    def _hear(self, dialect: Dialect, handle: Handle, gone: Gone) -> None:
        try:
            while not self._closed.is_set():
                frame = self.link.receive(self._patience)
                self.heard = time.monotonic()
                if frame.kind != Beat.kind or frame.header:
                    handle(dialect.read(frame))
        except LinkTimeout:
            reason = f"no heartbeat for {self._patience:g} s"
        except LinkError as error:
            reason = str(error)
        except Exception as error:  # of any kind: a host whose messages are not heard must not count as alive
            reason = f"it said what is no message of ours ({error!r})"
            self.link.blame(f"said what is no message of ours ({error!r})")
        else:
            return
        if not self._closed.is_set():
            gone(reason)

    def close(self) -> None:
        """Close the link: nothing more is sent or received. Safe to call twice, and from any thread."""
        self._closed.set()
        self.link.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=self._patience)


class Router:
    """Router of accepted links: it gives each to the function for its role, which is `what` in its hello.

    Args:
        roles: all roles that a link may have; links of others are closed at once.
        patience: most seconds that a link waits for a function of its role.
    """

    def __init__(self, listener: Listener, roles: Collection[str], patience: float) -> None:
        self.listener, self._roles, self._patience = listener, frozenset(roles), patience
        self._takers: dict[str, Callable[[Link], None]] = {}
        self._early: list[tuple[float, str, Link]] = []  # the moment they came, and their role
        self.at_end: list[Callable[[], None]] = []
        """Calls that are made when no host can come any more."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._open, daemon=True, name="router")
        self._thread.start()

    def give(self, role: str, take: Callable[[Link], None]) -> None:
        """Give links of `role` to `take`: those that come from now on, and those that have come already."""
        with self._lock:
            self._takers[role] = take
            mine = [link for _, wanted, link in self._early if wanted == role]
            self._early = [one for one in self._early if one[1] != role]
        for link in mine:
            self._hand_over(link, take)

    def _hand_over(self, link: Link, take: Callable[[Link], None]) -> None:
        try:
            take(link)
        except Exception as error:  # it is this link's problem, and no other's
            link.blame(f"cannot be attended to ({error!r})")

    def _open(self) -> None:
        while not self.listener.closed:
            link = self.listener.accept(UNCLAIMED_LOOK_SECONDS)
            self._close_unclaimed()
            if link is None:
                continue
            role = link.hello.get("what")
            if not isinstance(role, str) or role not in self._roles:
                link.blame(f"comes for {role!r}, which is unknown here")
                continue
            with self._lock:
                take = self._takers.get(role)
                if take is None:
                    self._early.append((time.monotonic(), role, link))
            if take is not None:
                self._hand_over(link, take)

    def _close_unclaimed(self) -> None:
        latest = time.monotonic() - self._patience
        with self._lock:
            late = [one for one in self._early if one[0] <= latest]
            self._early = [one for one in self._early if one[0] > latest]
        for _, role, link in late:
            link.blame(f"came for {role!r}, which was not attended to for {self._patience:g} s")

    def close(self) -> None:
        """Close the listener: no link is accepted any more."""
        self.listener.close()
        self._thread.join()
        for _, _, link in self._early:
            link.close()
        for end in self.at_end:
            end()


def until(ready: Callable[[], bool], seconds: float, pause: float = 1e-3) -> bool:
    """Wait until `ready`, for at most `seconds`; return False if it was not."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True
