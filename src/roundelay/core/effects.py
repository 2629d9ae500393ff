"""Effects: the closed set of things a strategy may ask a runtime to do.

A strategy is a coroutine per learner. Between two awaits it owns its learner's private state; to reach anything else it
awaits one of the effects below. It never performs them: the simulator, the processes of one host, or a replay do. That
is why one piece of strategy code runs in all of them.

The form in which a vector goes from one learner to another is the effect's `codec` (core/codec.py). Its arithmetic is
applied in every runtime, also where a vector goes from memory to memory, so all of them agree. Where an effect leaves
rows of an exchange, or gradients of a mean, as they are (FP32), a run may still choose a codec between hosts
(`training.wire`).

Legend: P parameters of the model, L learners.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from roundelay.core.codec import FP32, Codec
from roundelay.core.flat import WHOLE, VectorFragment
from roundelay.core.state import Gradient, Minibatch, Snapshot

R_co = TypeVar("R_co", covariant=True)

Rule = Callable[..., None]
"""`rule(mine, theirs, *private)` changes slices in place. Elementwise, so that it may be applied chunk by chunk. With
`Exchange.since` it is also given `age=`, an int; with `Exchange.decay` `share=`, a float from 0 to 1."""


class Effect(Generic[R_co]):
    """A request that a strategy awaits; the runtime performs it and answers with an R_co."""

    def __await__(self) -> Generator["Effect[Any]", Any, R_co]:
        reply: R_co = yield self
        return reply


@dataclass(frozen=True)
class Draw(Effect[Minibatch | None]):
    """The next minibatch of this segment for this learner, or None at its end.

    Synchronous strategies get the minibatch of (round, rank); asynchronous ones the next of one shared queue, so that a
    slow learner simply draws fewer. A `group` draws from the queue as one: its members are given consecutive
    minibatches the same number of times, some of them empty at the end. It must do something together between two
    draws.
    """

    group: tuple[int, ...] = ()


@dataclass(frozen=True)
class Grad(Effect[Gradient]):
    """The mean gradient over `batch` at `at`: a pure function of the two. The reply is valid until the next Grad."""

    at: Snapshot
    batch: Minibatch


@dataclass(frozen=True)
class GradMean(Effect[Gradient]):
    """`Grad`, then the mean of the group's gradients weighted by their frames, each as it arrives by `codec`. All of
    `group` must ask, with equal codecs."""

    at: Snapshot
    batch: Minibatch
    group: tuple[int, ...]
    codec: Codec = FP32

    @property
    def of_one(self) -> bool:
        """True if the mean is the learner's own gradient, unchanged."""
        return len(self.group) == 1 and self.codec.exact


@dataclass(frozen=True)
class Mean(Effect[Tensor]):
    """The weighted mean of `vector` (P,) over `group`, each as it arrives by `codec`; all its members must ask, with
    equal codecs. With weight 0 nothing is sent. The reply is valid until the next Mean.

    `vector` may be a `fragment` (n,) of a vector (P,), of which all members give the same; so is the reply then. Only
    its bytes are sent, and only its part of the codec's memory is met.
    """

    group: tuple[int, ...]
    vector: Tensor
    weight: float = 1.0
    codec: Codec = FP32
    fragment: VectorFragment = WHOLE


@dataclass(frozen=True)
class Mix(Effect[Tensor]):
    """One row of a mixing matrix, synchronous with the neighbours: the mean of the vectors (P,) that the learners in
    `weights` give in their Mix of the same number, under these weights (scaled to sum to 1).

    Vectors are taken as they arrive by `codec`, one's own as well; codecs are equal. `weights` are (rank, weight) in
    rank order, the learner itself included if it counts; `readers` are the others that have a weight for this one.
    Means and Mixes of all are numbered together, so all learners must ask for equally many. The reply is valid until
    the next Mix.
    """

    weights: tuple[tuple[int, float], ...]
    readers: tuple[int, ...]
    vector: Tensor
    codec: Codec = FP32


@dataclass(frozen=True)
class Reach(Effect[int | None]):
    """An effect on the row of another learner, or on the centre: atomic and one-sided, the peer's code takes no part.
    Abstract; the rule of each kind, which all runtimes go by, is in runtime/rows.py.

    The reply is the version of the peer's row after it, or None: the peer is dead, and nothing happened.
    """

    peer: int


