"""Backends: the primitives by which a runtime performs effects for the engine.

Legend: P parameters.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Final, Protocol

from torch import Tensor

from roundelay.core.effects import Effect, Exchange, Gather, Grad, GradMean, Handle, Mean, Mix, Reach
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.rows import Row


class Later(Enum):
    """The type of LATER."""

    LATER = 0


LATER: Final = Later.LATER
"""Reply of a primitive that cannot answer yet."""


class Counting(Protocol):
    """The counts of a learner that the engine changes."""

    def drawn(self, batch: Minibatch) -> None:
        """Note that `batch` is the minibatch that was drawn last."""

    def count_exchange(self, request: Exchange, version: int) -> None:
        """Count an exchange that left the peer's row at `version`."""


class Backend(ABC):
    """The primitives of a runtime, for the engine of one learner."""

    __slots__ = ()

    @abstractmethod
    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        """Return the next minibatch of the segment, None at its end; `group` are the ranks that draw together."""

    def announce(self, effect: GradMean) -> OnReady | None:
        """Announce a gradient that is still to be computed to its mean. Return a function to call with the element from
        which the gradient is complete, at the end 0; or None: the gradient is published when complete."""
        return None

    @abstractmethod
    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        """Return the learner's own gradient over the minibatch drawn last."""

    @abstractmethod
    def settle(self, statistics: Statistics) -> None:
        """Count the minibatch drawn last as trained, and never draw it again."""

    @abstractmethod
    def publish(self, effect: Mean | Mix) -> Any:
        """Publish the vector of an effect, as it is now, to its mean; `collect` takes the value returned."""

    @abstractmethod
    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> Any:
        """Publish the learner's own gradient, now complete, to its mean; `on_ready` is what `announce` returned."""

    @abstractmethod
    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor | Later:
        """Return the mean (P,), once all learners it needs have published."""

    @abstractmethod
    def admits(self, effect: Gather) -> bool | Later:
        """Return True if the learner's contribution to a gathering counts."""

    @abstractmethod
    def closes(self, effect: Gather) -> bool | Later:
        """Wait after a contribution until the gathering closes; a late learner does not wait. Return True if this
        learner is to close the gathering."""

    @abstractmethod
    def closed(self, effect: Gather) -> Later | None:
        """Close the gathering after this learner's exchange for it; learners that wait in it go on."""

    @abstractmethod
    def lives(self, peer: int) -> bool:
        """Return True for the centre and for peers that are not known to be dead."""

    @abstractmethod
    def reach(self, effect: Reach) -> int | Later | None:
        """Perform an effect on rows of this runtime, by its rule in `rows.py`; return the version of the peer's row, or
        None if one of the rows is in flight. Exchanges of a gathering come after `admits` and `closes`, and are done at
        once."""

    def starts(self, effect: Reach, handle: Handle[int | None]) -> bool:
        """Start an effect in the background if this backend can, and return True: it then finishes `handle` by itself.
        Return False if the engine is to perform the effect."""
        return False

    def deferrable(self, peer: int) -> Row | None:
        """Return the row of `peer` if an exchange with it may wait for the next step, else None."""
        return None

    def ended(self) -> None:  # noqa: B027 most know it, for `Engine.begin` comes back
        """Note that the learner's coroutine has ended."""


class ClockedBackend(Backend):
    """A backend whose effects take time on a clock."""

    @abstractmethod
    def now(self) -> float:
        """Return the time on the runtime's clock, in seconds."""

    def entered(self, effect: Effect[Any], at: float) -> None:
        """Note that the learner is in `effect` since `at` seconds, for the table of waits that users read."""

    def left(self) -> None:
        """Note that the learner is in its own code again."""


class RemoteRows(Protocol):
    """The way to rows of other hosts: performs effects on them, one request at a time, while the learner computes."""

    def takes(self, row: int) -> bool:
        """Return True if `row` is on another host."""

    def moved(self, row: int) -> bool:
        """Return True if `row` is the centre and its host has changed, or is gone, since the last request."""

    def ask(self, effect: Reach | Gather) -> None:
        """Ask another host to perform an effect."""

    @property
    def through(self) -> bool:
        """True if the last request is answered."""

    def wait(self, peer: int) -> int | None:
        """Return the answer to the last request: the version of row `peer`; negative: the contribution to a gathering
        does not count; or None: no learner is there."""


class NoRemoteRows:
    """The remote rows of a runtime on one host, where there are none."""

    through = True

    def takes(self, row: int) -> bool:
        return False

    def moved(self, row: int) -> bool:
        return False

    def ask(self, effect: Reach | Gather) -> None:
        raise AssertionError("there are no other hosts")

    def wait(self, peer: int) -> int | None:
        raise AssertionError("there are no other hosts")


NO_REMOTE: RemoteRows = NoRemoteRows()
