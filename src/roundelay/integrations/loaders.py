"""Data loaders that toolkits have made, whose batches are shared out."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, cast, final

import torch
from torch.utils.data import DataLoader, IterableDataset

from roundelay.attached import Session


@final
class EpochOrder:
    """A sampler around another, whose order depends on seed and epoch alone: all learners go through the same order,
    though the other draws random numbers.

    Args:
        evenly: number of learners that get equally many batches. The batches of an incomplete last round are cut into
            smaller ones, and left out if they have fewer examples than learners.
    """

    def __init__(self, sampler: Any, seed: int, evenly: int = 1) -> None:
        self._sampler, self._seed, self.epoch, self._evenly = sampler, seed, 0, evenly

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next order is drawn for."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._sampler) if self._evenly == 1 else len(self._order())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order())

    def _order(self) -> list[Any]:
        parts: list[Any] = [self._sampler, getattr(self._sampler, "sampler", None)]
        for part in parts:
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(self.epoch)
        own = [one for part in parts if isinstance(one := getattr(part, "generator", None), torch.Generator)]
        before = [generator.get_state() for generator in own]
        with torch.random.fork_rng(devices=[]):
            for generator in (torch.default_generator, *own):
                generator.manual_seed(self._seed + self.epoch)
            batches = list(self._sampler)
        for generator, state in zip(own, before, strict=True):
            generator.set_state(state)
        over = len(batches) % self._evenly
        last = batches[len(batches) - over :]
        if not over or not all(isinstance(batch, list) for batch in last):
            return batches
        examples, learners = list(chain(*last)), self._evenly
        cut = [examples[learner::learners] for learner in range(learners)] if len(examples) >= learners else []
        return [*batches[: len(batches) - over], *cut]


def shared_parts(session: Session, loader: DataLoader[Any], seed: int, evenly: int = 1) -> dict[str, Any]:
    """Return the attributes to set on `loader` so that it gives this learner's share: of its batches, of its sampler's
    items if those are loaded singly, or of a stream's examples. Its other random numbers get a generator of their own.
    `evenly`: as for `EpochOrder`."""
    generator, dataset = torch.Generator().manual_seed(seed), loader.dataset
    if isinstance(dataset, IterableDataset):
        return {"generator": generator, "dataset": session.share(cast(Iterable[Any], dataset))}
    if loader.batch_sampler is None:
        own = callable(getattr(loader.sampler, "set_epoch", None))  # it knows its epochs, as lhotse's do
        return {
            "generator": generator,
            "sampler": session.share(loader.sampler if own else EpochOrder(loader.sampler, seed)),
        }
    return {"generator": generator, "batch_sampler": session.share(EpochOrder(loader.batch_sampler, seed, evenly))}
