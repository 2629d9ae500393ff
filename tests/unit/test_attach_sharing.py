"""`session.share`: claims, what is drawn ahead, and mistakes, in one process. Of several learners: tests/laws."""

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

import roundelay
from roundelay.attached import Session
from roundelay.attached.batches import batch_fingerprint
from roundelay.core.errors import UserError
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.coordination.passes import ENDLESS, PassTables
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import prepare_publishing
from support.cuts import lhotse_cuts
from support.messages import received

LEARNERS, BATCHES = 4, 11
KEY = (1, 0, 0)


# Claims -------------------------------------------------------------------------------------------------------------


class Claims:
    """A learner that draws ahead, and trains what it has drawn in turn."""

    def __init__(self, rank: int) -> None:
        self.rank, self.drawn, self.trained = rank, deque[int](), list[int]()

    def draw(self, arena: Arena, count: int, known: bool) -> bool:
        """False: there is nothing left."""
        index = passes.draw(arena, self.rank, KEY, count if known else ENDLESS, keep=len(self.drawn))
        if index is not None and index >= count:  # beyond the end, as it finds by going there
            passes.draw(arena, self.rank, KEY, 0, keep=len(self.drawn))
            index = passes.draw(arena, self.rank, KEY, count, keep=len(self.drawn))
        if index is not None:
            self.drawn.append(index)
        return index is not None

    def train(self) -> None:
        if self.drawn:
            self.trained.append(self.drawn.popleft())


def copied(arena: Arena) -> Arena:
    """The arena of the host that leads next, which has been told all."""
    there = Arena(create_file(LAYOUT), LAYOUT, Patience(0, 60))
    there.view(PassTables).held[:] = -1
    passes.enter(there, received(passes.read(arena)))
    arena.close()
    return there


LAYOUT = Layout(LEARNERS, 1, views=(PassTables,))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", range(15))
def test_each_is_trained_once_whoever_dies_however_far_ahead_it_drew(seed: int, known: bool) -> None:
    """Also where the number of minibatches is not known, and when another host leads from some time on."""
    prepare_publishing()
    choose, count = random.Random(seed), 60
    arena = Arena(create_file(LAYOUT), LAYOUT, Patience(0, 60))
    arena.view(PassTables).held[:] = -1
    living, dead, left = [Claims(rank) for rank in range(LEARNERS)], list[Claims](), True
    while left or any(one.drawn for one in living):
        one = choose.choice(living)
        if choose.random() < 0.03:
            arena = copied(arena)
        if choose.random() < 0.05 and len(living) > 1 and left:
            passes.draw(arena, one.rank, KEY, 0, keep=len(one.drawn))  # as in a meeting
            passes.give_back(arena, one.rank)
            living.remove(one)
            dead.append(one)
        elif len(one.drawn) < 5 and choose.random() < 0.6:
            left = one.draw(arena, count, known)
        else:
            one.train()
    assert known or getattr(passes.newest(arena, KEY[0]), "drawn", 0) == ENDLESS, "who comes later sees that it is over"
    arena.close()
    assert Counter(number for one in [*living, *dead] for number in one.trained) == Counter(range(count))


def test_a_slot_that_another_pass_takes_is_nobodys_claim() -> None:
    prepare_publishing()
    arena = Arena(create_file(LAYOUT), LAYOUT, Patience(0, 60))
    arena.view(PassTables).held[:] = -1
    passes.draw(arena, 0, (2, 0, 0), 9)
    for epoch in range(passes.PASS_SLOTS):
        assert passes.draw(arena, 1, (1, epoch, 0), 9) == 0
    passes.give_back(arena, 0)
    assert [row[2] for row in passes.copy_of(arena)] == [[]] * passes.PASS_SLOTS
    arena.close()


# One learner's loop ---------------------------------------------------------------------------------------------------


