"""Objectives by name, chosen in a recipe by `training.objective`. The union is the registry: a new objective is a file
beside these, and its class here."""

from roundelay.learner.objectives.base import Classification, Evidence, Inputs, Objective
from roundelay.learner.objectives.cross_entropy import CrossEntropy
from roundelay.learner.objectives.ctc import Ctc
from roundelay.learner.objectives.lfmmi import LfMmi
from roundelay.learner.objectives.smoothed import Smoothed

AnyObjective = CrossEntropy | Smoothed | Ctc | LfMmi

__all__ = [
    "AnyObjective",
    "Classification",
    "CrossEntropy",
    "Ctc",
    "Evidence",
    "Inputs",
    "LfMmi",
    "Objective",
    "Smoothed",
]
