"""Objectives: the seam between a module and its loss, and cross-entropy."""

from roundelay.learner.objectives.base import Classification, Evidence, Inputs, Objective
from roundelay.learner.objectives.cross_entropy import CrossEntropy

__all__ = ["Classification", "CrossEntropy", "Evidence", "Inputs", "Objective"]
