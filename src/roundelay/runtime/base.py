"""The interface of all runtimes: run a segment of a strategy, hand out the state, take it back.

Legend: P parameters, L learners.
"""

import dataclasses
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean
from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.live import HostSeen
from roundelay.core.rates import LearnersRate, Warmup
from roundelay.core.slow import Spent
from roundelay.core.state import Statistics
from roundelay.learner.base import Task
from roundelay.runtime.gathering import Gathered
from roundelay.runtime.lanes import Span
from roundelay.runtime.learners_rate import RateFactor, noise_memory, rate_factor, settled
from roundelay.runtime.messages import RowNumber
from roundelay.strategies.base import Strategy

STALENESS_BINS = 64
"""Bins of the staleness histogram; the last collects everything above."""


def of_centre(name: str) -> bool:
    """Return True if `name`, of a vector in a `ClusterState`, is that of the centre or of a vector kept beside it."""
    return name.partition(" ")[0] == "centre"


def wall_clock() -> float:
    """Return seconds on a clock that never goes back. All other code reads this clock and no other."""
    return time.monotonic()


@dataclass(frozen=True)
class Straggler:
    """A learner made slow on purpose: its gradients take `factor` times as long, plus `seconds`."""

    rank: int
    factor: float = 1.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (1 <= self.factor < math.inf and 0 <= self.seconds < math.inf):
            raise UserError(
                f"straggler {self.rank} takes {self.factor:g} times as long plus {self.seconds:g} s: a straggler is "
                "slow, so give a factor of 1 or more, or seconds of 0 or more."
            )


def parse_straggler(text: str) -> Straggler:
    """Return the straggler of `1:3x` (learner 1 takes three times as long) or `1:+0.4` (0.4 s more for every gradient).

    Raises:
        UserError: `text` has another form.
    """
    rank, _, handicap = text.partition(":")
    try:
        if handicap.endswith("x"):
            return Straggler(int(rank), factor=float(handicap[:-1]))
        if handicap.startswith("+"):
            return Straggler(int(rank), seconds=float(handicap[1:].removesuffix("s")))
    except ValueError:
        pass
    raise UserError(f"straggler {text!r}: write RANK:FACTORx or RANK:+SECONDS, for example 1:3x or 1:+0.4.")


