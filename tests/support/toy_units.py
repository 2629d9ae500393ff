"""Networks on the toy corpus with units as targets; a module of its own, since learner processes import it."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay_speech.models import BlstmConfig, ConformerConfig, ModelConfig, TdnnfConfig
from roundelay_speech.models.network import SequenceNetwork
from roundelay_speech.models.sequences import UtteranceExamples
from roundelay_speech.objectives import Ctc
from roundelay_speech.unit_labels import label_splits, units_of
from roundelay_speech.units import Phones
from support.toy_corpus import FILTERS, toy_corpus
from support.toy_models import TINY

CHUNKS = TINY["conformer-chunks"]
assert isinstance(CHUNKS, ConformerConfig)
UNALIGNED: dict[str, ModelConfig] = {
    "blstm": BlstmConfig(layers=1, cells=6, deltas=0, subsampling=3),
    "conformer": ConformerConfig(layers=1, width=16, heads=2, kernel=5, expansion=2, deltas=0, subsampling=2),
    "conformer-chunks": replace(CHUNKS, deltas=0, subsampling=3, left_chunks=3, dynamic_chunks=False),
    "tdnnf": TdnnfConfig(strides=(1, 1), width=16, bottleneck=6, deltas=0, subsampling=3),
}


@cache
def examples_of(name: str) -> tuple[SequenceNetwork, UtteranceExamples]:
    """Return the network of this name with its first parameters, and the toy corpus in phones."""
    corpus, store, _ = toy_corpus(Path("toy"))
    config, units = UNALIGNED[name], units_of(Phones(), corpus)
    splits, _ = label_splits(corpus, store, units, config.subsampling)  # type: ignore[union-attr]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = config.network(FILTERS, len(units.columns))
    assert isinstance(network, SequenceNetwork)
    return network, network.utterances(store, splits)


@dataclass(frozen=True)
class UnalignedTask(Task):
    """The task of training a network on the toy corpus by CTC."""

    name: str

    def build(self) -> Learner:
        return learner_of(self.name)


@cache
def learner_of(name: str) -> ModuleLearner:
    """Return the learner of the network of this name, always the same in a process."""
    return ModuleLearner(*examples_of(name), objective=Ctc())
