"""Acoustic networks: sizes on paper, padding without influence, gradients that are pure functions, every strategy."""

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.configure import build, plain
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.state import Minibatch
from roundelay.learner.base import Task
from roundelay.learner.module import ModuleLearner
from roundelay.runtime.base import SegmentPlan
from roundelay.runtime.sim.driver import SimRuntime
from roundelay_speech.models import BlstmConfig, CldnnConfig, ConformerConfig, DnnConfig, ModelConfig
from roundelay_speech.models.conformer import rotated
from roundelay_speech.models.frames import log_likelihoods, log_prior
from roundelay_speech.models.network import SequenceNetwork
from roundelay_speech.models.sequences import SequenceExamples
from roundelay_speech.recipes.recipe import Recipe
from support.clusters import EVERY, cluster, one_of_each, plan
from support.toy_models import SEQUENCES, TINY, TinyTask, tiny, toy
from support.toy_units import UnalignedTask

pytestmark = pytest.mark.usefixtures("one_thread")


def learner(name: str, clip: float | None = None) -> ModuleLearner:
    built = TinyTask(name, clip).build()
    assert isinstance(built, ModuleLearner)
    return built


def sequence_network(name: str) -> SequenceNetwork:
    network = tiny(name).eval()
    assert isinstance(network, SequenceNetwork)
    return network


def training_examples(network: SequenceNetwork) -> SequenceExamples:
    store, labels, splits, _ = toy()
    return network.examples(store, labels, splits)


# Sizes ----------------------------------------------------------------------------------------------------------------

PROJECTED = sum(4 * 1024 * (inputs + 512) + 2 * 4 * 1024 + 512 * 1024 for inputs in (1024, 512))
BOTH_WAYS = sum(2 * (4 * 512 * (inputs + 512) + 2 * 4 * 512) for inputs in (260, *[1024] * 5))


@pytest.mark.parametrize(
    ("config", "features", "states", "parameters", "millions"),
    [
        (DnnConfig.published(), 40, 5723, 12_466_779, 12.5),
        (
            CldnnConfig.published(),
            40,
            5723,
            128 * (2 * 11 * 9 + 1) + 1024 * (128 * 10 + 1) + 1024 * 1025 + PROJECTED + 5723 * 513,
            16.9,
        ),
        (BlstmConfig.large(), 260, 32_000, BOTH_WAYS + 256 * 1025 + 32_000 * 257, 43.2),
        (DnnConfig(), 40, 500, None, 1.7),
        (CldnnConfig(), 40, 500, None, 1.6),
        (BlstmConfig(), 40, 500, None, 1.6),
        (ConformerConfig.small(), 40, 5723, None, 8.6),
        (ConformerConfig(), 40, 500, None, 2.0),
    ],
)
def test_parameters(config: ModelConfig, features: int, states: int, parameters: int | None, millions: float) -> None:
    """In millions as the documentation has them, and where a formula is short enough, exactly."""
    found = sum(p.numel() for p in config.network(features, states).parameters())
    assert found == (parameters or found)
    assert round(found / 1e6, 1) == millions


def test_every_model_has_a_tiny_one_that_is_tested() -> None:
    differ = set(get_args(ModelConfig)) ^ {type(config) for config in TINY.values()}
    assert not differ, f"no tiny one in TINY, tests/support/toy_models.py, of {differ}"


@pytest.mark.parametrize("name", TINY)
def test_the_output_layer_has_the_name_that_the_model_says(name: str) -> None:
    network = tiny(name)
    layer = network.get_submodule(network.output_layer)
    assert isinstance(layer, torch.nn.Linear)
    assert layer.out_features == toy()[3]


