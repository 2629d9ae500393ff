"""Batches that have neither an index nor a length, shared by several learners. Lines for Roundelay are marked with
`# <-`.

    roundelay launch -n 2 examples/shared_stream.py                     # made-up sounds, bucketed by their length
    roundelay launch -n 2 examples/shared_stream.py --workers 2         # loaded by workers, ahead of the loop
    roundelay launch -n 2 examples/shared_stream.py --lhotse            # bucketed by lhotse (pip install lhotse)
    roundelay launch -n 2 examples/shared_stream.py --save out/sounds   # the same command again goes on

A sound is a tone under noise; high or low is to be told. ROUNDELAY_STRAGGLERS=1:10x makes rank 1 ten times slower: it
trains fewer batches, and each is trained once all the same.
"""

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import roundelay  # <-

SOUNDS, FRAMES = 400, 300
"""Sounds of an epoch, and frames of a batch."""


def length(number: int) -> int:
    """Frames of a sound."""
    return 10 + number * 37 % 50


class Buckets:
    """Batches of sounds of about the same length, drawn lazily, in another order in each epoch: the same order for all
    who go through them."""

    def __init__(self, sounds: int, frames: int) -> None:
        self._sounds, self._frames, self._epoch = sounds, frames, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        buckets: dict[int, list[int]] = {}
        order = torch.randperm(self._sounds, generator=torch.Generator().manual_seed(self._epoch))
        for number in order.tolist():
            bucket = buckets.setdefault(length(number) // 10, [])
            bucket.append(number)
            if sum(map(length, bucket)) > self._frames:
                yield buckets.pop(length(number) // 10)
        yield from buckets.values()


def lhotse_buckets(sounds: int) -> Iterable[Any]:
    """The same by lhotse, whose batches are sets of cuts. It deals nothing out by rank, for the session shares."""
    from lhotse import CutSet  # noqa: PLC0415  it may be missing
    from lhotse.dataset import DynamicBucketingSampler  # noqa: PLC0415
    from lhotse.testing.dummies import dummy_cut  # noqa: PLC0415

    cuts = CutSet.from_cuts(dummy_cut(number, duration=length(number) / 100) for number in range(sounds))
    options: Any = {"num_buckets": 5, "shuffle": True, "world_size": 1, "rank": 0}  # <-
    return DynamicBucketingSampler(cuts, max_duration=FRAMES / 100, **options)


class Sounds(Dataset[tuple[Tensor, Tensor]]):
    """Sounds by the batch: padded (n, frames) and whether each is high."""

    def __getitem__(self, batch: Any) -> tuple[Tensor, Tensor]:
        numbers = [one if isinstance(one, int) else int(one.id.rsplit("-", 1)[1]) for one in batch]
        high = torch.tensor([number % 2 for number in numbers])
        made = torch.Generator().manual_seed(numbers[0])
        waves = [torch.sin(torch.arange(length(number)) * (0.3 + 0.5 * (number % 2))) for number in numbers]
        padded = nn.utils.rnn.pad_sequence(waves, batch_first=True)
        return padded + 0.5 * torch.randn(padded.shape, generator=made), high


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--lhotse", action="store_true", help="lhotse's sampler in the place of the one here")
    parser.add_argument("--save", metavar="DIR", help="save there after each epoch, and go on from there")
    options = parser.parse_args()

    torch.manual_seed(0)
    ears = nn.Conv1d(1, 8, 9, padding=4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten()
    model = nn.Sequential(*ears, nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    session = roundelay.attach(model, optimizer, options.strategy, resume=options.save)  # <-
    sampler = lhotse_buckets(SOUNDS) if options.lhotse else Buckets(SOUNDS, FRAMES)
    batches = session.share(sampler)  # <-
    loader = DataLoader(Sounds(), sampler=batches, batch_size=None, num_workers=options.workers)
    with session:
        for epoch in range(batches.epoch, options.epochs):  # <- the epoch that a save was made in
            trained = 0
            for sounds, high in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(sounds[:, None]), high).backward()
                optimizer.step()
                trained += len(high)
            if options.save is not None:
                session.save(options.save)
            with session.consensus(), torch.no_grad():  # <-
                tests = [Sounds()[range(first, first + 20)] for first in range(SOUNDS, SOUNDS + 100, 20)]
                loss = sum(float(nn.functional.cross_entropy(model(x[:, None]), y)) for x, y in tests) / len(tests)
            print(f"learner {session.rank} epoch {epoch} loss {loss:.4f} trained {trained} sounds", flush=True)


if __name__ == "__main__":
    main()
