"""Whole utterances as examples: each once an epoch and never cut, padding without influence, every strategy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay_speech.models.frames import log_likelihoods
from roundelay_speech.models.network import stacked
from roundelay_speech.unit_labels import label_splits, rows_needed, units_of
from roundelay_speech.units import Characters, Phones
from support.toy_corpus import toy_corpus
from support.toy_models import tiny, toy
from support.toy_units import UNALIGNED, examples_of, learner_of

pytestmark = pytest.mark.usefixtures("one_thread")

UTTERANCES = 60


def plan(learners: int, epoch: int = 0, examples: int = UTTERANCES, minibatch: int = 8) -> EpochPlan:
    return EpochPlan(epoch, examples, minibatch, learners, 3)


def test_every_utterance_once_an_epoch_and_like_beside_like() -> None:
    _, examples = examples_of("blstm")
    assert examples.count("train") == examples.sequences == UTTERANCES
    orders = [examples.order(plan(2, epoch)) for epoch in (0, 0, 1)]
    assert sorted(orders[0]) == list(range(UTTERANCES))
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    sizes = examples._sizes("train")[orders[0]]
    rounds = [sizes[at : at + 8] for at in range(0, UTTERANCES, 8)]
    assert np.mean([one.std() for one in rounds]) < sizes.std() / 3
    assert sorted(examples.order(plan(2, examples=20))) == list(range(20))


def test_targets_are_rows_of_scores_and_units() -> None:
    corpus, store, _ = toy_corpus(Path("toy"))
    units = units_of(Phones(), corpus)
    _, left_out = label_splits(corpus, store, units, 3)
    assert not left_out
    (features, *_, index), targets = examples_of("blstm")[1].batch("dev", np.array([4, 1]))
    reach = (features.shape[1] - max(store.frames("dev-4"), store.frames("dev-1"))) // 2
    for row, name in enumerate(["dev-4", "dev-1"]):
        utterance = next(u for u in corpus.splits["dev"] if u.id == name)
        said = [unit for word in utterance.words for unit in corpus.lexicon.pronunciations[word][0]]
        labels = targets[row, 1:]
        assert [units.columns[label] for label in labels[labels > 0].tolist()] == said
        assert int(targets[row, 0]) == -(-store.frames(name) // 3)
        np.testing.assert_array_equal(features[row, reach : reach + store.frames(name)], store.get(name))
    assert len(index) == 2 * int(targets[:, 0].max())


def test_frames_of_a_split_are_numbered_utterance_by_utterance() -> None:
    _, store, _ = toy_corpus(Path("toy"))
    _, examples = examples_of("blstm")
    frames = examples.frames("dev")
    assert frames == sum(store.frames(f"dev-{i}") for i in range(6))
    windows, _, _ = examples.windows("dev", np.arange(frames), 1)
    np.testing.assert_array_equal(windows[:, 1], np.concatenate([store.get(f"dev-{i}") for i in range(6)]))
    first = store.get("dev-1")
    np.testing.assert_array_equal(windows[store.frames("dev-0")], first[[0, 0, 1]])


@pytest.mark.parametrize("name", UNALIGNED)
def test_an_utterance_has_the_same_scores_alone_and_beside_others(name: str) -> None:
    """In a minibatch, padded, and as recognition reads it."""
    network, examples = examples_of(name)
    network.eval()
    inputs, targets = examples.batch("test", np.arange(6))
    with torch.inference_mode():
        together = torch.log_softmax(network(*inputs), 1).view(6, int(targets[:, 0].max()), -1)
    store = toy()[0]
    for row in range(6):
        alone = log_likelihoods(network, store, f"test-{row}", np.zeros(1, np.float32))
        assert len(alone) == int(targets[row, 0])
        np.testing.assert_allclose(together[row, : len(alone)], alone, rtol=1e-4, atol=1e-5)


def test_stacked_frames() -> None:
    x = torch.arange(1.0, 11.0).view(1, 5, 2).repeat(2, 1, 1)
    rows, lengths = stacked(x, torch.tensor([5, 3]), 2)
    assert lengths.tolist() == [3, 2]
    assert rows[0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]
    assert rows[1].tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]]
    assert stacked(x, lengths, 1)[0] is x


def test_what_is_too_short_for_its_units_is_left_out_by_name() -> None:
    corpus, store, _ = toy_corpus(Path("toy"), short=2)
    units = units_of(Phones(), corpus)
    splits, left_out = label_splits(corpus, store, units, 3)
    assert [one.id for one in left_out] == ["train-0", "train-1"]
    assert all("train-" in one.reason and "too short" in one.reason for one in left_out)
    assert len(splits["train"].positions) == UTTERANCES - 2
    assert rows_needed("AABBB") == 8
    known = units_of(Characters(), corpus)
    few = type(known)(tuple(name for name in known.names if name != "K"), spelled=True)
    _, without = label_splits(corpus, store, few, 1)
    said = {u.id for split in corpus.splits.values() for u in split if "KNOW" in u.words}
    assert {one.id for one in without if "cannot be written" in one.reason} == said


def test_only_models_of_whole_utterances() -> None:
    for name in ("dnn", "cldnn", "blstm-chunks"):
        with pytest.raises(UserError, match=r"whole utterances.*model\.chunk=null"):
            tiny(name).utterances(toy()[0], {})


def test_learning_lowers_the_loss() -> None:
    learner = learner_of("blstm")
    x, gradient = learner.initial(), torch.zeros(learner.parameters)
    first = learner.evaluate(x, "dev")
    assert first.frames == 6
    steps = torch.optim.Adam([x.requires_grad_()], lr=0.03)
    for epoch in range(25):
        whole = plan(1, epoch)
        for index in range(whole.pieces):
            learner.gradient(x.detach(), whole.piece(index), whole, gradient)
            x.grad = gradient
            steps.step()
    last = learner.evaluate(x.detach(), "dev")
    assert last.mean_loss < first.mean_loss / 5


def test_two_halves_of_a_round_are_the_round() -> None:
    """The mean by utterances of what two learners compute is what one does: nothing is cut, nothing left over."""
    learner = learner_of("conformer")
    x, whole, half = learner.initial(), plan(1), plan(2)
    found = [torch.zeros(learner.parameters) for _ in range(3)]
    dropout = [part for part in learner.module.modules() if isinstance(part, torch.nn.Dropout)]
    kept = [part.p for part in dropout]
    try:
        for part in dropout:
            part.p = 0.0
        one = learner.gradient(x, whole.piece(0), whole, found[0])
        two = [learner.gradient(x, half.piece(i), half, found[1 + i]) for i in range(2)]
    finally:
        for part, p in zip(dropout, kept, strict=True):
            part.p = p
    assert one.frames == sum(part.frames for part in two) == 8
    assert one.loss == pytest.approx(sum(part.loss for part in two), rel=1e-5)
    torch.testing.assert_close(found[0], (found[1] + found[2]) / 2, rtol=1e-4, atol=1e-5)
