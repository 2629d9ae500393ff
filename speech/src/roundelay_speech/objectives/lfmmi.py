"""Lattice-free maximum mutual information: the words said against all that could have been said (Povey et al. 2016).

    loss = -1/N sum_n log ( sum over paths pi of the transcript of w(pi) exp(y_n(pi)) / the same sum over all paths )

A path names a column for every output of the module, y(pi) is the sum of these outputs, and w its weight in a language
model of phones. Outputs are no log-probabilities: a constant that is added to all outputs of a frame changes nothing.
Numerators hold every way to say a transcript, without times, so there is no alignment to begin with (Hadian et al.
2018). The gradient for an output is the share of all paths that emit it less that of the transcript's,

    d loss / d y_nt(k) = 1/N (denominator occupation of k in frame t - numerator occupation),

which forward-backward gives (learner/forward_backward: the denominator by scaled probabilities and sparse products, the
numerators in logarithms). A held-out transcript may have paths that the denominator has not; its own are added to those
of the denominator then, so that no loss is below zero.

Two terms are added to the loss in training, not to the one reported: l2 / 2 times the squared outputs, summed over
frames, and `cross_entropy` times the cross-entropy of the outputs, as scores of a softmax, against the numerator's
occupation (frame smoothing, Su et al. 2013).

An example is a whole utterance; its loss is not divided by its length. It counts as right where its transcript is more
probable than all else together.

Legend: N sequences of a minibatch, T outputs of its longest, S columns.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, final

import torch
from torch import Tensor, nn

from roundelay.core.bounds import Bounds, NonNegative
from roundelay.core.configure import check_values
from roundelay.core.state import Statistics
from roundelay.core.state_graph import StateGraph
from roundelay.learner.objectives.base import Evidence, Inputs, Objective
from roundelay_speech.forward_backward.own import ArcTables, OwnGraphs, SharedGraph


@final
class MmiGraphs:
    """The graphs of a corpus: the denominator, and the numerators by number.

    Args:
        denominator: denominator of all utterances.
        numerators: numerators by number, from 0; each is made at its first use.
    """

    def __init__(self, denominator: StateGraph, numerators: Sequence[StateGraph]) -> None:
        self._denominator, self._numerators = denominator, numerators
        self._tables: dict[int, ArcTables] = {}
        self._shared: dict[torch.device, SharedGraph] = {}

    def shared(self, device: torch.device) -> SharedGraph:
        """Return the denominator on a device."""
        if device not in self._shared:
            self._shared[device] = SharedGraph(self._denominator, device)
        return self._shared[device]

    def own(self, numbers: Sequence[int], device: torch.device) -> tuple[OwnGraphs, Tensor]:
        """Return the numerators `numbers` on a device; and, (N,), True for those with paths that the
        denominator lacks."""
        for number in numbers:
            if number not in self._tables:
                self._tables[number] = ArcTables.of(self._numerators[number])
        tables = [self._tables[number] for number in numbers]
        outside = torch.tensor([not one.graph.within for one in tables], device=device)
        return OwnGraphs(tables, device), outside


@dataclass(frozen=True)
class LfMmi(Objective):
    """Lattice-free MMI from a flat start: all ways to say a transcript against all rows of phones that a language model
    of phones, estimated on the training transcripts, allows; needs units=chain."""

    name: Literal["lfmmi"] = field(default="lfmmi", kw_only=True)
    order: Annotated[int, Bounds(least=3, most=4)] = 4
    """Order of the language model of phones, 3 or 4."""
    least: NonNegative = 20.0
    """Times that a history of more than two phones must be said to be told from shorter ones."""
    l2: NonNegative = 1e-4
    """Times half the squared outputs of an utterance is added to its loss."""
    cross_entropy: NonNegative = 0.0
    """Factor of the cross-entropy against the output of the transcript's paths, which is added."""
    graphs: MmiGraphs | None = field(default=None, init=False, repr=False, compare=False)
    examples: ClassVar[str] = "utterances"
    measured: ClassVar[str] = "LF-MMI loss of an utterance"
    right: ClassVar[str] = "utterances more probable than all else"
    aligned: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_values(self, "training.objective")

    def on(self, graphs: MmiGraphs) -> Self:
        """Return this objective with the graphs of a corpus."""
        found = dataclasses.replace(self)
        object.__setattr__(found, "graphs", graphs)
        return found

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        """Return the mean loss of N sequences of T scores each, with S columns, in any shape (..., S), against
        `targets` (N, 2) int64: the number of outputs that count, and that of the numerator, from 1."""
        assert self.graphs is not None, "an objective is for a corpus only after `on`"
        scores = module(*inputs).double()
        scores = scores.reshape(len(targets), -1, scores.shape[-1])
        lengths = targets[:, 0]
        own, outside = self.graphs.own((targets[:, 1] - 1).tolist(), scores.device)
        shared = self.graphs.shared(scores.device)
        ratio, occupied = _LogRatio.apply(scores, lengths, shared, own)  # type: ignore[no-untyped-call]
        each = torch.where(outside, nn.functional.softplus(ratio), ratio)
        found = each.mean()
        inside = (torch.arange(scores.shape[1], device=scores.device) < lengths[:, None])[:, :, None]
        descended = found
        if self.l2:
            descended = descended + self.l2 / 2 * torch.where(inside, scores, 0.0).square().sum() / len(targets)
        if self.cross_entropy:
            log_p = nn.functional.log_softmax(scores, 2)
            descended = descended - self.cross_entropy * (occupied * log_p).sum() / len(targets)
        return descended, Evidence(found.detach(), each.detach())

    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        number = len(targets)
        right = int((evidence.outputs < math.log(2.0)).sum())
        return Statistics(number, float(evidence.measure) * number, right)


class _LogRatio(torch.autograd.Function):
    """From scores (N, T, S) to the logarithms of denominators less those of numerators (N,), and the numerators'
    occupation (N, T, S), a constant."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, lengths: Tensor, shared: SharedGraph, own: OwnGraphs
    ) -> tuple[Tensor, Tensor]:
        wanted = bool(ctx.needs_input_grad[0])
        everything = shared.sums(scores, lengths, occupied=wanted)
        said = own.sums(scores, lengths, occupied=wanted)
        occupied = torch.zeros_like(scores)
        if said.occupied is not None and everything.occupied is not None:
            occupied = said.occupied
            ctx.save_for_backward(everything.occupied - occupied)
        ctx.mark_non_differentiable(occupied)
        return everything.log_z - said.log_z, occupied

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * gradients[0][:, None, None], None, None, None
