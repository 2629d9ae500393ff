"""Minibatches for a data loader, drawn so that a slow learner draws fewer."""

import sys
from collections.abc import Callable, Iterator, Sized
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from roundelay.attached.data_position import PassLeft
from roundelay.attached.sharing import MISSING, Fetch, Followed, LoopProgress, Shared
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.attached.learner import AttachedLearner
from roundelay.runtime.attached.shares import ShareTerms


class SharedSampler(Shared):
    """`DataLoader(dataset, batch_sampler=...)`, in the place of DistributedSampler. Made by `session.sampler`.

    All learners make it alike: another length, size of minibatches, seed or the like is refused. Each epoch has one
    shuffled order, the same on all learners, cut into rounds of one minibatch a learner
    (core/epochs.py). Under a synchronous strategy learner l of L takes the l-th of every round; each gets the same
    number, the last ones smaller, or none if there are fewer examples than learners. Under an asynchronous strategy all
    draw from one queue, so a learner that is slow draws fewer; what it has drawn and not trained is drawn by others if
    it dies.

    A data loader with workers draws ahead: `num_workers x prefetch_factor` minibatches belong to a learner before it
    comes to train them. So keep both small (0 or 1 worker, prefetch_factor 2) where learners differ in speed. None of
    them is lost where a session is saved in the middle of an epoch, nor where the learner dies (sharing.py).
    """

    def __init__(
        self,
        learner: AttachedLearner | Followed,
        number: int,
        dataset: Sized | int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        progress: Callable[[], LoopProgress],
    ) -> None:
        examples = dataset if isinstance(dataset, int) else len(dataset)
        if examples < 1 or batch_size < 1:
            raise UserError(f"a sampler of {examples} examples in minibatches of {batch_size}: both must be 1 or more.")
        self._shuffle, self._seed, self._batch_size = shuffle, seed, batch_size
        self._dataset = None if isinstance(dataset, int) or not shuffle else dataset
        whole = batch_size * learner.learners
        self._examples = examples // whole * whole if drop_last else examples
        self._of = examples
        terms = ShareTerms(examples, batch_size, seed % (1 << 63), int(bool(shuffle)), int(bool(drop_last)))
        super().__init__(learner, number, terms, progress)

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass.

        Raises:
            UserError: a loader takes its minibatches for examples of which it makes minibatches.
        """
        if isinstance(sys._getframe(1).f_locals.get("self"), BatchSampler):  # nothing else tells who asks
            raise UserError(
                f"rank {self._learner.rank}: session.sampler gives whole minibatches: write DataLoader(dataset, "
                f"batch_sampler=session.sampler(dataset, {self._batch_size})), without sampler= and batch_size=."
            )
        return super().__iter__()

    def __len__(self) -> int:
        """Return the minibatches that a learner is given in an epoch: exact under a synchronous strategy, else on
        average."""
        return self._plan(0, len(self._together), self._examples).rounds

    def _plan(self, epoch: int, cut: int, examples: int) -> EpochPlan:
        """Return an epoch, cut for so many learners."""
        return EpochPlan(epoch, examples, self._batch_size * cut, cut, self._seed)

    def _whole_pass(self) -> PassLeft:
        together, own = self._together, range(0)
        if self._synchronous:
            place, cut = together.index(self._learner.rank), len(together)
            own = range(place, self._plan(0, cut, self._examples).pieces, cut)
        return PassLeft(len(together), self._examples, own)

    def _open(self, epoch: int, left: PassLeft) -> tuple[Fetch, Callable[[], int]]:
        plan = self._plan(epoch, left.cut, left.examples)
        order = self._plan(epoch, left.cut, self._of).order() if self._shuffle else np.arange(self._of)

        def fetch(index: int) -> Any:
            piece = plan.piece(index)
            return order[piece.start : piece.stop].tolist() if piece.frames else MISSING

        return fetch, lambda: plan.pieces

    @property
    def _most_pieces(self) -> int:
        return self._plan(0, self._learner.learners, self._examples).pieces

    @property
    def _shuffled_source(self) -> object:
        return self._dataset
