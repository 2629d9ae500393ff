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
    """The learner's own state, as far as the engine changes it."""

    def drawn(self, batch: Minibatch) -> None:
        """Note that `batch` is the minibatch that was drawn last."""

    def count_exchange(self, request: Exchange, version: int) -> None:
        """Count an exchange that left the peer's row at `version`."""


class Backend(ABC):
    """The primitives of a runtime, for the engine of one learner."""

    __slots__ = ()

    @abstractmethod
    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        """Return the next minibatch of the segment, None at its end."""

    def announce(self, effect: GradMean) -> OnReady | None:
        """Take part in a mean with a gradient that is still to be computed, where that can be: the reply is called with
        the element from which it is complete, and with 0 in the end. None: it is published when it is there."""
        return None

    @abstractmethod
    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        """Return the learner's own gradient."""

    @abstractmethod
    def settle(self, statistics: Statistics) -> None:
        """Count the minibatch drawn last as trained, and never draw it again."""

    @abstractmethod
    def publish(self, effect: Mean | Mix) -> Any:
        """Take part in a mean with the vector as it is now. `collect` is given the reply."""

    @abstractmethod
    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> Any:
        """Take part with the learner's own gradient, which is there, and was announced if `on_ready` is not None."""

    @abstractmethod
    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor | Later:
        """Return the mean (P,), once all it needs have published."""

    @abstractmethod
    def admits(self, effect: Gather) -> bool | Later:
        """Return True if the learner's contribution counts."""

    @abstractmethod
    def closes(self, effect: Gather) -> bool | Later:
        """Wait, having given, until the gathering closes, unless it is late. True: this learner is to close it."""

    @abstractmethod
    def closed(self, effect: Gather) -> Later | None:
        """Close the gathering, whose exchange is done; learners that wait in it go on."""

    @abstractmethod
    def lives(self, peer: int) -> bool:
        """Return True for the centre and for peers that are not known to be dead."""

    @abstractmethod
    def reach(self, effect: Reach) -> int | Later | None:
        """Do an effect to a row of this runtime, by its rule in `rows.py`; return the version of the peer's row, or
        None: one of the rows is taken. The exchanges of a gathering are asked for where `admits` and `closes` have
        answered, and are done at once."""

    def starts(self, effect: Reach, handle: Handle[int | None]) -> bool:
        """Return True if an effect that was begun goes on by itself; when it is over, the engine is told to `finish`
        it."""
        return False

    def deferrable(self, peer: int) -> Row | None:
        """Return the row of `peer` if an exchange with it may wait for the next step, else None."""
        return None

    def ended(self) -> None:  # noqa: B027 most know it, for `Engine.begin` comes back
        """Note that the coroutine has come to its end."""


class ClockedBackend(Backend):
    """A backend whose effects take time on a clock."""

    @abstractmethod
    def now(self) -> float:
        """Return seconds on the runtime's clock."""

    def entered(self, effect: Effect[Any], at: float) -> None:
        """Note that the learner is in `effect` since `at` seconds, for the table of waits that users read."""

    def left(self) -> None:
        """Note that the learner is in its own code again."""


class RemoteRows(Protocol):
    """Effects on rows of other hosts: one request at a time, which goes on while the learner computes."""

    def takes(self, row: int) -> bool:
        """Return True for rows of other hosts."""

    def moved(self, row: int) -> bool:
        """Return True for the centre, if another host has it than when the last request was made, or none has."""

    def ask(self, effect: Reach | Gather) -> None:
        """Make a request."""

    @property
    def through(self) -> bool:
        """True if the last request is answered."""

    def wait(self, peer: int) -> int | None:
        """Return the answer to the last request: the version of row `peer`; negative: the contribution to a gathering
        does not count; or None: no learner is there."""


class NoRemoteRows:
    """Remote rows of a runtime on one host: none."""

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
