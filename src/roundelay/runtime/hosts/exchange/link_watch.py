"""Many links that say something now and then: one thread waits for all of them, and few attend to those that do."""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import final

from roundelay.runtime.hosts.transport.wire import Link, LinkError

IDLE_SECONDS = 5.0
"""Time without work after which a thread ends."""

Turn = Callable[[], bool]
"""Attends to the next message of a link, or finds that there is none; False: no more is to be heard of the link."""


@final
class Workers:
    """Threads for work that may have to wait: as many as there is work at a time.

    Args:
        name: of each thread, for people.
        idle: seconds without work after which a thread ends.
    """

    def __init__(self, name: str, idle: float = IDLE_SECONDS) -> None:
        self._name, self._idle_seconds = name, idle
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle, self._closed = 0, False

    def __len__(self) -> int:
        return len(self._threads)

    def do(self, work: Callable[[], None]) -> None:
        """Have `work` done, at once. It raises nothing."""
        with self._changed:
            self._work.append(work)
            if len(self._work) <= self._idle:
                self._changed.notify()
                return
            thread = threading.Thread(target=self._run, daemon=True, name=self._name)
            self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: bool(self._work) or self._closed, self._idle_seconds)
            self._idle -= 1
            if self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def close(self) -> None:
        """Wait for all work that is under way."""
        with self._changed:
            self._closed = True
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            thread.join()


@final
class LinkWatch:
    """Links, each with its turn. No two turns of one link are under way at a time, unless the link has been added
    twice.

    Args:
        name: of its threads, for people.
    """

    def __init__(self, name: str) -> None:
        self.workers = Workers(name)
        self._poll, self._gate = select.epoll(), threading.Lock()
        self._turns: dict[int, tuple[Link, Turn]] = {}  # by descriptor
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._bell, select.EPOLLIN)
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, daemon=True, name=f"{name}: who speaks"
        )  # once there is a link

    def add(self, link: Link, turn: Turn) -> None:
        """Call `turn`, from now on, when a message begins to come over `link`, and once it is closed elsewhere."""
        with suppress(LinkError), link.in_use():  # its descriptor is its own meanwhile
            with self._gate:
                self._turns[link.descriptor] = link, turn
                if self._thread.ident is None:
                    self._thread.start()
            self._poll.register(link.descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def _run(self) -> None:
        while not self._closed:
            for descriptor, _ in self._poll.poll():
                found = self._turns.get(descriptor)
                if found is not None:
                    self.workers.do(lambda link=found[0], turn=found[1]: self._take(link, turn))  # type: ignore[misc]

    def _take(self, link: Link, turn: Turn) -> None:
        descriptor = link.descriptor
        if turn():
            with suppress(LinkError), link.in_use():
                self._poll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
            return
        link.close()
        with self._gate:
            if self._turns.get(descriptor, (None,))[0] is link:  # its number may be another's by now
                del self._turns[descriptor]

    def close(self) -> None:
        """End, once all links are closed: turns under way come to their end first."""
        self._closed = True
        os.eventfd_write(self._bell, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self.workers.close()
        self._poll.close()
        os.close(self._bell)
