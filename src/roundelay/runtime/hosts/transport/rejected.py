"""Counters of connections that were closed because of what came over them."""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

REASONS = 8
"""For refusing a connection: so many are kept, for people."""


@dataclass
class RejectedConnections:
    """Connections that were closed because of what came over them."""

    strangers: int = 0  # that did not prove themselves: wrong secret, noise, silence
    malformed: int = 0  # by a message that made no sense, from a host of ours
    tampered: int = 0  # by something that was changed, left out, repeated or put in on the way
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=REASONS))  # of the last ones, for people
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def all(self) -> int:
        """Links refused or ended, of every kind."""
        return self.strangers + self.malformed + self.tampered

    def count(self, kind: Literal["strangers", "malformed", "tampered"], reason: str) -> None:
        """Count one more."""
        with self.lock:
            setattr(self, kind, getattr(self, kind) + 1)
            self.reasons.append(reason)
