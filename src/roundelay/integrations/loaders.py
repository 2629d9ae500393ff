"""Data loaders that toolkits have made, whose batches are shared out."""

from collections.abc import Iterable, Iterator
from typing import Any, cast, final

import torch
from torch.utils.data import DataLoader, IterableDataset

from roundelay.attached import Session


@final
class EpochOrder:
    """The batches of a sampler, in an order that is a function of seed and epoch alone: whatever random numbers the
    sampler draws, all learners go through the same."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler, self._seed, self.epoch = sampler, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[int]]:
        parts: list[Any] = [self._sampler, getattr(self._sampler, "sampler", None)]
        for part in parts:
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(self.epoch)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed + self.epoch)
            batches = list(self._sampler)
        return iter(batches)


def shared_parts(session: Session, loader: DataLoader[Any], seed: int) -> dict[str, Any]:
    """Return attributes of the loader by which it gives this learner's share: of its batches, or, where it has no
    sampler of batches, of its examples. Its other random numbers come from a generator of its own."""
    generator, dataset = torch.Generator().manual_seed(seed), loader.dataset
    if loader.batch_sampler is None or isinstance(dataset, IterableDataset):
        return {"generator": generator, "dataset": session.share(cast(Iterable[Any], dataset))}
    return {"generator": generator, "batch_sampler": session.share(EpochOrder(loader.batch_sampler, seed))}