@pytest.mark.parametrize("name", TINY)
def test_recipes_choose_a_model_by_its_name(name: str) -> None:
    config = TINY[name]
    recipe = build(Recipe, {"name": "x", "corpus": "c", "alignment": "a", "model": plain(config)})
    assert recipe.model == config
    assert plain(recipe.model)["name"] == config.name


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "cldnn", "cells": 100, "projection": 100}, "model.projection is 100, of 100 cells"),
        ({"name": "conformer", "width": 100, "heads": 8}, "multiple of 16"),
        ({"name": "conformer", "kernel": 4}, "odd"),
        ({"name": "blstm", "chunk": 0}, "model.chunk is 0: give a whole number of 1 or more"),
        ({"name": "blstm", "dropout": 1.0}, "model.dropout"),
        ({"name": "blstm", "width": 3}, "model.width is no option of name blstm"),
        ({"name": "gmm"}, "choose one of dnn, cldnn, blstm, conformer"),
    ],
)
def test_impossible_models_are_refused(model: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Recipe, {"name": "x", "corpus": "c", "alignment": "a", "model": model})


def test_a_convolution_wider_than_the_features_is_refused() -> None:
    with pytest.raises(UserError, match="too many for 10 features"):
        CldnnConfig(bands=9, pool=3).network(10, 5)


# Sequences ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEQUENCES)
def test_scores_do_not_depend_on_what_else_is_in_the_minibatch(name: str) -> None:
    """Utterances of different lengths, padded, against each of them alone."""
    network = sequence_network(name)
    examples = training_examples(network)
    store, _, splits, _ = toy()
    sizes = [store.frames(u) for u in splits["train"][:5]]
    assert len(set(sizes)) > 1
    ends = np.cumsum(sizes)
    with torch.inference_mode():
        together = network(*examples.batch("train", np.arange(ends[-1]))[0])
        alone = [network(*examples.batch("train", np.arange(e - n, e))[0]) for e, n in zip(ends, sizes, strict=True)]
    assert together.shape == (ends[-1], toy()[3])
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SEQUENCES)
def test_padding_may_hold_anything(name: str) -> None:
    network = sequence_network(name)
    (features, mean, std, lengths, index), _ = training_examples(network).batch("train", np.arange(301))
    assert len(set(lengths.tolist())) > 1
    reach = network.reach
    spoiled = features.clone()
    for row, length in enumerate(lengths.tolist()):
        spoiled[row, length + 2 * reach :] = 1e3
    assert not torch.equal(spoiled, features)
    with torch.inference_mode():
        expected, found = network(features, mean, std, lengths, index), network(spoiled, mean, std, lengths, index)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TINY)
