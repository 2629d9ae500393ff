"""Cross-entropy against targets that are not quite certain (label smoothing, Szegedy et al. 2016, section 7).

    loss = (1 - e) (-log p(target)) + e mean_c (-log p(c))

A share e of the probability of a target is spread evenly over all classes, so that no score has a reason to grow
without end; labels of frames come from an alignment, and are not certain either. With e = 0 it is cross-entropy.

Statistics are those of plain cross-entropy against the targets as they are: losses of runs with and without smoothing,
and their use in schedules and reports, can be compared.

Legend: B examples, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from roundelay.core.bounds import ShareBelowOne
from roundelay.core.configure import check_values
from roundelay.learner.objectives.base import Classification, Evidence, Inputs


@dataclass(frozen=True)
class Smoothed(Classification):
    """Cross-entropy with label smoothing: a share of every target is spread over all classes; evaluation reports plain
    cross-entropy."""

    name: Literal["smoothed"] = field(default="smoothed", kw_only=True)
    share: ShareBelowOne = 0.1
    """Share of every target that is spread over all classes."""

    def __post_init__(self) -> None:
        check_values(self, "training.objective")

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        """Return the mean smoothed cross-entropy of scores (B, C) against classes (B,) int64."""
        log_p = nn.functional.log_softmax(module(*inputs).float(), 1)
        plain = nn.functional.nll_loss(log_p, targets)
        mean = (1 - self.share) * plain - self.share * log_p.mean()
        return mean, Evidence(plain.detach(), log_p.detach())