@dataclass(frozen=True)
class Exchange(Reach):
    """Apply `rule` to (my row, row `peer`).

    `private` are vectors (P,) of mine that the rule reads or writes along with the rows, and `theirs` names of vectors
    that the peer's learner keeps, or that lie beside the centre, which come behind mine: they are guarded by its row's
    lock; between hosts they are for reports to the centre (algorithms/rules.py), or the names of `private`. With
    `since`, a version of the peer's row, the rule is also told how many mutations that row has seen after it. With a
    `fragment` it meets that part of both rows alone, and of all vectors that come along.

    With `decay` the rows are weighed by the square roots of their masses, m_i of mine and m_j of the peer's: the rule
    is told my share of the two, sqrt(m_i) / (sqrt(m_i) + sqrt(m_j)), or 1/2 where both are 0, and each mass is
    multiplied by its factor of `decay` (mine, the peer's). A row's mass grows by 1 with every step of its learner, so
    it is a count of steps that forgets. A learner that begins in the place of another has mass 0. For strategies that
    say they are `weighed`; the centre has no mass.

    With a `codec` that is not exact, both ends apply the rule to both rows as they arrive, m^ and t^, and each row
    changes by the rule's change of it: m <- m + rule_m(m^, t^) - m^. A rule that keeps the sum of the two still does.
    Private vectors, ages and fragments belong to rows that go as they are (FP32).
    """

    rule: Rule
    private: tuple[Tensor, ...] = ()
    since: int | None = None
    codec: Codec = FP32
    theirs: tuple[str, ...] = ()
    fragment: VectorFragment = WHOLE
    decay: tuple[float, float] | None = None


@dataclass(frozen=True)
class Fetch(Reach):
    """Copy row `peer` into the private vector `into` (P,). The version in the reply is the one read."""

    into: Tensor


@dataclass(frozen=True)
class Quorum:
    """Terms on which a gathering closes, and on which a contribution counts (docs/quorum.md)."""

    needed: int
    """Learners that must have come; where fewer live, all of them."""
    grace: float | None = None
    """Seconds after the quorum in which others may still come; None: as long as learners usually take, plus `spread`
    times the spread of that."""
    spread: float = 3.0
    drops_late: bool = False
    """True: the contribution of a late learner is dropped; else it counts in the gathering that is open."""
    guard: float | None = None
    """Standard deviations above the usual norm or loss beyond which a contribution is left out; None: no guard."""


@dataclass(frozen=True)
class Gather(Effect[bool]):
    """Come to the open gathering at the centre, and wait until it closes: when a quorum has come and its grace is over,
    or all have.

    `give` is done at once, unless the contribution is left out; `close` by one of those who came, before any of them
    goes on. Both are exchanges with the centre. A learner whose model is older than the last gathering that closed is
    late: it does not wait. One that has come for the `last` time in a segment waits until all have.

    A guard judges by the `norm` of the change and the mean `loss` on the way. The reply is True if the learner's
    contribution counts.
    """

    terms: Quorum
    give: Exchange | None
    close: Exchange
    last: bool = False
    norm: float = 0.0
    loss: float = 0.0


class Handle(Generic[R_co]):
    """An effect that was begun; `Wait` returns its reply."""

    def __init__(self) -> None:
        self.done = False
        self.reply: Any = None
        self.pending: Any = None  # belongs to the runtime

    def finish(self, reply: Any) -> None:
        """Finish the effect; the runtime calls this when it is complete."""
        self.done, self.reply = True, reply


@dataclass(frozen=True)
class Begin(Effect[Handle[R_co]]):
    """Start `effect` and go on; its row operations happen at any moment between now and the end of the wait for it."""

    effect: Effect[R_co]


@dataclass(frozen=True)
class Wait(Effect[R_co]):
    """Wait for the reply of an effect begun earlier."""

    handle: Handle[R_co]


LABELS: dict[type[Effect[Any]], str] = {
    Draw: "draw",
    Grad: "gradient",
    GradMean: "gradient mean",
    Mean: "mean",
    Mix: "mix",
    Exchange: "exchange with",
    Fetch: "fetch of",
    Wait: "wait",
    Gather: "gathering",
}
"""Names of effects for people, in the order in which tables number them; a learner is shown in the effect it began
last."""
