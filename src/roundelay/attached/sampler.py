"""Minibatches for a data loader, drawn so that a slow learner draws fewer."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from roundelay.attached.data_position import DataPosition, Key, PassLeft
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.attached.learner import AttachedLearner
from roundelay.runtime.attached.shares import ShareTerms


class SharedSampler(Sampler[list[int]]):
    """`DataLoader(dataset, batch_sampler=...)`, in the place of DistributedSampler. Made by `session.sampler`.

    All learners make it alike: another length, size of minibatches, seed or the like is refused. Each epoch has one
    shuffled order, the same on all learners, cut into rounds of one minibatch a learner
    (core/epochs.py). Under a synchronous strategy learner l of L takes the l-th of every round; each gets the same
    number, the last ones smaller, or none if there are fewer examples than learners. Under an asynchronous strategy all
    draw from one queue, so a learner that is slow draws fewer; the minibatch a learner has drawn last is drawn by
    somebody else if it dies.

    A data loader with workers draws ahead: `num_workers x prefetch_factor` minibatches belong to a learner before it
    comes to train them. So keep both small (0 or 1 worker, prefetch_factor 2) where learners differ in speed; those
    drawn ahead by a learner that dies are lost for the epoch, but for the last. The same holds for those drawn ahead
    when a session is saved in the middle of an epoch; without workers nothing is lost.
    """

    def __init__(
        self,
        learner: AttachedLearner,
        number: int,
        examples: int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> None:
        if examples < 1 or batch_size < 1:
            raise UserError(f"a sampler of {examples} examples in minibatches of {batch_size}: both must be 1 or more.")
        self._learner, self._number, self._shuffle, self._seed = learner, number, shuffle, seed
        self._batch_size = batch_size
        whole = batch_size * learner.learners
        self._examples = examples // whole * whole if drop_last else examples
        self._of, self._agreed = examples, False
        terms = ShareTerms(examples, batch_size, seed % (1 << 63), int(bool(shuffle)), int(bool(drop_last)))
        learner.make_share(number, terms)
        self._epoch = 0
        self._gone_through: Counter[int] = Counter()
        self._left: dict[Key, PassLeft] = {}
        """Passes that a session before has left under way."""
        self._now: _Pass | None = None
        self.completed: Callable[[], int] = lambda: 0
        """Number of steps the learner has completed: what was drawn since is not trained yet."""

    @property
    def epoch(self) -> int:
        """Epoch of the next pass: where a session has resumed in the middle of one, that epoch, so that a loop
        begins with it: `for epoch in range(sampler.epoch, epochs)`."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the order of the next pass. Without a call each pass takes the next order."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Minibatches a learner is given in an epoch: exact under a synchronous strategy, else on average."""
        return self._plan(0, len(self._together), self._examples).rounds

    @property
    def _together(self) -> Sequence[int]:
        """Ranks that share out the next pass: under a synchronous strategy those that take part in this segment."""
        learner = self._learner
        fixed = learner.left or not learner.strategy.traits.synchronous
        return range(learner.learners) if fixed else learner.me.living

    def _plan(self, epoch: int, cut: int, examples: int) -> EpochPlan:
        """An epoch, cut for so many learners."""
        return EpochPlan(epoch, examples, self._batch_size * cut, cut, self._seed)

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self._epoch
        times = self._gone_through[epoch]
        self._epoch, self._gone_through[epoch] = epoch + 1, times + 1
        left = self._left.pop((epoch, times), None) or self._whole_pass()
        plan = self._plan(epoch, left.cut, left.examples)
        order = self._plan(epoch, left.cut, self._of).order() if self._shuffle else np.arange(self._of)
        self._now = now = _Pass((epoch, times), left)
        try:
            for index in self._indices((self._number, epoch, times), plan, left.pieces):
                self._agreed = self._agreed or self._learner.share_is_agreed(self._number)
                now.take(index, self.completed())
                piece = plan.piece(index)
                if piece.frames:
                    yield order[piece.start : piece.stop].tolist()
        finally:
            if self._now is now:
                self._now = None

    def _whole_pass(self) -> PassLeft:
        together, own = self._together, range(0)
        if self._learner.strategy.traits.synchronous:
            place, cut = together.index(self._learner.rank), len(together)
            own = range(place, self._plan(0, cut, self._examples).pieces, cut)
        return PassLeft(len(together), self._examples, own)

    def _indices(self, key: tuple[int, int, int], plan: EpochPlan, own: Sequence[int]) -> Iterator[int]:
        learner = self._learner
        yield from own
        if not learner.strategy.traits.synchronous:
            while (index := learner.draw_piece(key, plan.pieces)) is not None:
                yield index

    def state(self) -> dict[str, Any]:
        """Its position, for a save: that of the pass under way, or of the next."""
        now, times, left = self._now, dict(self._gone_through), dict(self._left)
        key = self._epoch, times.get(self._epoch, 0)
        if now is not None:
            key = now.key
            times[key[0]], left[key] = key[1], now.left(self.completed())
        return {
            "number": self._number,
            "learners": self._learner.learners,
            "batch_size": self._batch_size,
            "dataset": self._of,
            "examples": self._examples,
            "epoch": key[0],
            "nth": key[1],
            "times": [list(one) for one in times.items()],
            "left": [[*key, one.to_plain()] for key, one in left.items()],
        }

    def resume(self, position: DataPosition) -> None:
        """Begin where a session before has stopped.

        Raises:
            UserError: that one shared out other examples.
        """
        if (position.batch_size, position.dataset) != (self._batch_size, self._of):
            raise UserError(
                f"sampler {self._number} of this session shares out {self._of} examples in minibatches of "
                f"{self._batch_size}, that of the save {position.dataset} in minibatches of {position.batch_size}: "
                "make the same samplers in the same order to resume where the data were."
            )
        self._epoch, self._gone_through = position.epoch, Counter(position.times)
        self._left = dict(position.left)

    def join(self) -> None:
        """Begin where the learners of a session that runs are."""
        pieces = self._plan(0, self._learner.learners, self._examples).pieces
        self._epoch, times = self._learner.saved.epoch_under_way(self._number, pieces)
        self._gone_through[self._epoch] = times


class _Pass:
    """A pass under way, of which so much was left when it began here."""

    def __init__(self, key: Key, begun: PassLeft) -> None:
        self.key, self._begun = key, begun
        self._taken, self._completed = 0, -1
        self._since: list[int] = []  # drawn since the last step that was completed

    def take(self, index: int, completed: int) -> None:
        """Minibatch `index` is drawn, after so many completed steps."""
        if completed != self._completed:
            self._since, self._completed = [], completed
        self._since.append(index)
        self._taken += 1

    def left(self, completed: int) -> PassLeft:
        """Minibatches that are still this learner's, after so many completed steps: those drawn and not trained, and
        those of its own that are not drawn."""
        own = self._begun.pieces[self._taken :]
        if completed == self._completed:
            own = [*self._since, *own]
        return PassLeft(self._begun.cut, self._begun.examples, own)


def size_of(dataset: Sized | int) -> int:
    """Its number of examples."""
    return dataset if isinstance(dataset, int) else len(dataset)
