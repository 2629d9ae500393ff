"""Objectives by name, chosen in a recipe by `training.objective`. The union is the registry: a new objective is a file
beside these, and its class here; or one of another package, by an entry point of the group `roundelay.objectives`."""

from roundelay.learner.objectives import CrossEntropy
from roundelay_speech.objectives.ctc import Ctc
from roundelay_speech.objectives.lfmmi import LfMmi
from roundelay_speech.objectives.smoothed import Smoothed

AnyObjective = CrossEntropy | Smoothed | Ctc | LfMmi

__all__ = ["AnyObjective", "Ctc", "LfMmi", "Smoothed"]
