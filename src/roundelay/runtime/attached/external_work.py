"""The work of an attached learner: minibatches and gradients of the user's training loop, and the update of its row by
its own gradient, or by a mean as all that gave to it have voted.

Legend: P parameters.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from torch import Tensor

from roundelay.core.effects import Draw, Effect, Grad, GradMean
from roundelay.core.errors import UserError
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.attached import votes
from roundelay.runtime.attached.entering import AttachTerms
from roundelay.runtime.attached.membership import AT_MEETING, Attendance
from roundelay.runtime.attached.settings import Settings
from roundelay.runtime.attached.votes import Vote
from roundelay.runtime.backend import LATER, Later
from roundelay.runtime.procs.backend import LearnerWork
from roundelay.runtime.procs.coordination.means import PAUSES, Means, MemberLost
from roundelay.runtime.procs.memory.bell import bell_of_session
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.vectors import ArenaAccess

LayOut = Callable[[], Tensor]
"""Function that returns a gradient's vector, (P,)."""
GRADIENTS = (Grad, GradMean)
"""Effects that a gradient answers."""
NUMBERLESS = Minibatch(0, -1, 0, 0)
"""A minibatch of the user's loop; its gradient says how many examples it has."""


@final
class LoopGradient(Gradient):
    """The gradient of the user's loop, whose vector is laid out when it is asked for: most strategies never ask, and a
    copy costs two passes over its elements.

    Args:
        lay_out: returns the vector (P,); valid while the answer that this gradient was given with is under way.
    """

    def __init__(self, lay_out: LayOut, version: int, statistics: Statistics, weight: float) -> None:
        self.__dict__.update(lay_out=lay_out, version=version, statistics=statistics, weight=weight)

    def __getattr__(self, name: str) -> Any:  # called for attributes that are not set yet
        if name != "vector":
            raise AttributeError(name)
        vector = self.__dict__["lay_out"]()
        object.__setattr__(self, name, vector)
        return vector


class ExternalWork(LearnerWork):
    """Minibatches and gradients of the user's loop as a strategy asks for them: LATER until the loop has begun a
    minibatch, or has its gradient (P,), which lies in `buffer` or can be laid out."""

    at_once = (Draw, Grad)

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._drawn: Minibatch | Later | None = LATER
        self._examples: float | None = None
        self._lay_out: LayOut | None = None
        self._last = 0.0, Statistics()  # examples of the last gradient

    @property
    def weighs_first(self) -> bool:
        return False

    def hand_out(self, batch: Minibatch | None) -> None:
        """Answer the strategy's next Draw, once, with `batch`."""
        self._drawn = batch

    def hand_in(self, examples: float, lay_out: LayOut | None = None) -> None:
        """Answer the strategy's next Grad, once, with the mean gradient of `examples` examples. `lay_out` returns its
        vector (P,); None: it is in the buffer."""
        self._examples, self._lay_out = examples, lay_out

    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        found, self._drawn = self._drawn, LATER
        return found

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        examples, self._examples = self._examples, None
        if examples is None:
            return LATER
        lay_out = self._lay_out or (lambda: self._buffer)
        if examples != self._last[0]:  # most steps have as many
            self._last = examples, Statistics(round(examples))
        statistics = self._last[1]
        if isinstance(effect, GradMean) and not effect.of_one:  # the others read the buffer
            return Gradient(lay_out(), effect.at.version, statistics, examples)
        return LoopGradient(lay_out, effect.at.version, statistics, examples)


EMPTY_WEIGHT = 1e-30
"""Weight of an empty minibatch: where all are empty, a mean is still one."""

Update = Callable[[Gradient, bool, Sequence[bool]], bool]