class Stream:
    """Batches without a length, in another order in each epoch."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng(self.epoch).permutation(BATCHES)
        return ([int(number)] for number in order)


class Data:
    def __getitem__(self, batch: list[int]) -> torch.Tensor:
        return torch.tensor(batch)


def ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """One ahead of the loop, as some frameworks keep it, to know which is the last."""
    kept = deque[Any]()
    for batch in batches:
        kept.append(batch)
        if len(kept) > 1:
            yield kept.popleft()
    yield from kept


class Loop:
    """Somebody's, that takes a step every few batches."""

    def __init__(self, workers: int, each: int, look: bool, strategy: str, resume: Path) -> None:
        self.workers, self.each, self.look, self.directory = workers, each, look, resume
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.session = roundelay.attach(self.model, self.optimizer, strategy, resume=resume)
        self.shared = self.session.share(Stream())

    def train(self, until: int | None = None) -> list[tuple[int, int]]:
        """(Epoch, number) of each that is trained, up to a save after so many batches."""
        trained, together, seen = list[tuple[int, int]](), list[tuple[int, int]](), 0
        for epoch in range(self.shared.epoch, 2):
            loader: Any = DataLoader(
                Data(),  # type: ignore[arg-type]
                sampler=self.shared,
                batch_size=None,
                num_workers=self.workers,
                multiprocessing_context="fork" if self.workers else None,
            )
            for batch in ahead(loader) if self.look else loader:
                self.model(batch[:, None].float()).sum().backward()
                together.append((epoch, int(batch)))
                if len(together) == self.each:
                    self.optimizer.step()
                    trained += together
                    together = []
                seen += 1
                if seen == until:
                    self.session.save(self.directory)
                    return trained
            if together:
                self.optimizer.step()
                trained += together
                together = []
        return trained


ORDER = [(epoch, number) for epoch in range(2) for (number,) in Stream(epoch)]


@pytest.mark.parametrize(
    ("workers", "each", "look", "saved_after"),
    [
        (0, 1, False, range(1, 22, 3)),
        (0, 2, False, (5, 6)),
        (0, 1, True, (4, 10)),
        (2, 1, False, (1, 6, 9, 11)),
        (2, 3, True, (5,)),
    ],
)
@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_saved_in_the_middle_nothing_drawn_ahead_is_lost_or_trained_twice(
    workers: int, each: int, look: bool, saved_after: Sequence[int], strategy: str, tmp_path: Path
) -> None:
    """By a loader's workers, or by a wrapper that looks ahead; with gradients of several batches in a step, too."""
    for number in saved_after:
        first = Loop(workers, each, look, strategy, tmp_path / f"{number}")
        with first.session:
            before = first.train(number)
        assert len(before) == number // each * each if number < BATCHES else len(before) >= BATCHES - 1
        then = Loop(workers, each, look, strategy, tmp_path / f"{number}")
        with then.session:
            assert before + then.train() == ORDER


def attached(strategy: str = "adpsgd") -> tuple[nn.Module, Session]:
    model = nn.Linear(1, 1)
    return model, roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3), strategy)


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_it_gives_what_the_source_gives(strategy: str) -> None:
    _, session = attached(strategy)
    with session:
        batches = [[1, 2], [3], [4, 5, 6]]
        shared = session.share(batches)
        assert len(shared) == 3
        assert list(shared) == list(shared) == batches
        stream = session.share(Stream())
        with pytest.raises(TypeError):
            len(stream)
        epochs = [list(stream) for _ in range(2)]
        assert [(epoch, number) for epoch, mine in enumerate(epochs) for (number,) in mine] == ORDER
        stream.set_epoch(0)
        assert list(stream) == epochs[0]
        loader: Any = DataLoader([*range(7)], batch_size=3)  # type: ignore[arg-type]
        shared = session.share(loader)
        assert [batch.tolist() for batch in shared] == [[0, 1, 2], [3, 4, 5], [6]]
        assert (shared.dataset, shared.batch_size) == (loader.dataset, 3)  # which toolkits ask a loader for
        assert not hasattr(stream, "dataset")
        assert list(session.share([])) == []


