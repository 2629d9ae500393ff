"""Connectionist temporal classification: labels in their order, without a time for any of them (Graves et al. 2006).

    loss = -1/N sum_n log p(y_n | x_n),   p(y | x) = sum over paths pi with B(pi) = y of prod_t p_t(pi_t)

A path names a class for every output of the module; B makes repetitions one and leaves out the blank, class 0. The sum
over all paths is torch's `ctc_loss`, the forward-backward algorithm, deterministic on a processor; on a GPU its
gradient may differ in the last bits from call to call.

An example is a whole sequence, an utterance here. The loss of one is a sum over its outputs and is not divided by its
length: a long utterance says more. An utterance counts as right where the best class of every output, read by B, gives
its labels.

Legend: N sequences of a minibatch, T outputs of its longest, C classes, U labels of its longest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from roundelay.core.state import Statistics
from roundelay.learner.objectives.base import Evidence, Inputs, Objective

BLANK = 0
"""Class of the blank."""


@dataclass(frozen=True)
class Ctc(Objective):
    """Labels of whole utterances in their order, without an alignment: connectionist temporal classification; its loss,
    of an utterance, is reported."""

    name: Literal["ctc"] = field(default="ctc", kw_only=True)
    examples: ClassVar[str] = "utterances"
    measured: ClassVar[str] = "CTC loss of an utterance"
    right: ClassVar[str] = "utterances right"
    aligned: ClassVar[bool] = False

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        """Return the mean loss of N sequences of T scores each, with C classes, in any shape (..., C), against
        `targets` (N, 1 + U) int64: the number of outputs that count, then the labels, -1 behind the last.

        Labels are 1 to C - 1. A sequence that has fewer outputs than its labels need has an infinite loss: leave it
        out.
        """
        scores = module(*inputs).float()
        lengths, labels = targets[:, 0], targets[:, 1:]
        log_p = nn.functional.log_softmax(scores.reshape(len(targets), -1, scores.shape[-1]), 2)
        each = nn.functional.ctc_loss(
            log_p.transpose(0, 1),
            labels.clamp_min(BLANK),
            lengths,
            (labels >= 0).sum(1),
            blank=BLANK,
            reduction="none",
        )
        mean = each.mean()
        return mean, Evidence(mean.detach(), log_p.detach().argmax(2))

    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        number = len(targets)
        right = sum(_read(best, row) for best, row in zip(evidence.outputs.cpu(), targets.cpu(), strict=True))
        return Statistics(number, float(evidence.measure) * number, right)


def _read(best: Tensor, target: Tensor) -> bool:
    """Return True if the classes `best` (T,), read as labels, are those of `target` (1 + U,)."""
    path = torch.unique_consecutive(best[: int(target[0])])
    labels = target[1:]
    return torch.equal(path[path != BLANK], labels[labels >= 0])
