"""Connectionist temporal classification: labels in their order, without a time for any of them (Graves et al. 2006).

    loss = -1/N sum_n log p(y_n | x_n),   p(y | x) = sum over paths pi with B(pi) = y of prod_t p_t(pi_t)

A path names a class for every output of the module; B makes repetitions one and leaves out the blank, class 0. The sum
over all paths is torch's `ctc_loss`, the forward-backward algorithm, deterministic on a processor; on a GPU its
gradient may differ in the last bits from call to call.

An example is a whole sequence, an utterance here. The loss of one is a sum over its outputs and is not divided by its
length: a long utterance says more. An utterance counts as right where the best class of every output, read by B, gives
its labels.

With `consistency`, CR-CTC (Yao et al. 2025, arXiv 2410.05101): two views a and b of each utterance, which masks and
dropout make different, are trained on together, and each is to say what the other says:

    loss = 1/2 (ctc(a) + ctc(b)) + consistency / 2 sum_t (KL(stop(p_t(b)) || p_t(a)) + KL(stop(p_t(a)) || p_t(b)))

A minibatch then takes twice the time. Without masks and dropout the views are equal, and so is the loss to that of one.

Legend: N sequences of a minibatch, T outputs of its longest, C classes, U labels of its longest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from roundelay.core.bounds import NonNegative
from roundelay.core.configure import check_values
from roundelay.core.state import Statistics
from roundelay.learner.objectives.base import Evidence, Inputs, Objective

BLANK = 0
"""Class of the blank."""


@dataclass(frozen=True)
class Ctc(Objective):
    """Labels of whole utterances in their order, without an alignment: connectionist temporal classification; its loss,
    of an utterance, is reported."""

    name: Literal["ctc"] = field(default="ctc", kw_only=True)
    consistency: NonNegative = 0.0
    """Weight of agreement between two views of an utterance (CR-CTC; 0.2 with more masks over time); 0: one view."""
    examples: ClassVar[str] = "utterances"
    measured: ClassVar[str] = "CTC loss of an utterance"
    right: ClassVar[str] = "utterances right"
    aligned: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_values(self, "training.objective")

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        """Return the mean loss of N sequences of T scores each, with C classes, in any shape (..., C), against
        `targets` (N, 1 + U) int64: the number of outputs that count, then the labels, -1 behind the last.

        Labels are 1 to C - 1. A sequence that has fewer outputs than its labels need has an infinite loss: leave it
        out.
        """
        views = 2 if self.consistency and torch.is_grad_enabled() else 1
        scores = module(*(inputs if views == 1 else (torch.cat([one, one]) for one in inputs))).float()
        number, lengths, labels = len(targets), targets[:, 0], targets[:, 1:]
        log_p = nn.functional.log_softmax(scores.reshape(views * number, -1, scores.shape[-1]), 2)
        each = nn.functional.ctc_loss(
            log_p.transpose(0, 1),
            labels.clamp_min(BLANK).repeat(views, 1),
            lengths.repeat(views),
            (labels >= 0).sum(1).repeat(views),
            blank=BLANK,
            reduction="none",
        )
        mean = each.mean()
        evidence = Evidence(mean.detach(), log_p[:number].detach().argmax(2))
        return mean if views == 1 else mean + self.consistency * _disagreement(log_p, lengths), evidence

    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        number = len(targets)
        right = sum(_read(best, row) for best, row in zip(evidence.outputs.cpu(), targets.cpu(), strict=True))
        return Statistics(number, float(evidence.measure) * number, right)


def _disagreement(log_p: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean over utterances of half the divergence of each view from the other, which is not moved by it.

    Args:
        log_p: (2 N, T, C), first one view of all utterances, then the other.
        lengths: (N,) outputs that count.
    """
    counts = torch.arange(log_p.shape[1], device=log_p.device) < lengths.repeat(2)[:, None]
    others = torch.cat(log_p.detach().chunk(2)[::-1])
    each = (others.exp() * (others - log_p)).sum(2)
    return (each * counts).sum() / len(log_p)


def _read(best: Tensor, target: Tensor) -> bool:
    """Return True if the classes `best` (T,), read as labels, are those of `target` (1 + U,)."""
    path = torch.unique_consecutive(best[: int(target[0])])
    labels = target[1:]
    return torch.equal(path[path != BLANK], labels[labels >= 0])