@pytest.mark.parametrize("trains", [True, False])
def test_a_pass_that_trains_nothing_is_named(trains: bool, caplog: pytest.LogCaptureFixture) -> None:
    """As a check of the batches' sizes does, which takes an epoch away."""
    model, session = attached()
    with session:
        for _ in session.share([[1], [2, 3]]):
            if trains:
                model(torch.ones(1, 1)).sum().backward()
                session.optimizers[0].step()
    assert ("no step trained the 2 of them" in caplog.text) is not trains


@pytest.mark.parametrize("before", [True, False])
def test_an_epoch_that_the_source_was_told_counts(before: bool) -> None:
    """Before it is shared, as where that is done in every epoch, or after."""
    _, session = attached()
    with session:
        source = Stream()
        if before:
            source.set_epoch(1)
        shared = session.share(source)
        source.set_epoch(1)
        assert [(1, number) for (number,) in shared] == ORDER[BATCHES:]
        assert shared.epoch == 2


@pytest.mark.parametrize("how", ["sampler", "share", "loader", "told", "another", "unshuffled", "length", "once"])
def test_samplers_made_anew_in_every_epoch_are_named(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """They all begin with epoch 0, so that the order is always the same; said once."""
    model, session = attached()
    source, data = Stream(), [*range(6)]
    with session:
        kept = session.sampler(data, 2)
        for epoch in range(3):
            shuffled = how != "unshuffled"
            mine: Any = session.sampler(
                len(data) if how == "length" else data, 2, shuffled, 1 + epoch * (how == "another")
            )
            mine = kept if how == "once" else session.share(source) if how == "share" else mine
            if how == "loader":
                mine = session.share(DataLoader(data, batch_size=2, shuffle=True))  # type: ignore[arg-type]
            if how == "told":
                mine.set_epoch(epoch)
            for _ in mine:
                model(torch.ones(1, 1)).sum().backward()
                session.optimizers[0].step()
    said = [text for text in caplog.messages if "a further sampler of the same data begins with the order" in text]
    assert len(said) == (how in ("sampler", "share", "loader"))


class Permuted:
    """Draws from the random numbers that all draw from."""

    def __iter__(self) -> Iterator[list[int]]:
        numbers: Any = torch.randperm(20)
        yield from (part.tolist() for part in numbers.split(3))


def shuffled(how: str) -> Iterable[Any]:
    data: Any = [*range(20)]
    match how:
        case "loader":
            return DataLoader(data, batch_size=3, shuffle=True)
        case "its generator":
            return DataLoader(data, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5))
        case "sampler":
            return BatchSampler(RandomSampler(data), 3, drop_last=False)
        case "of one's own":
            return Permuted()
        case _:
            return BatchSampler(WeightedRandomSampler([1.0] * 20, 20, replacement=False), 3, drop_last=False)


@pytest.mark.parametrize("how", ["loader", "its generator", "sampler", "weighted", "of one's own"])
def test_a_loader_that_shuffles_has_one_order_an_epoch_whatever_else_draws_random_numbers(how: str) -> None:
    """Learners draw for dropout, and one that does not come to the end of a pass draws less; they must go through the
    same batches all the same."""
    found = []
    for learner in range(2):
        torch.manual_seed(learner)
        _, session = attached()
        with session:
            shared = session.share(shuffled(how))
            first = next(iter(shared))
            passes = [[number for batch in shared for number in list(batch)] for _ in range(2)]
            assert all(sorted(numbers) == [*range(20)] for numbers in passes)
            found.append([list(map(int, first)), *([int(number) for number in numbers] for numbers in passes)])
            shared.set_epoch(1)
            assert [int(number) for batch in shared for number in list(batch)] == found[-1][1] != found[-1][2]
        if learner == 0:
            torch.rand(7)
    assert found[0] == found[1]


