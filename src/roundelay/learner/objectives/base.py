"""The seam between a module and the loss it is trained by.

A module maps inputs to outputs; an objective says which number is to become small, and which counts stand beside it.
One objective is one file in this folder.

Legend: B examples of a minibatch, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from roundelay.core.state import Statistics

Inputs = tuple[Tensor, ...]


class Evidence(NamedTuple):
    """Tensors that `Objective.statistics` reads, without gradient and on the module's device.

    They are read only after backward was started: a number read from a GPU waits for all work before it.

    Attributes:
        measure: (), the mean loss over the examples that records, schedules and reports use.
        outputs: (B, ...) the module's outputs, one of each example.
    """

    measure: Tensor
    outputs: Tensor


class Objective(ABC):
    """A loss over minibatches and its statistics: a frozen dataclass, which is also its section of a recipe.

    It holds no tensors and draws nothing at random, so the same object serves every learner and process; an objective
    with graphs of a corpus gets them in each learner (`on`).

    Attributes:
        examples: name of the things that are counted, in the plural.
        measured: the mean loss that records, schedules and reports use, in words.
        right: the share of correct examples that is counted besides, in words.
        aligned: True if every frame has a target, from an alignment; else utterances have them, from their transcripts.
    """

    name: str
    """Loss that is minimised (`roundelay list objectives`, docs/models.md)."""
    examples: ClassVar[str] = "frames"
    measured: ClassVar[str] = "frame cross-entropy"
    right: ClassVar[str] = "accuracy"
    aligned: ClassVar[bool] = True

    @abstractmethod
    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        """Call the module, and return the loss of its outputs.

        Only torch functions that `torch.func.vmap` can batch may be used where examples are alike: the simulator
        computes many learners' gradients in one call. Those of whole sequences are computed one by one.

        Args:
            module: to be called as `module(*inputs)`, once; under autocast where the learner is.
            inputs: inputs of the B examples.
            targets: (B, ...) the outputs wanted.

        Returns:
            (the loss to descend, (), a mean over the B examples; the evidence for `statistics`).
        """

    @abstractmethod
    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        """Return the loss and the correct answers, summed over the examples of one minibatch with `targets` (B,
        ...)."""

    def statistics_of_each(self, evidence: Evidence, targets: Tensor) -> list[Statistics]:
        """Return `statistics` of R minibatches of equal size: `evidence` with measures (R,) and outputs (R, B, ...),
        `targets` (R, B, ...)."""
        rows = zip(*evidence, targets, strict=True)
        return [self.statistics(Evidence(measure, outputs), its) for measure, outputs, its in rows]


class Classification(Objective):
    """An objective on scores (B, C) and classes (B,) int64. Whatever the loss, reports have plain cross-entropy, which
    `Evidence.measure` must be, and the share of targets with the best score."""

    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        (found,) = self.statistics_of_each(Evidence(evidence.measure[None], evidence.outputs[None]), targets[None])
        return found

    def statistics_of_each(self, evidence: Evidence, targets: Tensor) -> list[Statistics]:
        frames, scores = targets.shape[1], evidence.outputs
        if targets.device.type != "cpu":
            return self.read(self.counts(evidence, targets), frames)
        best = scores.numpy().argmax(-1)  # numpy's takes a tenth of the time of torch's
        correct = (best == targets.numpy()).sum(-1).tolist()
        pairs = zip(evidence.measure.tolist(), correct, strict=True)
        return [Statistics(frames, mean * frames, right) for mean, right in pairs]

    def counts(self, evidence: Evidence, targets: Tensor) -> Tensor:
        """Return (R, 2) float64, on the module's device: of each minibatch the measure, and how many of its targets
        score best."""
        correct = (evidence.outputs.argmax(-1) == targets).sum(-1)
        return torch.stack([evidence.measure.double(), correct.double()], -1)

    def read(self, counts: Tensor, examples: int) -> list[Statistics]:
        """Return the statistics of R minibatches of `examples` examples, from their `counts` (R, 2), which waits once
        for a GPU."""
        return [Statistics(examples, mean * examples, int(right)) for mean, right in counts.tolist()]
