"""Backends: the primitives by which a runtime does what the engine of effects asks for.

Legend: P parameters.
"""

from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

from torch import Tensor

from roundelay.core.effects import Effect, Gather, Grad, GradMean, Mean, Mix, Reach
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.rows import Row


class Later:
    """The type of LATER."""


LATER: Final = Later()
"""Reply of a primitive that cannot answer yet."""


class Backend(ABC):
    """The primitives of a runtime, for the engine of one learner."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on the runtime's clock."""

    def entered(self, effect: Effect[Any], at: float) -> None:  # noqa: B027 nobody looks, where nobody waits
        """The learner is in `effect` since `at` seconds; for people who ask who waits for whom."""

    def left(self) -> None:  # noqa: B027
        """It is in its own code again."""

    @abstractmethod
    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        """The next minibatch of the segment, None at its end."""

    def announce(self, effect: GradMean) -> OnReady | None:
        """Take part in a mean with a gradient that is still to be computed, where that can be: the reply is told how
        far it is, and 0 in the end. None: it is published when it is there."""
        return None

    @abstractmethod
    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        """The learner's own gradient."""

    @abstractmethod
    def settle(self, statistics: Statistics) -> None:
        """The minibatch drawn last is trained: count it, and never draw it again."""

    @abstractmethod
    def publish(self, effect: Mean | Mix) -> Any:
        """Take part in a mean with the vector as it is now. `collect` is given the reply."""

    @abstractmethod
    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> Any:
        """Take part with the learner's own gradient, which is there, and was announced if `on_ready` is not None."""

    @abstractmethod
    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor:
        """The mean (P,), once all it needs have published."""

    @abstractmethod
    def admits(self, effect: Gather) -> bool:
        """Does what the learner comes with count?"""

    @abstractmethod
    def closes(self, effect: Gather) -> bool:
        """It has given: wait until the gathering closes, unless it is late. True: this learner is to close it."""

    @abstractmethod
    def closed(self, effect: Gather) -> None:
        """The gathering that `closes` asked for is closed; those who wait go on."""

    @abstractmethod
    def lives(self, peer: int) -> bool:
        """True for the centre and for peers that are not known to be dead."""

    @abstractmethod
    def reach(self, effect: Reach) -> int | None:
        """Do it, with a row of this runtime, by its rule in `rows.py`; the version of the peer's row, or None: one of
        the rows is taken."""

    def deferrable(self, peer: int) -> Row | None:
        """The row of `peer` if an exchange with it may wait for the next step, else None."""
        return None


class RemoteRows(Protocol):
    """Effects on rows of other hosts: one request at a time, which goes on while the learner computes."""

    def takes(self, row: int) -> bool:
        """True for rows of other hosts."""
        ...

    def ask(self, effect: Reach | Gather) -> None:
        """Make a request."""
        ...

    @property
    def through(self) -> bool:
        """True if the last request is answered."""
        ...

    def wait(self, peer: int) -> int | None:
        """The answer to the last request: the version of row `peer`; negative: what came to a gathering does not
        count; or None: nobody is there."""
        ...


class NoRemoteRows:
    """All rows are of this host."""

    through = True

    def takes(self, row: int) -> bool:
        return False

    def ask(self, effect: Reach | Gather) -> None:
        raise AssertionError("there are no other hosts")

    def wait(self, peer: int) -> int | None:
        raise AssertionError("there are no other hosts")


NO_REMOTE: RemoteRows = NoRemoteRows()
