"""Links that are watched: heartbeats both ways, several senders, one who listens; and the door at which hosts knock.

Who has said nothing for as long as hosts are patient is gone, and so is whoever closed the link. Large things are sent
in pieces, each of which is a sign of life, so that a slow link is not taken for a dead one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from roundelay.runtime.hosts.listener import Listener
from roundelay.runtime.hosts.wire import Link, LinkError, LinkTimeout, Message

BEATS = 10
"""Heartbeats within the patience."""

Handle = Callable[[Message], None]
Gone = Callable[[str], None]


class Line:
    """A link to another host on which many may send.

    Args:
        link: proved already.
        patience: seconds of silence after which the other end counts as gone.
    """

    def __init__(self, link: Link, patience: float) -> None:
        self.link, self._patience = link, patience
        self._sending = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self.heard = time.monotonic()
        """When the other end last said anything, a heartbeat too."""

    def send(self, kind: str, header: dict[str, Any], payload: Sequence[Any] = ()) -> None:
        """Send a message.

        Raises:
            LinkError: the other end is gone.
        """
        with self._sending:
            self.link.send(kind, header, payload)

    def beat(self) -> None:
        """From now on the other end hears that this one lives."""
        self._start(self._beat)

    def listen(self, handle: Handle, gone: Gone) -> None:
        """Call `handle` for every message that is not a heartbeat, and `gone` with the reason once the other end is, on
        a thread of this line's own; not after `close`."""
        self._start(self._hear, handle, gone)

    def _start(self, work: Callable[..., None], *arguments: Callable[..., None]) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name=f"line {self.link.peer}")
        self._threads.append(thread)
        thread.start()

    def _beat(self) -> None:
        with suppress(LinkError):
            while not self._closed.wait(self._patience / BEATS):
                self.send("beat", {})

    def _hear(self, handle: Handle, gone: Gone) -> None:
        try:
            while not self._closed.is_set():
                message = self.link.receive(self._patience)
                self.heard = time.monotonic()
                if message.kind != "beat":
                    handle(message)
        except LinkTimeout:
            reason = f"no heartbeat for {self._patience:g} s"
        except LinkError as error:
            reason = str(error)
        except (KeyError, TypeError, ValueError, IndexError) as error:  # a message that says nothing we understand
            self.link.close()
            reason = f"it said what is no message of ours ({error!r})"
        else:
            return
        if not self._closed.is_set():
            gone(reason)

    def close(self) -> None:
        """Nothing more is said or heard. Safe to call twice, and from any thread."""
        self._closed.set()
        self.link.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=self._patience)


class Door:
    """Takes in links, and gives each to whoever it is for: `what` it says it is, in its hello."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._takers: dict[str, Callable[[Link], None]] = {}
        self._early: dict[str, list[Link]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._open, daemon=True, name="door")
        self._thread.start()

    def give(self, role: str, take: Callable[[Link], None]) -> None:
        """From now on, and those that have come already."""
        with self._lock:
            self._takers[role] = take
            early = self._early.pop(role, [])
        for link in early:
            take(link)

    def _open(self) -> None:
        while True:
            link = self.listener.accept(None)
            if link is None:
                return
            role = str(link.hello.get("what"))
            with self._lock:
                take = self._takers.get(role)
                if take is None:
                    self._early.setdefault(role, []).append(link)
            if take is not None:
                take(link)

    def close(self) -> None:
        """Nobody can come any more."""
        self.listener.close()
        self._thread.join()
        for links in self._early.values():
            for link in links:
                link.close()


def until(ready: Callable[[], bool], seconds: float, pause: float = 1e-3) -> bool:
    """Wait until `ready`; False if it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True
