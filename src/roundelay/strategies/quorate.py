"""Model averaging that goes on with those who came (docs/quorum.md).

    Wbar = W + sum_l n_l (x_l - B_l) / sum_l n_l        over those who came (algorithms/quorum.py)

in the place of the mean of all models; the use a strategy makes of Wbar stays as it is. W is the centre, which every
learner goes on from; the strategy's own memory lies beside it, and one learner of a gathering updates both. A gathering
closes when a quorum has come and a grace is over (runtime/gathering.py). A late learner gives its part to the gathering
that is open then (`late=mix`), or to none (`late=drop`), and goes on from W at once.

With a quorum, minibatches come from the queue that asynchronous strategies draw from, so a slow learner draws fewer,
and a learner that dies is waited for no longer than any other that does not come.

Sent: one model to the centre and one back (8 P bytes) a learner every `period` steps. Waits: those who come for the
quorum, every period; at the end of a segment all learners for the slowest.

The idea of a quorum with a grace that adapts is Decoupled DiLoCo's (2026, arXiv 2604.21428); where we differ: a late
part counts in full in the next mean; a gathering has all of the model.
"""

import math
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.linalg import vector_norm

from roundelay.algorithms.quorum import gathered_mean, give_
from roundelay.algorithms.rules import StrategyRule, register
from roundelay.core.bounds import NonNegative, Positive
from roundelay.core.effects import Draw, Effect, Exchange, Fetch, Gather, Grad, Quorum
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.strategies.periodic import Periodic

BASE = "gathering_base"
"""Name of a learner's vector: the model that it goes on from."""
SUMS = ("gathered", "gathered_weight")
"""Names of the vectors beside the centre: sums over the learners that came."""


