"""Every acoustic network, tiny, on the toy corpus; a module of its own because learner processes import it by name."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.models import (
    AcousticNetwork,
    BlstmConfig,
    CldnnConfig,
    ConformerConfig,
    DnnConfig,
    ModelConfig,
    TdnnfConfig,
)
from roundelay_speech.models.network import SequenceNetwork
from support.toy_corpus import FILTERS, Truth, toy_corpus

TINY: dict[str, ModelConfig] = {
    "dnn": DnnConfig(layers=1, width=16, context=1),
    "cldnn": CldnnConfig(
        maps=4, context=1, pool=4, dense_layers=1, width=16, cells=8, projection=6, dropout=0.1, chunk=6, warmup=4
    ),
    "blstm": BlstmConfig(layers=2, cells=6, bottleneck=8, context=5, deltas=1),
    "blstm-chunks": BlstmConfig(layers=1, cells=6, chunk=7, context=2, deltas=0),
    "conformer": ConformerConfig(layers=1, width=16, heads=2, kernel=5, expansion=2, context=5, deltas=1),
    "conformer-chunks": ConformerConfig(
        layers=2,
        width=8,
        heads=2,
        kernel=7,
        expansion=1,
        deltas=1,
        attention_chunk=6,
        left_chunks=2,
        dynamic_chunks=True,
    ),
    "tdnnf": TdnnfConfig(strides=(1, 2), width=12, bottleneck=5, context=3, deltas=1),
}


@cache
def toy() -> tuple[FeatureStore, NDArray[np.int32], dict[str, list[str]], int]:
    """Return the store, the tied state of every frame, utterances by split, and the number of tied states."""
    corpus, store, truth = toy_corpus(Path("toy"))
    labels = labels_of(store, truth)
    return store, labels, {split: [u.id for u in some] for split, some in corpus.splits.items()}, int(labels.max()) + 1


def labels_of(store: FeatureStore, truth: Truth) -> NDArray[np.int32]:
    """Return the tied state of every frame, (T,), in store order."""
    return np.concatenate([truth[name][:, 2] for name in store.utterance_ids]).astype(np.int32)


def tiny(name: str) -> AcousticNetwork:
    """Return the tiny network of this name with its first parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TINY[name].network(FILTERS, toy()[3])


with torch.random.fork_rng(devices=[]):
    SEQUENCES = tuple(name for name, config in TINY.items() if isinstance(config.network(FILTERS, 5), SequenceNetwork))


@dataclass(frozen=True)
class TinyTask(Task):
    """The task of training a tiny network on the toy corpus."""

    name: str
    clip: float | None = None

    def build(self) -> Learner:
        return _learner(self)


@cache
def _learner(task: TinyTask) -> ModuleLearner:
    store, labels, splits, _ = toy()
    network = tiny(task.name)
    return ModuleLearner(network, network.examples(store, labels, splits), clip=task.clip)
