"""Speech drawn in blocks: every labelled frame once, in pieces as they are cut, side by side with their equals."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.block_order import BlockOrder
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control.leases import HostShards, shares_of
from roundelay_speech.features.shards import StoredShard
from roundelay_speech.models.frames import LabelledFrames, LabelledRuns, OrderName
from roundelay_speech.models.sequences import Pieces, SequenceExamples, lay_out
from support.in_blocks import WINDOW, examples_in_blocks, runs
from support.toy_models import TINY, tiny, toy


def test_runs_number_the_labelled_frames_of_a_split() -> None:
    """Against every frame written down, with holes in utterances and utterances without labels."""
    store, labels, splits, _ = toy()
    holes = labels.copy()
    holes[np.random.default_rng(0).integers(0, len(labels), 300)] = -1
    holes[store.offsets[1] : store.offsets[3]] = -1
    for name, some in runs(holes, splits).items():
        spans = [store.span(u) for u in splits[name]]
        written = [first + np.flatnonzero(holes[first : first + n] >= 0) for first, n in spans]
        frames = np.concatenate(written)
        assert some.frames == len(frames)
        found, utterances = some.locate(np.arange(len(frames)))
        assert np.array_equal(found, frames)
        assert np.array_equal(utterances, np.searchsorted(store.offsets, frames, side="right") - 1)
        assert np.diff(some.bounds).tolist() == [len(one) for one in written if len(one)]
        everything = np.arange(len(some.blocks) - 1, dtype=np.int32)
        assert np.array_equal(some.numbers(everything), np.arange(len(frames)))
        stretches = zip(*some.joined(), strict=True)
        assert np.array_equal(np.concatenate([np.arange(a, b) for a, b in stretches]), frames)
        begins, ends = some.stretches(everything)
        inside = np.concatenate([np.arange(a, b) for a, b in zip(begins, ends, strict=True)])
        assert set(frames.tolist()) <= set(inside.tolist())


@pytest.mark.parametrize("minibatch", [50, 64, 10_000])
@pytest.mark.parametrize("how", ["shuffle", "blocks"])
@pytest.mark.parametrize("name", TINY)
def test_an_epoch_has_every_frame_once_whatever_the_number_of_learners(name: str, how: str, minibatch: int) -> None:
    some = examples_in_blocks(name) if how == "blocks" else tiny(name).examples(*toy()[:3])
    plan = EpochPlan(3, some.count("train"), minibatch, 1, seed=5)
    order = some.order(plan)
    if how == "blocks":
        assert isinstance(order, BlockOrder)
        assert (order.windows > 2) == (minibatch < 100)
    drawn = order[0 : plan.examples]
    assert sorted(drawn) == list(range(plan.examples))
    for learners in (1, 3):
        shared = dataclasses.replace(plan, learners=learners)
        again = some.order(shared)
        parts = [again[p.start : p.stop] for p in map(shared.piece, range(shared.pieces))]
        assert np.array_equal(np.concatenate(parts), drawn)
    other = dataclasses.replace(plan, epoch=4)
    if how == "blocks" or plan.rounds > 1:  # one minibatch of whole utterances is in their order
        assert not np.array_equal(some.order(other)[0 : plan.examples], drawn)


@pytest.mark.parametrize("how", ["shuffle", "blocks"])
@pytest.mark.parametrize("name", TINY)
def test_hosts_with_shards_of_their_own_draw_every_frame_once_between_them(name: str, how: OrderName) -> None:
    """As numbers of the store's frames, with a shard that both have and each drawing from its own."""
    store, labels, splits, _ = toy()
    places = [store.position(u) for u in splits["train"]]
    assert places == list(range(places[0], places[-1] + 1))
    cuts = [*places[:: len(places) // 3][:3], places[-1] + 1]

    def host(here: set[int]) -> LabelledFrames:
        shards = tuple(StoredShard(cuts[n], cuts[n + 1], n in here) for n in range(3))
        own = [u for u in splits["train"] if any(s.here and s.first <= store.position(u) < s.end for s in shards)]
        kept = dataclasses.replace(store, shards=shards)
        return tiny(name).examples(kept, labels, {**splits, "train": own}, how)

    whole, hosts = host({0, 1, 2}), [host({0, 1}), host({1, 2})]
    shards = shares_of([HostShards(learners, some.shards) for learners, some in zip((2, 1), hosts, strict=True)])
    assert [max(some) for some in zip(*(one.shards for one in hosts), strict=True)] == list(whole.shards)
    assert sum(whole.shards) == whole.count("train")
    plan = EpochPlan(1, whole.count("train"), 64, 3, seed=2, shares=shards)
    drawn = []
    for batch in map(plan.piece, range(plan.pieces)):
        own, begin = plan.own(batch)
        some = hosts[batch.index % 3 // 2]
        numbers = some.order(own)[batch.start - begin : batch.stop - begin]  # type: ignore[attr-defined]
        drawn.append(some._runs["train"].in_store(numbers))
    everything = whole._runs["train"].in_store(np.arange(whole.count("train")))
    assert np.array_equal(np.sort(np.concatenate(drawn)), everything)
    states = int(labels.max()) + 1
    for some in hosts:
        assert np.array_equal(some.label_counts("train", states), whole.label_counts("train", states))
    with pytest.raises(UserError, match="shard 2 of 3 is to be trained and is not here"):
        hosts[0].train_on((1, 2))


@pytest.mark.parametrize("name", TINY)
def test_a_window_is_of_its_blocks_alone(name: str) -> None:
    """So that what is read in it is known before."""
    _, labels, splits, _ = toy()
    some, train = examples_in_blocks(name), runs(labels, splits)["train"]
    plan = EpochPlan(0, some.count("train"), 64, 1, seed=1)
    order = some.order(plan)
    assert isinstance(order, BlockOrder)
    at = 0
    for window in range(order.windows):
        wanted = train.numbers(order.blocks(window))
        assert sorted(order[at : at + len(wanted)]) == sorted(wanted)
        assert abs(len(wanted) - WINDOW) < WINDOW / 2
        at += len(wanted)


@pytest.mark.parametrize("name", ["blstm", "blstm-chunks"])
def test_sequences_of_a_minibatch_are_pieces_of_utterances(name: str) -> None:
    """No piece is torn but where a round begins or ends, or a window: at most two rounds have frames of two windows."""
    some, plan = examples_in_blocks(name), EpochPlan(0, 0, 64, 1, seed=1)
    plan = dataclasses.replace(plan, examples=some.count("train"))
    order = some.order(plan)
    chunk = 7 if name == "blstm-chunks" else None
    store, labels, splits, _ = toy()
    begins = Pieces(chunk).cut(np.diff(runs(labels, splits)["train"].bounds))
    torn = 0
    for index in range(plan.rounds):
        batch = plan.piece(index)
        numbers = order[batch.start : batch.stop]
        (_, _, _, _, where), targets = some.batch("train", numbers)  # type: ignore[misc]
        assert len(where) == len(targets) == batch.frames
        assert np.array_equal(targets.numpy(), labels[numbers])  # the toy's training frames come first
        new = np.flatnonzero(np.diff(numbers) != 1) + 1
        torn += int((~np.isin(numbers[np.concatenate([[0], new])], begins)).sum())
        torn += int((~np.isin(numbers[np.concatenate([new - 1, [-1]])] + 1, begins)).sum())
    assert torn <= 2 * (plan.rounds + 2 * order.windows)  # type: ignore[attr-defined]
    assert store.array.shape[1] == 40


def test_pieces_of_a_round_are_about_equally_long() -> None:
    """Hardly more is padded than where all of the corpus is sorted."""
    sizes = np.random.default_rng(0).integers(20, 400, 3000)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    train = LabelledRuns.of(bounds[:-1], np.arange(len(sizes)), bounds, bounds, 1000)
    store, _, _, _ = toy()
    long = dataclasses.replace(store, array=np.zeros((int(bounds[-1]), 40), np.float32), offsets=bounds)
    some = SequenceExamples(long, np.zeros(int(bounds[-1]), np.int32), {"train": train}, 0, Pieces(), "blocks")
    some.window = 100_000
    plan = EpochPlan(0, int(bounds[-1]), 4000, 1, seed=0)

    def padded(order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
        utterance = np.searchsorted(bounds, order, side="right") - 1
        more = 0
        for index in range(plan.rounds):
            batch = plan.piece(index)
            mine = utterance[batch.start : batch.stop]
            more += len(np.unique(mine)) * max(np.bincount(mine)) - batch.frames
        return more / plan.examples

    sorted_as_one = padded(lay_out(bounds, plan))
    assert sorted_as_one < 0.15  # a tenth of what a shuffled order pads
    assert padded(some.order(plan)[0 : plan.examples]) < sorted_as_one + 0.05


def test_rows_are_asked_for_and_let_go_of_without_changing_them(tmp_path: Path) -> None:
    """Of a mapped file; of arrays in memory nothing is asked."""
    store, labels, splits, _ = toy()
    np.save(tmp_path / "features.npy", store.array)
    mapped = dataclasses.replace(store, array=np.load(tmp_path / "features.npy", mmap_mode="r"))
    for one in (store, mapped):
        some = SequenceExamples(one, labels, runs(labels, splits), 2, Pieces(7), "blocks")
        some.window = WINDOW
        plan = EpochPlan(0, some.count("train"), 64, 1, seed=1)
        order = some.order(plan)
        for piece in map(plan.piece, range(plan.pieces)):
            numbers = order[piece.start : piece.stop]
            expected = SequenceExamples(store, labels, splits, 2, Pieces(7)).batch("train", numbers)
            for found, wanted in zip(some.batch("train", numbers)[0], expected[0], strict=True):
                assert np.array_equal(found.numpy(), wanted.numpy())


@pytest.mark.parametrize(("bits", "steps"), [(3, 24), (11, 24), (11, 1)])
def test_frames_among_many_runs_are_found_as_among_few(monkeypatch: pytest.MonkeyPatch, bits: int, steps: int) -> None:
    """By a guide, and where that would take too many steps by a search after all."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 300, 400)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    some = LabelledRuns.of(3 * ends[:-1], np.arange(400), ends, ends)
    numbers = rng.permutation(some.frames)
    expected = some.locate(numbers)
    monkeypatch.setattr("roundelay_speech.models.frames.MANY_RUNS", 0)
    monkeypatch.setattr("roundelay_speech.models.frames.GUIDE_BITS", bits)
    monkeypatch.setattr("roundelay_speech.models.frames.MOST_STEPS", steps)
    for found, wanted in zip(some.locate(numbers), expected, strict=True):
        assert np.array_equal(found, wanted)
