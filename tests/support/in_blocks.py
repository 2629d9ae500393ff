"""The toy corpus drawn in blocks, so small that an epoch has several windows; learner processes import this by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay_speech.models.frames import FrameExamples, LabelledRuns
from roundelay_speech.models.sequences import SequenceExamples
from support.toy_models import tiny, toy

BLOCK, WINDOW = 100, 600
"""Frames."""


def runs(labels: NDArray[np.int32], splits: Mapping[str, list[str]]) -> dict[str, LabelledRuns]:
    """Return the labelled frames of the toy corpus by split, in small blocks."""
    store = toy()[0]
    found = {name: LabelledRuns.find(labels, store, some) for name, some in splits.items()}
    return {
        name: LabelledRuns.of(some.firsts, some.utterances, some.ends, some.bounds, BLOCK)
        for name, some in found.items()
    }


def examples_in_blocks(name: str) -> FrameExamples | SequenceExamples:
    """Return the toy corpus, drawn in blocks, as examples for the tiny network of this name."""
    store, labels, splits, _ = toy()
    examples = tiny(name).examples(store, labels, runs(labels, splits), "blocks")
    examples.window = WINDOW
    return examples


@dataclass(frozen=True)
class InBlocks(Task):
    """The task of training a tiny network on examples drawn in blocks."""

    name: str

    def build(self) -> Learner:
        return _learner(self.name)


@cache
def _learner(name: str) -> ModuleLearner:
    return ModuleLearner(tiny(name), examples_in_blocks(name))