@dataclass(frozen=True)
class Quorate(Periodic):
    """Blocks that may end with the mean of those learners that came. `block_memory` names a strategy's vectors, first
    the model at which an outer step begins."""

    quorum: float | None = field(default=None, kw_only=True)
    """Learners that end a block, as a share below 1 or a number; null for all (docs/quorum.md)."""
    grace: NonNegative | None = field(default=None, kw_only=True)
    """Seconds after the quorum in which others may still come; null for the time that learners usually take."""
    spread: NonNegative = field(default=3.0, kw_only=True)
    """Times the spread of their times that learners are waited for, where grace is null."""
    late: Literal["mix", "drop"] = field(default="mix", kw_only=True)
    """Treatment of contributions that come too late: they count in the next mean, or are dropped."""
    guard: Positive | None = field(default=None, kw_only=True)
    """Standard deviations above the usual norm or loss beyond which a contribution is left out; null for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_quorum()
        if self.gathers:
            traits = replace(
                type(self).traits,
                synchronous=False,
                conserves=False,
                staleness_bound=0,
                model="centre",
                waits="those who come for a quorum, every period",
                rebuilt_from=BASE,
            )
            object.__setattr__(self, "traits", traits)

    def _check_quorum(self) -> None:
        quorum, name = self.quorum, self.name
        if quorum is not None and not (0 < quorum < 1 or (quorum >= 1 and quorum == int(quorum))):
            raise UserError(
                f"{name}.quorum is {quorum:g}: give a share of the learners between 0 and 1, or a number of learners."
            )
        if self.gathers and self.local_momentum == "average":
            raise UserError(
                f"{name}.local_momentum is average: momenta are not sent to a gathering. Choose reset or keep, or "
                "leave quorum and guard out."
            )
        if quorum is None and (self.grace is not None or self.late != "mix"):
            raise UserError(f"{name}.grace and {name}.late are of a quorum: give {name}.quorum as well.")
        if self.spread != Quorate.spread and (quorum is None or self.grace is not None):
            raise UserError(f"{name}.spread is of a quorum whose grace adapts: give {name}.quorum, no {name}.grace.")

    @property
    def gathers(self) -> bool:
        """True if learners meet in gatherings, and not in means of all."""
        return self.quorum is not None or self.guard is not None

    @property
    def label(self) -> str:
        quorum = "" if self.quorum is None else f" quorum {self.quorum:g}"
        return super().label + quorum + ("" if self.guard is None else f" guard {self.guard:g}")

    @property
    def block_memory(self) -> tuple[str, ...]:
        """Names of the vectors (P,) that a strategy keeps from block to block."""
        return ()

    @property
    def memory(self) -> tuple[str, ...]:
        return (BASE,) if self.gathers else self.block_memory

    @property
    def centre_memory(self) -> tuple[str, ...]:
        return (*SUMS, *self.block_memory) if self.gathers else ()

    def check(self, learners: int) -> None:
        super().check(learners)
        if self.quorum is not None and self.quorum > learners:
            raise UserError(f"{self.name}.quorum is {self.quorum:g} with {learners} learners: give as many at most.")

    def terms(self, learners: int) -> Quorum:
        """Return the terms on which a gathering of `learners` learners closes."""
        quorum = learners if self.quorum is None else self.quorum
        needed = math.ceil(quorum * learners - 1e-9) if quorum < 1 else int(quorum)
        return Quorum(needed, self.grace, self.spread, self.late == "drop", self.guard)

    def learn(self, me: Me) -> Coroutine[Effect[Any], Any, None]:
        return self._gather_blocks(me) if self.gathers else super().learn(me)

    async def _gather_blocks(self, me: Me) -> None:
        """Run the loop of blocks, with gatherings in place of means."""
        opening = GatheringOpened(self, *self._setting(me))
        await Exchange(me.centre, opening, (me.memory[BASE],), theirs=self.centre_memory)
        steps, frames, loss = 0, 0.0, 0.0
        while batch := await Draw():
            gradient = await Grad(me.snapshot(), batch)
            me.step(gradient)
            steps, frames, loss = steps + 1, frames + gradient.weight, loss + gradient.statistics.loss
            if steps == self.period:
                await self._gather(me, frames, loss)
                steps, frames, loss = 0, 0.0, 0.0
        await self._gather(me, frames, loss, last=True)

    async def _gather(self, me: Me, frames: float, loss: float, last: bool = False) -> None:
        base, sums = me.memory[BASE], SUMS
        give = Exchange(me.centre, partial(give_, weight=frames), (base,), theirs=sums) if frames else None
        close = Exchange(me.centre, GatheringClosed(self, *self._setting(me), last), theirs=self.centre_memory)
        norm = float(vector_norm(me.x - base)) if self.guard is not None else 0.0
        await Gather(self.terms(me.learners), give, close, last, norm, loss / frames if frames else 0.0)
        await Fetch(me.centre, base)
        me.replace(base)
        if me.learners > 1 and self.local_momentum == "reset":
            me.reset_momentum()

    def _setting(self, me: Me) -> tuple[int, int, float, float]:
        """Return the numbers of a learner on which outer steps depend, as rules at the centre take them."""
        share = me.share_after_reset(self.period) if self.local_momentum == "reset" else 1.0
        return me.learners, me.minibatches_a_round, me.learning_rate, share


class _AtCentre:
    """A stand-in for a learner in a strategy's outer step at the centre: its row is a chunk of the centre, its memory
    the vectors beside that, (C,) each. Outer steps are elementwise, so they may be taken chunk by chunk."""

    def __init__(self, rule: "_BesideCentre", centre: Tensor, memory: Sequence[Tensor]) -> None:
        self.learners, self.minibatches_a_round = rule.learners, rule.minibatches_a_round
        self.learning_rate, self._share = rule.learning_rate, rule.share
        self.x, self.memory = centre, dict(zip(rule.strategy.block_memory, memory, strict=True))
        self.steps = 1 if memory and bool(memory[0].any()) else 0  # vectors beside the centre are zero at the start

    def share_after_reset(self, steps: int) -> float:
        """Return the share given for a block, whatever `steps`."""
        return self._share

    def replace(self, vector: Tensor) -> None:
        """Overwrite the chunk of the centre with `vector` (C,)."""
        self.x.copy_(vector)


@dataclass(frozen=True)
class _BesideCentre(StrategyRule):
    """A rule on the centre and the vectors beside it; its numbers are those of the learner that asks for it."""

    strategy: Quorate
    learners: int
    minibatches_a_round: int
    learning_rate: float
    share: float
    """Share of a block's distance that is left after a reset of local momentum."""

    @classmethod
    def is_of(cls, strategy: Any) -> bool:
        return isinstance(strategy, Quorate) and strategy.gathers

    def _at(self, centre: Tensor, memory: Sequence[Tensor]) -> Any:
        return _AtCentre(self, centre, memory)


@dataclass(frozen=True)
class GatheringOpened(_BesideCentre):
    """The rule at a segment's beginning: `mine` and `base` become the model to go on from, and so does the centre,
    `theirs`. All learners apply it, which changes nothing after the first time."""

    opens: ClassVar[bool] = True

    def __call__(self, mine: Tensor, theirs: Tensor, base: Tensor, *beside: Tensor) -> None:
        """Change `mine`, `theirs`, `base` and the vectors `beside` the centre, (C,), in place."""
        self.strategy.start(self._at(theirs, beside[len(SUMS) :]))
        base.copy_(theirs)
        mine.copy_(theirs)


@dataclass(frozen=True)
class GatheringClosed(_BesideCentre):
    """The rule that closes a gathering: the strategy's outer step on the mean of the learners that came. If none gave
    anything, it does nothing. After the `last` of a segment the centre is the model to evaluate."""

    last: bool

    def __call__(self, mine: Tensor, theirs: Tensor, *beside: Tensor) -> None:
        """Change the centre, `theirs`, and the vectors `beside` it, (C,), in place; `mine` is not used."""
        gathered, weights, *memory = beside
        here = self._at(theirs, memory)
        mean = gathered_mean(theirs, gathered, weights)
        if mean is not None:
            if not here.steps:
                self.strategy.start(here)
            self.strategy.end_block(here, mean)
        if self.last:
            self.strategy.finish(here)


register(GatheringOpened, report=True)
register(GatheringClosed)
