"""One part of a segment, as the threads that take its means and mixes see it: waits that end with it, and messages that
belong to it."""

import threading
from collections.abc import Callable
from typing import TypeVar, final

from torch import Tensor

from roundelay.runtime.hosts.mean_transports.forms import as_bytes
from roundelay.runtime.hosts.mean_transports.messages import OfPart
from roundelay.runtime.hosts.transport.wire import Link, LinkError, LinkTimeout
from roundelay.runtime.messages import Dialect
from roundelay.runtime.procs.memory.bell import Bell

LISTEN_SECONDS = 0.1
"""Interval at which a thread that hears nothing, from a link or a learner, looks whether the part of the segment is
over."""


P = TypeVar("P", bound=OfPart)


class PartOver(Exception):
    """The part of the segment is over."""


@final
class MeansPart:
    """Part of a segment, of a run or of a session.

    Args:
        number: one that no other part has.
        bell: rung by learners.
        dialect: of the links for means and mixes.
        also: raises an error of its own where waits are to end for another reason.
    """

    def __init__(self, number: int, bell: Bell, dialect: Dialect, also: Callable[[], None] = lambda: None) -> None:
        self.number, self.bell, self.dialect, self._also = number, bell, dialect, also
        self.ended = threading.Event()

    def check(self) -> None:
        """
        Raises:
            PartOver: it is.
        """
        if self.ended.is_set():
            raise PartOver
        self._also()

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait for something of this host.

        Raises:
            PartOver: the part is over before.
        """
        heard = self.bell.heard()
        while not ready():
            self.check()
            self.bell.wait(heard, LISTEN_SECONDS)
            heard = self.bell.heard()

    def receive(self, link: Link, kind: type[P], into: Tensor | None = None) -> P:
        """Return the next message of this part, which must be of this kind; its payload goes `into` a vector.

        Raises:
            PartOver, LinkError.
        """
        message = self.receive_any(link, into)
        if not isinstance(message, kind):
            raise LinkError(f"{link.peer} sent {message.kind!r} where {kind.kind!r} was due")
        return message

    def receive_any(self, link: Link, into: Tensor | None = None) -> OfPart:
        """Return the next message of this part. Whatever is left of an earlier one is passed over.

        Raises:
            PartOver, LinkError.
        """
        while True:
            try:
                message = link.hear(self.dialect, LISTEN_SECONDS, None if into is None else as_bytes(into))
            except LinkTimeout:
                self.check()
                continue
            if isinstance(message, OfPart) and message.part == self.number:
                return message
