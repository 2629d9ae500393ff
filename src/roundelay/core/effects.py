"""Effects: the closed set of things a strategy may ask a runtime to do.

A strategy is a coroutine per learner. Between two awaits it owns its learner's private state; to reach anything else it
awaits one of the effects below. It never performs them: the simulator, the processes of one host, or a replay do. That
is why one piece of strategy code runs in all of them.

Legend: P parameters of the model, L learners.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from roundelay.core.state import Gradient, Minibatch, Snapshot

R_co = TypeVar("R_co", covariant=True)

Rule = Callable[[Tensor, Tensor], None]
"""`rule(mine, theirs)` changes both slices in place. Elementwise, so that it may be applied chunk by chunk."""


class Effect(Generic[R_co]):
    """Something to await; the runtime answers with an R_co."""

    def __await__(self) -> Generator["Effect[Any]", Any, R_co]:
        reply: R_co = yield self
        return reply


@dataclass(frozen=True)
class Draw(Effect[Minibatch | None]):
    """The next minibatch of this segment for this learner, or None at its end.

    Synchronous strategies get the minibatch of (round, rank); asynchronous ones the next of one shared queue, so that a
    slow learner simply draws fewer.
    """


@dataclass(frozen=True)
class Grad(Effect[Gradient]):
    """The mean gradient over `batch` at `at`: a pure function of the two. The reply is valid until the next Grad."""

    at: Snapshot
    batch: Minibatch


@dataclass(frozen=True)
class GradMean(Effect[Gradient]):
    """`Grad`, then the mean of the group's gradients weighted by their frames. All of `group` must ask."""

    at: Snapshot
    batch: Minibatch
    group: tuple[int, ...]


@dataclass(frozen=True)
class Mean(Effect[Tensor]):
    """The weighted mean of `vector` (P,) over `group`; everybody in it must ask. The reply is valid until the next
    Mean."""

    group: tuple[int, ...]
    vector: Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class Exchange(Effect[bool]):
    """Atomic and one-sided: apply `rule` to (my row, row `peer`); the peer's code takes no part.

    The reply says whether it happened (False: the peer is dead).
    """

    peer: int
    rule: Rule


class Handle(Generic[R_co]):
    """A request in flight is a value you hold."""

    def __init__(self) -> None:
        self.done = False
        self.reply: Any = None
        self.pending: Any = None  # belongs to the runtime

    def finish(self, reply: Any) -> None:
        """The runtime's call when the effect is complete."""
        self.done, self.reply = True, reply


@dataclass(frozen=True)
class Begin(Effect[Handle[R_co]]):
    """Start `effect` and go on; its row operations happen at any moment between now and the end of the wait for it."""

    effect: Effect[R_co]


@dataclass(frozen=True)
class Wait(Effect[R_co]):
    """The reply of an effect begun earlier."""

    handle: Handle[R_co]
