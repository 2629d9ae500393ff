"""Minibatches for a data loader, drawn so that a slow learner draws fewer."""

from collections import Counter
from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import Sampler

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.attached.learner import AttachedLearner


class SharedSampler(Sampler[list[int]]):
    """`DataLoader(dataset, batch_sampler=...)`, in the place of DistributedSampler. Made by `session.sampler`.

    Each epoch has one shuffled order, the same on all learners, cut into rounds of one minibatch a learner
    (core/epochs.py). Under a synchronous strategy learner l of L takes the l-th of every round; each gets the same
    number, the last ones smaller, or none if there are fewer examples than learners. Under an asynchronous strategy all
    draw from one queue, so a learner that is slow draws fewer; the minibatch a learner has drawn last is drawn by
    somebody else if it dies.

    A data loader with workers draws ahead: `num_workers x prefetch_factor` minibatches belong to a learner before it
    comes to train them. So keep both small (0 or 1 worker, prefetch_factor 2) where learners differ in speed; those
    drawn ahead by a learner that dies are lost for the epoch, but for the last.
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
        self._round = batch_size * learner.learners
        self._examples = examples // self._round * self._round if drop_last else examples
        self._of = examples
        self._epoch = 0
        self._gone_through: Counter[int] = Counter()

    def set_epoch(self, epoch: int) -> None:
        """Sets the order of the next pass. Without a call each pass takes the next order."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Minibatches a learner is given in an epoch: exact under a synchronous strategy, else on average."""
        return EpochPlan(0, self._examples, self._round, self._learner.learners, 0).rounds

    def __iter__(self) -> Iterator[list[int]]:
        learner, epoch = self._learner, self._epoch
        self._epoch = epoch + 1
        key = (self._number, epoch, self._gone_through[epoch])
        self._gone_through[epoch] += 1
        plan = EpochPlan(epoch, self._examples, self._round, learner.learners, self._seed)
        order = EpochPlan(epoch, self._of, self._round, learner.learners, self._seed).order()
        if not self._shuffle:
            order = np.arange(self._of)
        for index in self._indices(key, plan):
            piece = plan.piece(index)
            if piece.frames:
                yield order[piece.start : piece.stop].tolist()

    def _indices(self, key: tuple[int, int, int], plan: EpochPlan) -> Iterator[int]:
        learner = self._learner
        if learner.strategy.traits.synchronous:
            yield from range(learner.rank, plan.pieces, learner.learners)
            return
        while (index := learner.draw_piece(key, plan.pieces)) is not None:
            yield index


def size_of(dataset: Sized | int) -> int:
    """Its number of examples."""
    return dataset if isinstance(dataset, int) else len(dataset)
