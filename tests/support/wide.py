"""A module of several pieces, for learners on several hosts; learner processes import it by name."""

from dataclasses import dataclass

import torch
from torch import nn

from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from support.blobs import Blobs


@dataclass(frozen=True)
class Wide(Task):
    """Trains 988,403 parameters on a classification that needs none of them."""

    def build(self) -> Learner:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(
                nn.Linear(6, 700),
                nn.ReLU(),
                nn.Linear(700, 700),
                nn.ReLU(),
                nn.Linear(700, 700),
                nn.ReLU(),
                nn.Linear(700, 3),
            )
        return ModuleLearner(module, Blobs())