@pytest.mark.parametrize("drop_last", [True, False])
def test_whole_minibatches_are_not_taken_for_single_examples(drop_last: bool) -> None:
    """By `sampler=`, as a DistributedSampler is given: steps would be of that many minibatches."""
    _, session = attached()
    with session:
        loader: Any = DataLoader([*range(12)], 4, sampler=session.sampler(12, 4), drop_last=drop_last)  # type: ignore[arg-type]
        with pytest.raises(
            UserError, match=r"gives whole minibatches: .* batch_sampler=session.sampler\(dataset, 4\)\)"
        ):
            list(loader)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (iter([1]), "list_iterator, which can be gone through once. Give what it was made of"),
        ((number for number in [1]), "generator, which can be gone through once"),
        (7, r"session.share\(int\): give an iterable"),
        (SimpleNamespace(world_size=2, __iter__=1), "SimpleNamespace was made with world_size=2: it deals batches out"),
        (
            DataLoader([1, 2], sampler=DistributedSampler([1, 2], num_replicas=2, rank=0)),  # type: ignore[arg-type]
            "DistributedSampler was made with num_replicas=2",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(batches: Any, said: str) -> None:
    _, session = attached()
    with session, pytest.raises(UserError, match=said):
        session.share(batches)


def test_lhotses_samplers_are_shared_unless_they_deal_by_rank_or_by_chance(tmp_path: Path) -> None:
    dataset, cuts = pytest.importorskip("lhotse.dataset"), lhotse_cuts(tmp_path, 60)
    _, session = attached()

    def sampler(**options: Any) -> Any:
        mine = {"world_size": 1, "rank": 0, **options}
        return dataset.DynamicBucketingSampler(cuts, max_duration=12, num_buckets=3, shuffle=True, **mine)

    with session:
        with pytest.raises(UserError, match=r"BucketingSampler was made with world_size=2.* world_size=1, rank=0"):
            session.share(sampler(world_size=2))
        with pytest.raises(UserError, match="BucketingSampler was made with concurrent=True"):
            session.share(sampler(concurrent=True))
        shared, plain = session.share(sampler()), sampler()
        for epoch in range(2):
            plain.set_epoch(epoch)
            found = [[cut.id for cut in batch] for batch in shared]
            assert found == [[cut.id for cut in batch] for batch in plain]
            assert len({name for batch in found for name in batch}) == sum(map(len, found)) == 60


class Inside(IterableDataset[Any]):
    """Shares out in a worker."""

    def __init__(self, shared: Any) -> None:
        self.shared = shared

    def __iter__(self) -> Iterator[Any]:
        return iter(self.shared)


def test_a_loaders_worker_cannot_share_out() -> None:
    _, session = attached("ssgd")
    with session:
        loader: Any = DataLoader(
            Inside(session.share([[1], [2]])), batch_size=None, num_workers=1, multiprocessing_context="fork"
        )
        with pytest.raises(UserError, match=r"forked from it, a loader's worker .* session.share\(loader\)"):
            list(loader)


def test_a_batch_of_ones_own_class_is_known_by_what_it_holds() -> None:
    def graph(node: float, edge: int, name: str = "", **other: Any) -> SimpleNamespace:
        arrays = {"x": torch.tensor([node, 1.0]), "edges": np.array([edge, 2])}
        return SimpleNamespace(**arrays, id=name, **other)

    known = batch_fingerprint([graph(1, 2), graph(3, 4)])
    assert known == batch_fingerprint([graph(1, 2, loaded_at=0.1), graph(3, 4, loaded_at=0.2)])
    others = [[graph(1, 2), graph(0, 4)], [graph(1, 2), graph(3, 0)], [graph(1, 2), graph(3, 4, "a")]]
    assert len({known, *map(batch_fingerprint, others)}) == 1 + len(others)
