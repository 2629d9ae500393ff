"""Cross-entropy of classes: the mean of -log p(target), nats per example.

    p = softmax(scores),  loss = -1/B sum_b log p_b(target_b)

Legend: B examples, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from roundelay.learner.objectives.base import Classification, Evidence, Inputs


@dataclass(frozen=True)
class CrossEntropy(Classification):
    """Cross-entropy of classes: training minimises the loss that evaluation reports."""

    name: Literal["cross-entropy"] = field(default="cross-entropy", kw_only=True)

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        """Return mean cross-entropy of scores (B, C) against classes (B,) int64."""
        scores = module(*inputs).float()
        mean = nn.functional.cross_entropy(scores, targets)
        return mean, Evidence(mean.detach(), scores.detach())