class VotedUpdate:
    """The row's update by a gradient, as learners have voted: it calls `update`, or leaves the row alone where there
    was nothing to learn from, or a learner skips.

    Args:
        buffer: buffer of the learner's own gradients, (P,).
        asked: returns the effect that the strategy was last answered.
        settings: the optimizer settings of this learner.
    """

    def __init__(
        self,
        access: ArenaAccess,
        terms: AttachTerms,
        means: Means,
        buffer: Tensor,
        update: Update,
        asked: Callable[[], Effect[object] | None],
        settings: Settings,
    ) -> None:
        self._arena, self._rank, self._terms, self._means = access.arena, access.rank, terms, means
        self._buffer, self._update, self._asked, self._patience = buffer, update, asked, access.patience
        self._everyone = tuple(range(access.arena.layout.learners))
        self._examples, self._vote = 0.0, Vote((False,) * terms.tensors)
        self._settings = settings
        self._bell, self._counted = bell_of_session(access.arena), False
        self._rung, self._ending = self._bell.hung, access.arena.view(Attendance).ending
        self._together = terms.strategy.traits.synchronous

    def begin_round(self, segment: int) -> None:
        """Begin the next round; wake the process for other hosts if a learner that has ended the segment may wait."""
        publish(self._arena.queue.rounds, self._rank, self._round + 1)
        if self._rung and (self._ending >= segment).any():
            self._bell.ring()

    def vote(self, examples: float, vote: Vote) -> None:
        """Write, before learners take a mean, that this round's gradient is of `examples` examples, and this learner's
        `vote`."""
        self._examples, self._vote = examples, vote
        self._settings.taken += examples >= 2 * EMPTY_WEIGHT
        if not (self._together or isinstance(self._asked(), GradMean)):
            return  # no mean is taken of it
        votes.cast(self._arena, self._rank, self._round, vote, self._settings.kept.packed())
        if self._counted:  # learners of other hosts that take means count it too
            self._bell.ring()

    @property
    def _round(self) -> int:
        return int(self._arena.queue.rounds[self._rank])

    def __call__(self, gradient: Gradient) -> bool:
        """Update the row by `gradient`: the loop's own, the mean that was just taken, or one that was begun in the
        round before. Return True if the snapshot equals the row afterwards.

        Raises:
            MemberLost: a learner died that gave to the mean, as far as others know, and its vote never came; where
            others go on without, that vote does not count.
            UserError: another learner's parameters were changed by hand and these were not.
        """
        if isinstance(gradient, LoopGradient) or gradient.vector is self._buffer:
            return self._examples >= 2 * EMPTY_WEIGHT and self._update(gradient, True, self._vote.given)
        if self._means.total < 2 * EMPTY_WEIGHT * len(self._everyone):
            return False
        asked = self._asked()
        late = not isinstance(asked, GradMean)
        group: Sequence[int] = asked.group if isinstance(asked, GradMean) else self._everyone
        round_ = self._round - late
        if not round_:  # of the segment before
            present = self._arena.view(Attendance).present
            with self._settings.under_at_meeting([rank for rank in group if present[rank] == AT_MEETING]):
                return self._update(gradient, False, (True,) * self._terms.tensors)
        if missing_mine := votes.missing(self._arena, [self._rank], round_):
            raise RuntimeError(
                f"learner {missing_mine[0]} updates by a mean of gradients that it has not voted on: strategies that "
                "are not synchronous take such means by GradMean"
            )
        self._counted = True
        self._patience.until(
            lambda: self._have_voted(group, round_),
            f"the votes of round {round_}",
            PAUSES,
            lambda: votes.missing(self._arena, group, round_),
        )
        if self._terms.goes_on:
            absent = votes.missing(self._arena, group, round_)
            group = [rank for rank in group if rank not in absent]
        together = votes.count(self._arena, group, round_, self._terms.tensors)
        self._check_changes(group, round_)
        with self._numbers_of_all(group, round_):
            return not together.skip and self._update(gradient, False, together.given)

    def _numbers_of_all(self, group: Sequence[int], round_: int) -> AbstractContextManager[None]:
        """Return a context with the optimizers' numbers that all of `group` use for a mean begun in round `round_`."""
        lowest = votes.lowest(self._arena, group, round_)
        if lowest is None:
            return nullcontext()
        mine, theirs = (votes.numbers(self._arena, rank, round_) for rank in (self._rank, lowest))
        return self._settings.under(lowest, mine, theirs, had=any(self._vote.given))

    def _have_voted(self, group: Sequence[int], round_: int) -> bool:
        """
        Raises:
            MemberLost: a learner died before it has.
        """
        alive = self._arena.liveness.alive
        gone = [rank for rank in group if not alive[rank]]  # before their votes are read, which are the last then
        missing = votes.missing(self._arena, group, round_)
        if self._terms.goes_on:
            return set(missing) <= set(gone)
        for rank in missing:
            if rank in gone:
                raise MemberLost(rank)
        return not missing

    def _check_changes(self, group: Sequence[int], round_: int) -> None:
        changes = votes.changes(self._arena, group, round_)
        if len(set(changes.values())) > 1:
            changed, strategy = [rank for rank, what in changes.items() if what], self._terms.strategy.name
            raise UserError(
                f"rank {self._rank}: of learners {list(changes)}, whose gradients {strategy} averages, "
                f"{changed} changed parameters by hand after the last step (clamped, loaded or initialised them, for "
                "example), and the others did not, or otherwise: they would train different models from here on. Make "
                "the same change on every learner."
            )
