"""A factored time-delay network: convolutions over time whose matrices are products of two thin ones.

    (N, T, 120) -> Linear D, ReLU, layer norm -> [ factor, factor, ReLU, layer norm, dropout, + 0.66 input ] x layers
                -> the B frames that count -> (B, D) -> Linear S

    first factor    frames t - s and t, 2 D -> K, semi-orthogonal, no bias
    second factor   frames t and t + s, 2 K -> D

Povey et al. 2018, "Semi-orthogonal low-rank matrix factorization for deep neural networks". Differences here:

- A factor M is kept semi-orthogonal by a matrix that the layer uses in its place, not by changing the parameter after a
  step, which is for strategies to do. It uses one step of the paper's rule,

      M - 1/2 (P / a^2 - I) M,   P = M M^T,   a^2 = tr(P P^T) / tr(P)        (the floating scale of its section 2.3)

  so that a parameter near the constraint is learned, and averages of parameters need no care.
- Layer norm instead of batch norm, whose running statistics no strategy could average; torch's dropout instead of one
  that is the same over time. Beyond an utterance there is nothing: zeros.

The default, six layers with strides s of 1, 1, 1, 3, 3, 3, sees 12 frames on each side: 1.9 million parameters with 500
tied states, all of it products of matrices, which suits processors better than recurrence.

Legend: N sequences, T frames of the longest, B frames that count, D width, K bottleneck, S tied states, s stride.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from roundelay.core.bounds import Count, ShareBelowOne, Whole
from roundelay.core.errors import UserError
from roundelay_speech.models.frontend import Columns
from roundelay_speech.models.network import NetworkConfig, SequenceNetwork, stacked
from roundelay_speech.models.sequences import Pieces

BYPASS = 0.66


@dataclass(frozen=True)
class TdnnfConfig(NetworkConfig):
    """Factored convolutions over time, a time-delay network (Povey et al. 2018)."""

    name: Literal["tdnnf"] = field(default="tdnnf", kw_only=True)
    strides: tuple[Count, ...] = (1, 1, 1, 3, 3, 3)
    """Frames (behind subsampling) between the two that a factor of a layer looks at, a number for each layer."""
    width: Count = 512
    """Width of a layer."""
    bottleneck: Count = 128
    """Width between the two factors of a layer."""
    dropout: ShareBelowOne = 0.1
    """Share of units dropped while training."""
    chunk: Count | None = None
    """Train on subsequences of about so many frames; null for whole utterances."""
    context: Whole = 12
    """Frames on each side of a subsequence that the network sees and that do not count."""
    deltas: Whole = 2
    """Orders of deltas beside the static features."""
    subsampling: Count = 1
    """Frames that become one before the first layer; more than 1 for objectives that need no alignment
    (docs/objectives.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strides:
            raise UserError("model.strides is []: give a number above 0 for each layer.")
        if self.bottleneck > 2 * self.width:
            raise UserError(
                f"model.bottleneck is {self.bottleneck}: no more than twice model.width, {2 * self.width}, can be "
                "semi-orthogonal."
            )

    def network(self, features: Columns, states: int) -> "Tdnnf":
        return Tdnnf(self, features, states)


class Tdnnf(SequenceNetwork):
    """The network: scores (B, S) of tied states for frames of sequences; see `SequenceNetwork` for the inputs."""

    same_operations = True

    def __init__(self, config: TdnnfConfig, features: Columns, states: int) -> None:
        pieces = Pieces(config.chunk, config.context, config.context)
        super().__init__(features, config.deltas, 0, pieces, config.subsampling)
        self.input = nn.Linear(self.frontend.width * config.subsampling, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.layers = nn.ModuleList(_Factored(config, stride) for stride in config.strides)
        self.output = nn.Linear(config.width, states)
        self.reset()

    def reset(self) -> None:
        """Draw new parameters, as all networks do; first factors are made semi-orthogonal."""
        super().reset()
        for layer in self.layers:
            assert isinstance(layer, _Factored)
            nn.init.orthogonal_(layer.first.weight)

    def forward(self, features: Tensor, mean: Tensor, std: Tensor, lengths: Tensor, index: Tensor) -> Tensor:
        x, lengths = stacked(self.frontend.flat_over_time(features, mean, std), lengths, self.subsampling)
        x = self.norm(torch.relu(self.input(x)))
        beyond = (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[:, :, None]  # (N, T, 1)
        for layer in self.layers:
            x = layer(x.masked_fill(beyond, 0.0), beyond)
        scores: Tensor = self.output(x.flatten(0, 1).index_select(0, index))
        return scores


class _Factored(nn.Module):
    """One factored layer, (N, T, D) -> (N, T, D)."""

    def __init__(self, config: TdnnfConfig, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = nn.Linear(2 * config.width, config.bottleneck, bias=False)
        self.second = nn.Linear(2 * config.bottleneck, config.width)
        self.norm, self.dropout = nn.LayerNorm(config.width), nn.Dropout(config.dropout)

    def forward(self, x: Tensor, beyond: Tensor) -> Tensor:
        frames = x.shape[1]
        earlier = nn.functional.pad(x, (0, 0, self.stride, 0))[:, :frames]
        thin = nn.functional.linear(torch.cat([earlier, x], 2), semi_orthogonal(self.first.weight))
        thin = thin.masked_fill(beyond, 0.0)
        later = nn.functional.pad(thin, (0, 0, 0, self.stride))[:, self.stride :]
        wide = self.norm(torch.relu(self.second(torch.cat([thin, later], 2))))
        found: Tensor = BYPASS * x + self.dropout(wide)
        return found


def semi_orthogonal(factor: Tensor) -> Tensor:
    """Return `factor` (K, 2 D) after a step towards orthogonal rows of equal length, whatever the length."""
    with torch.autocast(factor.device.type, enabled=False):
        product = factor @ factor.T
        scale = product.square().sum() / product.diagonal().sum()
        step = product / scale - torch.eye(len(product), device=factor.device, dtype=factor.dtype)
        return factor - 0.5 * step @ factor