def test_the_loss_of_a_minibatch_is_the_mean_over_its_frames(name: str) -> None:
    """Summed over utterances, in one minibatch or each in one of its own; so a gradient weighs its frames."""
    network = tiny(name).eval()
    store, labels, splits, _ = toy()
    examples = network.examples(store, labels, splits)
    ends = np.cumsum([store.frames(u) for u in splits["train"][:4]])
    total = 0.0
    with torch.inference_mode():
        for low, high in zip([0, *ends[:-1]], ends, strict=True):
            inputs, targets = examples.batch("train", np.arange(low, high))
            total += float(nn.functional.cross_entropy(network(*inputs), targets, reduction="sum"))
        inputs, targets = examples.batch("train", np.arange(ends[-1]))
        together = float(nn.functional.cross_entropy(network(*inputs), targets))
    assert together == pytest.approx(total / ends[-1], rel=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_scores_of_a_whole_utterance(name: str) -> None:
    network = tiny(name).eval()
    store, labels, splits, states = toy()
    prior = log_prior(np.bincount(labels, minlength=states))
    utterance = splits["dev"][0]
    scaled = log_likelihoods(network, store, utterance, prior)
    assert scaled.shape == (store.frames(utterance), states)
    np.testing.assert_allclose(np.exp(scaled + prior).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", SEQUENCES)
def test_held_out_loss_is_that_of_recognition(name: str) -> None:
    """Evaluation cuts utterances as recognition does."""
    built = learner(name)
    store, labels, splits, _ = toy()
    x = built.initial()
    found = built.evaluate(x, "dev")
    total, frames = 0.0, 0
    for utterance in splits["dev"]:
        first, size = store.span(utterance)
        network = built.module
        assert isinstance(network, SequenceNetwork)
        with torch.inference_mode():
            scores = network(*network.whole(store, utterance))
        targets = torch.from_numpy(labels[first : first + size].astype(np.int64))
        total, frames = total + float(nn.functional.cross_entropy(scores, targets, reduction="sum")), frames + size
    assert found.frames == frames
    assert found.loss == pytest.approx(total, rel=1e-5)


def test_a_forward_only_network_reads_an_utterance_as_its_chunks() -> None:
    """With a warm-up as long as the utterance, chunks have the very state that reading on from the beginning has."""
    store, labels, splits, states = toy()
    utterance = splits["train"][0]
    size = store.frames(utterance)
    config = CldnnConfig(
        maps=2, context=1, pool=8, dense_layers=1, width=8, cells=6, projection=4, chunk=10, warmup=size, dropout=0.0
    )
    torch.manual_seed(0)
    network = config.network(40, states).eval()
    examples = network.examples(store, labels, splits)
    with torch.inference_mode():
        chunks = network(*examples.batch("train", np.arange(size))[0])
        whole = network(*network.whole(store, utterance))
    # The state at the beginning of the whole utterance is what the repeated first frame has led to: for the first
    # chunk exactly the same, for later ones the repetition is shorter, and has faded.
    torch.testing.assert_close(chunks[:8], whole[:8], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(chunks, whole, rtol=0, atol=5e-3)


def test_both_ways_is_the_lstm_of_torch() -> None:
    """The same parameters in torch's bidirectional LSTM, on packed sequences."""
    network = sequence_network("blstm")
    network.bottleneck, network.output = None, nn.Identity()  # type: ignore[assignment]
    oracle = nn.LSTM(80, 6, 2, bidirectional=True)
    names = {"ahead": "", "back": "_reverse"}
    with torch.no_grad():
        for name, value in network.named_parameters():
            _, number, way, kind = name.split(".")
            getattr(oracle, kind.replace("l0", f"l{number}") + names[way]).copy_(value)
    inputs, _ = training_examples(network).batch("train", np.arange(301))
    with torch.inference_mode():
        found = network(*inputs)
        features, mean, std, lengths, index = inputs
        x = network.frontend.over_time(features, mean, std).flatten(2)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(oracle(packed)[0], batch_first=True)
    torch.testing.assert_close(found, hidden.flatten(0, 1)[index], rtol=1e-4, atol=1e-5)


def test_rotated_products_depend_on_the_distance() -> None:
    x = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(1, 1, 9, 8)
    products = rotated(x)[0, 0] @ rotated(x)[0, 0].T
    for distance in range(1, 8):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    assert float(products.diagonal(1)[0]) != pytest.approx(float(products.diagonal(3)[0]), abs=1e-3)


# Gradients ------------------------------------------------------------------------------------------------------------


def gradient(built: ModuleLearner, at: Tensor, batch: Minibatch, epoch: EpochPlan) -> Tensor:
    out = torch.full_like(at, torch.nan)
    statistics = built.gradient(at, batch, epoch, out)
    assert statistics.frames == batch.frames
    return out


@pytest.mark.parametrize("name", TINY)
def test_gradients_are_pure_functions_of_point_and_minibatch(name: str) -> None:
    """Nothing that was computed before, in any order, counts; dropout included."""
    built = learner(name)
    epoch = EpochPlan(0, built.examples, 90, 2, seed=3)
    x = built.initial()
    before = gradient(built, x, epoch.piece(3), epoch)
    gradient(built, x * 1.1, epoch.piece(4), epoch)
    built.evaluate(x, "dev")
    assert torch.equal(gradient(built, x.clone(), epoch.piece(3), epoch), before)
    assert not torch.equal(gradient(built, x, epoch.piece(4), epoch), before)
    assert torch.isfinite(before).all()
    assert float(before.abs().sum()) > 0
    out = torch.ones_like(x)
    assert built.gradient(x, Minibatch(0, 0, 5, 5), epoch, out).frames == 0
    assert not out.any()


@pytest.mark.parametrize("name", TINY)
def test_gradients_asked_for_together_are_those_asked_for_alone(name: str) -> None:
    """Sequences, which differ in shape, are computed one by one."""
    built = learner(name)
    epoch = EpochPlan(0, built.examples, 60, 3, seed=3)
    batches = [epoch.piece(index) for index in (0, 4, 2)]
    points = torch.stack([built.initial() * scale for scale in (1.0, 1.1, 0.9)])
    out = torch.full_like(points, torch.nan)
    statistics = built.gradients(points, batches, epoch, out)
    for row, (point, batch) in enumerate(zip(points, batches, strict=True)):
        torch.testing.assert_close(out[row], gradient(built, point, batch, epoch), rtol=1e-4, atol=1e-6)
        assert statistics[row].frames == batch.frames


@pytest.mark.parametrize("name", ["dnn", "blstm"])
def test_clipping_scales_a_long_gradient_down_and_leaves_a_short_one(name: str) -> None:
    free = learner(name)
    epoch = EpochPlan(0, free.examples, 90, 2, seed=3)
    x, batch = free.initial(), epoch.piece(1)
    expected = gradient(free, x, batch, epoch)
    norm = float(expected.norm())
    assert torch.equal(gradient(learner(name, 2 * norm), x, batch, epoch), expected)
    torch.testing.assert_close(gradient(learner(name, norm / 4), x, batch, epoch), expected / 4)


@pytest.mark.parametrize("name", TINY)
def test_another_device_is_given_copies(name: str) -> None:
    """The same bits, where the other device computes alike: here it is the same one, but copied to and from."""
    here = learner(name)
    store, labels, splits, _ = toy()
    network = tiny(name)
    there = ModuleLearner(network, network.examples(store, labels, splits), device=torch.device("cpu"))
    epoch = EpochPlan(0, here.examples, 90, 2, seed=3)
    for scale in (1.0, 1.1):
        x = here.initial() * scale
        assert torch.equal(gradient(there, x, epoch.piece(1), epoch), gradient(here, x, epoch.piece(1), epoch))
        assert there.evaluate(x, "dev") == here.evaluate(x, "dev")


def test_a_compiled_module_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for shapes that vary; its parameters keep their names."""
    asked: list[dict[str, object]] = []

    def compiled(module: nn.Module, **options: object) -> nn.Module:
        asked.append(options)
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    store, labels, splits, _ = toy()
    network = tiny("blstm")
    built = ModuleLearner(network, network.examples(store, labels, splits), compiled=True)
    epoch = EpochPlan(0, built.examples, 90, 2, seed=3)
    x, plain_ = built.initial(), learner("blstm")
    assert torch.equal(gradient(built, x, epoch.piece(1), epoch), gradient(plain_, x, epoch.piece(1), epoch))
    assert asked == [{"dynamic": True}]
    assert built.module is network


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_network_learns(name: str) -> None:
    with SimRuntime(cluster("sgd", 1, TinyTask(name), optimizer=TorchOptimizer("adam"))) as runtime:
        built = learner(name)
        before = built.evaluate(runtime.consensus(), "dev").mean_loss
        runtime.segment(plan(0, 1, rate=0.02, examples=2500))
        assert built.evaluate(runtime.consensus(), "dev").mean_loss < 0.9 * before


# Every strategy -------------------------------------------------------------------------------------------------------


TASKS: dict[str, tuple[Task, SegmentPlan]] = {
    **{name: (TinyTask(name), plan(0, 2, rate=0.05, examples=6 * 64 + 5)) for name in TINY if "-chunks" not in name},
    "whole utterances": (UnalignedTask("blstm"), SegmentPlan(EpochPlan(0, 21, 8, 2, 3), 0.01)),
}


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        *((strategy, "blstm") for strategy in one_of_each(EVERY)),
        *((strategy, name) for strategy in ("ssgd", "adpsgd") for name in TASKS if name != "blstm"),
    ],
)
def test_every_strategy_and_every_model_train_together(strategy: str, name: str) -> None:
    """A strategy sees a vector, and a model a point: each strategy has one model, and each model two strategies."""
    task, segment = TASKS[name]
    with SimRuntime(cluster(strategy, 2, task)) as runtime:
        before = runtime.consensus().clone()
        outcome = runtime.segment(segment)
        after = runtime.consensus()
    assert outcome.counts.frames.sum() == segment.epoch.examples
    assert np.isfinite(outcome.counts.statistics.loss)
    assert torch.isfinite(after).all()
    assert not torch.equal(after, before)
    assert after.shape == (task.build().parameters,)