@dataclass(frozen=True)
class Cluster:
    """Everything a runtime needs that is not the state of a run."""

    strategy: Strategy
    task: Task
    optimizer: LocalOptimizer
    learners: int
    seed: int = 0
    stragglers: tuple[Straggler, ...] = ()
    shared_minibatch: bool = True
    """True if all learners share a round's minibatch; else each has one of its own."""
    rate: LearnersRate = "as-is"
    """Factor on the learning rate of several learners."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", settled(self.rate, self.strategy, self.shared_minibatch))
        object.__setattr__(self, "strategy", self.strategy.under(self.rate, self.shared_minibatch))

    @property
    def minibatches_a_round(self) -> int:
        """Number of minibatches, of one learner's size, in a round of all learners."""
        return 1 if self.shared_minibatch else self.learners

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the vectors (P,) a learner has besides its row; they start at zero and are in every checkpoint."""
        return (*self.optimizer.memory, *self.strategy.memory, *self._noise[0])

    @property
    def _noise(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        several = max(2, self.learners)  # one learner keeps them as well: others may join when it is resumed
        return noise_memory(self.rate, self.strategy.largest_factor(several, self.shared_minibatch))

    def rate_factor(self, memory: Mapping[str, Tensor], scalars: NDArray[np.float64]) -> RateFactor | None:
        """Return the factor on the learning rate of a learner, estimated in its memory and scalars; None: always 1."""
        begin, number = len(self.optimizer.scalars), len(self._noise[1])
        return rate_factor(self.rate, self.strategy, self.shared_minibatch, memory, scalars[begin : begin + number])

    @property
    def scalars(self) -> int:
        """Count of the numbers that a learner has besides its vectors: its optimizer's, those of the noise of its
        gradients where its rate goes by it, and then the mass of its row, if the strategy weighs rows."""
        return len(self.optimizer.scalars) + len(self._noise[1]) + self.strategy.weighed

    @property
    def centre(self) -> bool:
        """True if the strategy has a centre row besides the learners' rows."""
        return self.strategy.traits.model == "centre"

    @property
    def centre_vectors(self) -> dict[str, str]:
        """Names in a `ClusterState` of the vectors kept beside the centre, by their names in the strategy."""
        return {name: f"centre {name}" for name in self.strategy.centre_memory}

    def stop_round(self, reached: int) -> int:
        """Return the round before which an interrupted segment ends, after the furthest learner began `reached`."""
        return -(-reached // self.strategy.block) * self.strategy.block

    def straggler(self, rank: int) -> Straggler:
        """Return by how much learner `rank` is slowed down; by default not at all."""
        return next((s for s in self.stragglers if s.rank == rank), Straggler(rank))


@dataclass(frozen=True)
class SegmentPlan:
    """A stretch of an epoch: from minibatch `first` (a multiple of L) up to round `last_round`, at one learning rate,
    or at less of it while it is warmed up."""

    epoch: EpochPlan
    learning_rate: float
    first: int = 0
    last_round: int | None = None
    warmup: Warmup | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the part of the plan that a learner in another process gets, as JSON."""
        return {
            "epoch": self.epoch.to_json(),
            "learning_rate": self.learning_rate,
            "first": self.first,
            "warmup": self.warmup and dataclasses.asdict(self.warmup),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "SegmentPlan":
        """Return the plan in a mapping from `to_json`, without the last round, which a learner reads in the arena."""
        warmup = value["warmup"] and Warmup(**value["warmup"])
        return cls(EpochPlan.from_json(value["epoch"]), value["learning_rate"], value["first"], warmup=warmup)

    @property
    def first_round(self) -> int:
        """The first round of this segment."""
        return self.first // self.epoch.learners

    @property
    def end_round(self) -> int:
        """The round this segment stops before."""
        return self.epoch.rounds if self.last_round is None else min(self.last_round, self.epoch.rounds)

    def missing(self, frames: Sequence[int], end: int, synchronous: bool) -> tuple[int, ...]:
        """Return examples of this segment that no learner has trained, by the rank of the learner whose part they were.

        Learners that draw from one order have one part, that of the first of them. Under a synchronous strategy every
        learner has its own; else those of a host have, where hosts draw from their own shards; else all have one.

        Args:
            frames: examples counted in this segment, by rank.
            end: minibatch before which the segment stopped.
        """
        plan, rounds = self.epoch, (self.first_round, max(self.first_round, -(-end // self.epoch.learners)))
        found = [0] * plan.learners
        if plan.examples_between(*rounds) == sum(frames):
            return tuple(found)
        for group in plan.orders:
            there = not plan.among or not {*plan.among}.isdisjoint(group)
            cut = plan if there else dataclasses.replace(plan, among=())  # all of a share's learners are gone
            for part in [range(rank, rank + 1) for rank in group] if synchronous else [group]:
                found[part.start] = cut.examples_of(part, *rounds) - sum(frames[rank] for rank in part)
        return tuple(found)

    def rate(self, round_: int) -> float:
        """Return the learning rate of a round of the epoch. All runtimes call this function, so that they agree bit for
        bit."""
        return self.learning_rate if self.warmup is None else self.learning_rate * self.warmup.factor(round_)


@dataclass(frozen=True)
class Lost:
    """A learner that died in this segment, and the reason as far as it is known."""

    rank: RowNumber
    reason: str
    replaced: bool = False  # another was started in its place
    torn: tuple[RowNumber, ...] = ()  # rows it left half written


@dataclass(frozen=True)
class Joined:
    """A new learner that took a lost one's place in this segment."""

    rank: RowNumber
    copied: RowNumber | None  # rank of the row it began with; None: the centre


@dataclass(frozen=True)
class HostGone:
    """A host that was lost in this segment, or after the one before it."""

    host: int
    ranks: tuple[int, ...]
    reason: str
    redrawn: int = 0  # minibatches that were leased to it, and that others drew again


@dataclass(frozen=True)
class HostBack:
    """A host that took a lost one's place."""

    host: int
    ranks: tuple[int, ...]
    copied: int | None  # rank of the row its learners began with; None: the centre


@dataclass(frozen=True)
class Traffic:
    """Bytes that one host sent to another in a segment, and the seconds it waited for it."""

    host: RowNumber
    peer: RowNumber
    sent_bytes: int
    received_bytes: int
    waited_s: float = 0.0


@dataclass
class Counts:
    """Counters of learners while they train, by rank; all int64 or float64 arrays."""

    steps: NDArray[np.int64]  # (L,) minibatches applied
    frames: NDArray[np.int64]  # (L,)
    correct: NDArray[np.int64]  # (L,)
    loss: NDArray[np.float64]  # (L,) summed cross-entropy
    staleness: NDArray[np.int64]  # (L, STALENESS_BINS)
    stalest: NDArray[np.int64]  # (L,) largest staleness seen
    stale_sum: NDArray[np.int64]  # (L,) summed staleness
    exchanges: NDArray[np.int64]  # (L, L), or (L, L + 1) with a centre: begun by the row's learner with the column's
    gradient_norm: NDArray[np.float64]  # (L,) summed Euclidean norms of the gradients that were measured
    gradient_norms: NDArray[np.int64]  # (L,) how many were
    rate_factors: NDArray[np.float64]  # (L,) summed factors on the learning rate, of all steps

    # Seconds of this learner's own time, where they are real: the simulator is calibrated with them.
    gradient_s: NDArray[np.float64]  # (L,) computing gradients
    update_s: NDArray[np.float64]  # (L,) in the strategy's own code: local updates, and its work on replies
    exchange_s: NDArray[np.float64]  # (L,) exchanging and fetching, waits for a busy row included
    mean_s: NDArray[np.float64]  # (L,) in means, waits for the others included
    between_s: NDArray[np.float64]  # (L,) in draws, and in the user's loop between two steps: waits for batches
    meeting_s: NDArray[np.float64]  # (L,) at meetings, outside of means, waits for the others included
    coreless_s: NDArray[np.float64]  # (L,) of all these: ready to run, while others had the cores
    means: NDArray[np.int64]  # (L,) means taken part in

    @classmethod
    def zeros(cls, learners: int, centre: bool = False) -> "Counts":
        """Return counts before anything was counted."""
        shapes = {"staleness": (learners, STALENESS_BINS), "exchanges": (learners, learners + centre)}
        numbers = {}
        for name in (item.name for item in dataclasses.fields(cls)):
            real = name in ("loss", "gradient_norm", "rate_factors") or name.endswith("_s")
            kind: type[np.number[Any]] = np.float64 if real else np.int64
            numbers[name] = np.zeros(shapes.get(name, (learners,)), kind)
        return cls(**numbers)

    def copy(self) -> "Counts":
        """Return a copy of the counts, which later counting does not change."""
        return Counts(
            **{
                # a table of zeros takes no memory before it is written, and that of exchanges has L^2 of them
                name: array.copy() if array.any() else np.zeros(array.shape, array.dtype)
                for name, array in vars(self).items()
            }
        )

    def spent(self) -> tuple[Spent, ...]:
        """Return what each learner's seconds were spent on."""
        computing = self.gradient_s + self.update_s
        tables = (self.steps, computing, self.between_s, self.exchange_s, self.mean_s, self.meeting_s, self.coreless_s)
        return tuple(map(Spent, *(table.tolist() for table in tables)))

    def clear(self) -> None:
        """Set all counts to zero."""
        for array in vars(self).values():
            if array.any():
                array[...] = 0

    @property
    def statistics(self) -> Statistics:
        """Training loss and accuracy over all learners."""
        return Statistics(int(self.frames.sum()), float(self.loss.sum()), int(self.correct.sum()))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a segment: what was counted, and which learners and hosts were lost or joined."""

    counts: Counts
    next: int  # first minibatch not trained; a multiple of L
    finished: bool  # False: stopped on request before its end
    wall_seconds: float
    virtual_seconds: float | None = None
    lost: tuple[Lost, ...] = ()
    joined: tuple[Joined, ...] = ()
    redrawn: int = 0  # minibatches that their learners did not finish, and others drew again
    hosts_lost: tuple[HostGone, ...] = ()
    hosts_joined: tuple[HostBack, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    forms: Mapping[int, str] = field(default_factory=dict)  # of rows, in words, by the host they are exchanged with
    refused: int = 0  # connections from outside closed as bad (`RejectedConnections`), since the start
    gathered: Gathered | None = None  # contributions to gatherings, if any closed
    lanes: Mapping[int, list[Span]] = field(default_factory=dict)  # by rank, since the first span of all
    missing: tuple[int, ...] = ()  # examples of the segment that none trained, by rank: see `SegmentPlan.missing`


class LearnerDied(Exception):
    """A learner died and the run cannot go on without it; the state of this segment is lost, earlier ones are not.
    `frames` were trained in the segment. With `last` no other learner is left."""

    def __init__(self, rank: int, reason: str, frames: int = 0, last: bool = False) -> None:
        super().__init__(f"learner {rank} died: {reason}")
        self.rank, self.reason, self.frames, self.last = rank, reason, frames, last


def ended_by_death(strategy: Strategy) -> tuple[str, str]:
    """Return the reason, and a sentence on it, why a death ends a run even if `training.on_death` lets learners go on
    from memory; "" if the strategy allows that."""
    if not strategy.traits.synchronous:
        return "--on-death stop ends the run", "With --on-death go-on, or replace, the others train on."
    why = f"{strategy.label} cannot go on without it"
    return why, "" if strategy.traits.model == "centre" else "With --on-death go-on the others train on."


@dataclass(frozen=True)
class ClusterState:
    """The state of a cluster that checkpoints keep: vectors by name ((L, P) each: rows, momentum, ...; "centre", and
    vectors beside it, whose names begin with that word, are (1, P)), integers by name ((L,) each; versions (L + 1,)
    with a centre), clock.

    Numbers in float64: `scalars`, (L, n), of each learner (`Cluster.scalars`); `centre gatherings`, (1, n), of
    gathering.py.
    """

    vectors: dict[str, Tensor]
    integers: dict[str, list[int]]
    virtual_ns: int = 0


@dataclass(frozen=True)
class Glance:
    """Progress of a segment, for the progress bar and `roundelay status`."""

    frames: int
    loss: float
    staleness: float
    learners_alive: int
    virtual_seconds: float | None = None
    living: tuple[int, ...] | None = None  # ranks, where learners are real
    learner_frames: tuple[int, ...] = ()  # by rank, where they are real
    lost: tuple[Lost, ...] = ()  # in this segment
    consensus_distance: float | None = None  # see `glanced_distance`
    hosts: tuple[HostSeen, ...] = ()  # where there are several
    steps: int = 0  # minibatches applied
    gradient_norm_sum: float = 0.0  # of gradients that were measured
    gradient_norms: int = 0  # how many were
    spent: tuple[Spent, ...] = ()  # seconds by rank, where they are real

    @classmethod
    def of(cls, counts: Counts, learners_alive: int, **known: Any) -> "Glance":
        """Return the progress that `counts` show."""
        statistics, steps = counts.statistics, int(counts.steps.sum())
        return cls(
            statistics.frames,
            statistics.mean_loss,
            float(counts.stale_sum.sum() / max(1, steps)),
            learners_alive,
            steps=steps,
            gradient_norm_sum=float(counts.gradient_norm.sum()),
            gradient_norms=int(counts.gradient_norms.sum()),
            **known,
        )


Watch = Callable[[Glance], bool]
"""Function called a few times a second, which returns True to stop the segment at the next round."""


def keep_going(_: Glance) -> bool:
    """Return False: never stop the segment."""
    return False


@dataclass
class Runtime(ABC):
    """A running cluster. Between segments its state can be read and replaced; use as a context manager."""

    cluster: Cluster
    parameters: int = field(init=False)
    stopped_by: str = field(default="", init=False)
    """Name of the signal that stops the run, if another host got it; "" if none did."""

    def divided(self, plan: EpochPlan) -> EpochPlan:
        """Return the plan with a share for each host, if hosts have only some of the examples; else unchanged."""
        return plan

    @abstractmethod
    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        """Run the strategy over the plan's minibatches on all learners."""

    @abstractmethod
    def state(self) -> ClusterState:
        """Return a copy of the state of all learners: everything that a checkpoint needs."""

    @abstractmethod
    def load(self, state: ClusterState) -> None:
        """Go on from `state` (same strategy, learners and parameters)."""

    @abstractmethod
    def rows(self) -> Tensor:
        """Return the rows of the living holders as they are, (L', P). Not a copy: read it between segments only."""

    @abstractmethod
    def shares(self) -> list[float] | None:
        """Return the shares of the rows, as of the last `rows`, in the model to evaluate, by their masses; None: the
        strategy does not weigh rows."""

    @abstractmethod
    def centre(self) -> Tensor:
        """Return the centre row, (P,), if the strategy has one; not a copy."""

    @property
    def remark(self) -> str:
        """Sentence for the user at the beginning of a run; "" if there is none."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Stop all processes, free all memory. Safe to call twice."""

    def consensus(self) -> Tensor:
        """Return the model to evaluate, (P,): the centre, or the mean of all holders' rows, weighted by their masses
        where the strategy weighs them."""
        if self.cluster.centre:
            return self.centre()
        rows, shares = self.rows(), self.shares()
        return rows.mean(0) if shares is None else weighted_mean(list(rows), shares)

    def consensus_distance(self) -> float:
        """Return the root mean square, over learners and parameters, of (row - mean of rows)."""
        rows = self.rows()
        if len(rows) == 1 or not rows.numel():
            return 0.0
        mean, squares = rows.mean(0), 0.0
        for row in rows:
            squares += float(torch.sub(row, mean).square_().mean())
        return float((squares / len(rows)) ** 0.5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def staleness_summary(counts: Counts) -> tuple[list[int], int, float]:
    """Return (histogram without empty tail, largest, mean) of the staleness over all learners."""
    total = counts.staleness.sum(0)
    used = int(np.flatnonzero(total)[-1]) + 1 if total.any() else 0
    return (
        [int(n) for n in total[:used]],
        int(counts.stalest.max()),
        float(counts.stale_sum.sum() / max(1, total.sum())),
    )
