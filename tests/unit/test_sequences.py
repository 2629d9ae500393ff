"""Pieces of utterances: cut evenly, laid out by length, every labelled frame exactly once."""

import numpy as np
import pytest
import torch

from roundelay_speech.models.sequences import Pieces, SequenceExamples, whole_utterance
from support.toy_models import toy

WHOLE, CHUNKS = Pieces(None, 5, 5), Pieces(6, left=4, fill=True)


def examples(pieces: Pieces, reach: int = 2) -> SequenceExamples:
    store, labels, splits, _ = toy()
    return SequenceExamples(store, labels, splits, reach, pieces)


def test_utterances_are_cut_evenly() -> None:
    sizes = np.array([20, 3, 33, 9])
    assert Pieces(10).cut(sizes).tolist() == [0, 10, 20, 23, 34, 45, 56, 65]
    assert Pieces().cut(sizes).tolist() == [0, 20, 23, 56, 65]


def test_a_minibatch_is_its_utterances_and_the_context_of_those_it_cuts() -> None:
    store, labels, splits, _ = toy()
    some = examples(WHOLE)
    sizes = [store.frames(u) for u in splits["train"][:3]]
    numbers = np.arange(2, sum(sizes) - 8)  # two frames of the first are missing, and eight of the third
    (features, mean, std, lengths, index), targets = some.batch("train", numbers)
    assert lengths.tolist() == [sizes[0], sizes[1], sizes[2] - 3]
    longest = max(lengths.tolist())
    assert features.shape == (3, longest + 4, 40)
    assert mean.shape == std.shape == (3, 40)
    assert targets.tolist() == labels[numbers].tolist()
    flat = features[:, 2:-2].flatten(0, 1)[index].numpy()
    np.testing.assert_array_equal(flat, store.array[numbers])
    np.testing.assert_array_equal(features[1, :2], store.get("train-1")[[0, 0]])  # the first frame repeated
    assert index[0] == 2


def test_chunks_begin_with_their_warm_up_also_at_the_beginning_of_an_utterance() -> None:
    store = toy()[0]
    some = examples(CHUNKS, reach=0)
    size = store.frames("train-0")
    (features, _, _, lengths, index), _ = some.batch("train", np.arange(size))
    parts = max(1, round(size / 6))
    assert len(lengths) == parts
    np.testing.assert_array_equal(features[0, :4], store.get("train-0")[[0, 0, 0, 0]])
    np.testing.assert_array_equal(features[1, :4], store.get("train-0")[size // parts - 4 : size // parts])
    assert index[0] == 4


def test_unlabelled_frames_are_context_only() -> None:
    store, labels, splits, _ = toy()
    holes = labels.copy()
    holes[3:6] = -1
    holes[store.offsets[1] : store.offsets[2]] = -1
    some = SequenceExamples(store, holes, splits, 0, WHOLE)
    first = store.frames("train-0")
    (features, _, _, lengths, index), targets = some.batch("train", np.arange(first))
    assert len(targets) == len(index) == first
    assert lengths[0] == first
    assert 3 not in index.tolist()
    assert targets.tolist() == holes[holes >= 0][:first].tolist()
    np.testing.assert_array_equal(features[0, 3:6], store.array[3:6])


@pytest.mark.parametrize("pieces", [WHOLE, CHUNKS, Pieces(7, 2, 2)])
def test_held_out_frames_are_seen_once_and_few_at_a_time(pieces: Pieces) -> None:
    labels = toy()[1]
    some = examples(pieces)
    seen, longest = [], max(toy()[0].frames(u) for u in toy()[2]["dev"])
    for inputs, targets in some.in_order("dev", 50):
        assert len(inputs[4]) == len(targets) <= max(50, longest)
        seen.append(targets)
    together = torch.cat(seen)
    first, last = toy()[0].span("dev-0")[0], sum(toy()[0].span("dev-5"))
    assert sorted(together.tolist()) == sorted(labels[first:last].tolist())


def test_windows_at_test_are_as_long_as_in_training_and_overlap() -> None:
    store = toy()[0]
    name = max(store.utterance_ids, key=store.frames)
    at_test = Pieces(21).at_test
    assert at_test == Pieces(7, 7, 7)
    assert Pieces(9, 40, 40).at_test == Pieces(9, 40, 40)
    assert CHUNKS.at_test == Pieces(None, 4, 0, fill=True)
    inputs = whole_utterance(store, name, at_test, 0)
    assert len(inputs[4]) == store.frames(name)
    assert max(inputs[3].tolist()) <= 22  # chunks are cut evenly, so some are a frame longer
    np.testing.assert_array_equal(inputs[0].flatten(0, 1)[inputs[4]].numpy(), store.get(name))
