"""Features with deltas and neighbours of their own, and masks: what networks see of a store with several parts."""

import dataclasses

import numpy as np
import pytest
import torch

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.learner.module import ModuleLearner
from roundelay_speech.features.store import StoredPart
from roundelay_speech.models import BlstmConfig, CldnnConfig, ConformerConfig, DnnConfig
from roundelay_speech.models.frontend import AugmentConfig, Frontend, FrontendConfig, SpecAugment
from support.toy_models import TINY, toy

PUBLISHED = (
    StoredPart("fmllr", 40, deltas=0, normalise="none", filterbank=False),
    StoredPart("logmel", 40, deltas=2),
    StoredPart("ivector", 100, deltas=0, normalise="none", spliced=False, filterbank=False),
)


def test_the_published_input_has_260_dimensions() -> None:
    assert Frontend(FrontendConfig(context=0), PUBLISHED).width == 260
    # Spliced over 11 frames: 11 x (40 + 120), and the i-vector once.
    assert Frontend(FrontendConfig(context=5), PUBLISHED).width == 11 * 160 + 100
    assert Frontend(FrontendConfig(context=0, order=1), PUBLISHED).width == 220
    assert Frontend(FrontendConfig(), (StoredPart("fbank", 40),)).width == Frontend(FrontendConfig(), 40).width == 1320


def test_each_part_is_what_it_would_be_alone() -> None:
    torch.manual_seed(0)
    config = FrontendConfig(context=2)
    parts = (StoredPart("a", 2, deltas=0), StoredPart("b", 3, deltas=1), StoredPart("c", 2, deltas=0, spliced=False))
    windows, mean, std = torch.randn(4, config.width, 7), torch.randn(4, 7), torch.rand(4, 7) + 0.5
    found = Frontend(config, parts)(windows, mean, std)

    def alone(columns: slice, order: int, context: int) -> torch.Tensor:
        """(B, order + 1, 2 context + 1, columns)."""
        own = FrontendConfig(context=context, order=order)
        cut = config.reach - own.reach
        frontend = Frontend(own, columns.stop - columns.start)
        flat: torch.Tensor = frontend(windows[:, cut : config.width - cut, columns], mean[:, columns], std[:, columns])
        return flat.view(4, order + 1, 2 * context + 1, -1)

    a, b, c = alone(slice(0, 2), 0, 2), alone(slice(2, 5), 1, 2), alone(slice(5, 7), 0, 0)
    rows = []
    for position in range(5):  # statics of a and b, and of c in the middle frame
        rows += [a[:, 0, position], b[:, 0, position], *([c[:, 0, 0]] if position == 2 else [])]
    rows += [b[:, 1, position] for position in range(5)]
    torch.testing.assert_close(found, torch.cat(rows, 1))


def test_sequences_see_the_same_as_windows() -> None:
    torch.manual_seed(0)
    frontend = Frontend(FrontendConfig(context=0), (StoredPart("a", 2, deltas=0), StoredPart("b", 3)))
    features, mean, std = torch.randn(2, 20, 5), torch.randn(2, 5), torch.rand(2, 5) + 0.5
    found = frontend.flat_over_time(features, mean, std)
    assert found.shape == (2, 12, frontend.width) == (2, 12, 11)
    for t in range(12):
        torch.testing.assert_close(found[:, t], frontend(features[:, t : t + 9], mean, std))


@pytest.mark.parametrize("config", [DnnConfig(layers=1, width=8), BlstmConfig(layers=1, cells=4), ConformerConfig()])
def test_networks_are_made_for_parts(config: DnnConfig | BlstmConfig | ConformerConfig) -> None:
    config.network(PUBLISHED, 7)


def test_a_convolution_wants_one_filterbank() -> None:
    with pytest.raises(UserError, match=r"it needs one filterbank that has them, not fmllr \(deltas 0\), logmel"):
        CldnnConfig().network(PUBLISHED, 7)
    with pytest.raises(UserError, match=r"with 2 orders of deltas.*not fbank \(deltas 1\)"):
        CldnnConfig(deltas=2).network((StoredPart("fbank", 40, deltas=1),), 7)
    CldnnConfig(deltas=1).network((StoredPart("fbank", 40, deltas=2),), 7)


@pytest.mark.parametrize("name", ["dnn", "blstm"])
def test_masked_gradients_are_functions_of_the_point_and_the_minibatch(name: str) -> None:
    store, labels, splits, states = toy()
    config = dataclasses.replace(TINY[name], dropout=0.0)

    def learner(augment: AugmentConfig | None) -> ModuleLearner:
        torch.manual_seed(0)
        network = config.network(store.parts, states)
        if augment is not None:
            network.frontend.augment = SpecAugment(augment, store.parts)
        return ModuleLearner(network, network.examples(store, labels, splits))

    masked, plain = learner(AugmentConfig(time_masks=1, frequency_masks=2, frequency_width=20)), learner(None)
    plan = EpochPlan(1, masked.examples, 64, 2, 0)
    x = masked.initial()
    torch.testing.assert_close(x, plain.initial(), rtol=0, atol=0)

    def gradient(of: ModuleLearner, piece: int) -> torch.Tensor:
        out = torch.zeros_like(x)
        of.gradient(x, plan.piece(piece), plan, out)
        return out

    first, second = gradient(masked, 0), gradient(masked, 1)
    torch.manual_seed(123)
    assert torch.equal(gradient(masked, 0), first)
    assert torch.equal(gradient(learner(masked_config(masked)), 1), second)
    assert not torch.allclose(first, gradient(plain, 0))
    together = torch.zeros(2, len(x))
    masked.gradients(x.expand(2, -1), [plan.piece(0), plan.piece(1)], plan, together)
    assert torch.equal(together, torch.stack([first, second]))
    assert masked.evaluate(x, "dev") == plain.evaluate(x, "dev")
    assert np.isfinite(together.numpy()).all()


def masked_config(learner: ModuleLearner) -> AugmentConfig:
    found = next(part for part in learner.module.modules() if isinstance(part, SpecAugment))
    return found.config
