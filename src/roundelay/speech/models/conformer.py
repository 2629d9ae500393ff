"""A Conformer: attention over the whole utterance and convolution over its neighbourhood, in every block.

    (N, T, 120) -> Linear D -> [ 1/2 feed-forward, attention, convolution, 1/2 feed-forward, layer norm ] x layers
                -> (B, D) -> Linear S

    feed-forward   layer norm, Linear 4 D, swish, dropout, Linear D, dropout
    attention      layer norm, multi-head self-attention over the sequence, Linear D, dropout
    convolution    layer norm, Linear 2 D, gated, depthwise over time, layer norm, swish, Linear D, dropout
    each is added to its input

Gulati et al. 2020, "Conformer: convolution-augmented transformer for speech recognition". What is different here:
layer norm instead of batch norm, whose running statistics no strategy could average; rotary positions (Su et al. 2021)
instead of relative sinusoids; no subsampling unless asked for, since every frame of an alignment has a label, and
then frames are stacked instead of convolved. At 16 blocks of width 144, 4 heads,
with 5,723 tied states: 8.6 million parameters. The default, 4 blocks of that width, suits two CPU cores and an hour of
speech: 2.0 million with 500 tied states.

Legend: N sequences, T frames of the longest, B frames that count, D width, S tied states.
"""

from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.speech.models.frontend import Columns
from roundelay.speech.models.network import NetworkConfig, SequenceNetwork, at_least, share, small_output, stacked
from roundelay.speech.models.sequences import Pieces


@dataclass(frozen=True)
class ConformerConfig(NetworkConfig):
    """Attention over the utterance and convolution over the neighbourhood of a frame (Gulati et al. 2020).

    The default suits two CPU cores and an hour of speech.

    kernel      frames of the depthwise convolution, odd
    expansion   how much wider the feed-forward layers are
    chunk, context   as for the blstm: whole utterances, and `context` frames beyond a cut
    subsampling as for the blstm: so many frames become one before the first layer
    """

    name: Literal["conformer"] = field(default="conformer", kw_only=True)
    layers: int = 4
    width: int = 144
    heads: int = 4
    kernel: int = 31
    expansion: int = 4
    dropout: float = 0.1
    chunk: int | None = None
    context: int = 40
    deltas: int = 2
    subsampling: int = 1

    def __post_init__(self) -> None:
        at_least(self, 1, "layers", "width", "heads", "kernel", "expansion", "chunk", "subsampling")
        at_least(self, 0, "context", "deltas")
        share(self, "dropout")
        if self.width % (2 * self.heads):
            raise UserError(f"model.width is {self.width}: give a multiple of {2 * self.heads}, twice model.heads.")
        if self.kernel % 2 == 0:
            raise UserError(f"model.kernel is {self.kernel}: give an odd number of frames.")

    @classmethod
    def small(cls) -> Self:
        """16 blocks, about the size of the smallest of Gulati et al. 2020; for a GPU and hundreds of hours."""
        return cls(layers=16)

    def network(self, features: Columns, states: int) -> "Conformer":
        return Conformer(self, features, states)


class Conformer(SequenceNetwork):
    """Scores (B, S) of tied states for frames of sequences; see `SequenceNetwork` for the inputs."""

    def __init__(self, config: ConformerConfig, features: Columns, states: int) -> None:
        pieces = Pieces(config.chunk, config.context, config.context)
        super().__init__(features, config.deltas, 0, pieces, config.subsampling)
        self.input = nn.Linear(self.frontend.width * config.subsampling, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.width, states)
        self.reset()

    def reset(self) -> None:
        """Draw new parameters: torch's own for each layer; the output layer small, so that training starts near the
        uniform distribution."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Conv1d | nn.LayerNorm):
                part.reset_parameters()
        small_output(self.output)

    def forward(self, features: Tensor, mean: Tensor, std: Tensor, lengths: Tensor, index: Tensor) -> Tensor:
        x, lengths = stacked(self.frontend.flat_over_time(features, mean, std), lengths, self.subsampling)
        x = self.dropout(self.input(x))
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # (N, T)
        for block in self.blocks:
            x = block(x, inside)
        scores: Tensor = self.output(x.flatten(0, 1).index_select(0, index))
        return scores


class _Block(nn.Module):
    """(N, T, D) -> (N, T, D)."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.first, self.last = _feed_forward(config), _feed_forward(config)
        self.attention, self.convolution = _Attention(config), _Convolution(config)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        x = x + self.attention(x, inside)
        x = x + self.convolution(x, inside)
        x = x + 0.5 * self.last(x)
        normal: Tensor = self.norm(x)
        return normal


def _feed_forward(config: ConformerConfig) -> nn.Sequential:
    width, inner = config.width, config.width * config.expansion
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, inner),
        nn.SiLU(),
        nn.Dropout(config.dropout),
        nn.Linear(inner, width),
        nn.Dropout(config.dropout),
    )


class _Attention(nn.Module):
    """Every frame looks at all frames inside its sequence."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = nn.LayerNorm(config.width)
        self.inputs, self.output = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        sequences, longest, width = x.shape
        heads = self.inputs(self.norm(x)).view(sequences, longest, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (N, heads, T, D / heads) each
        query, key = rotated(query), rotated(key)
        seen = nn.functional.scaled_dot_product_attention(
            query, key, value.to(query.dtype), attn_mask=inside[:, None, None]
        )
        found: Tensor = self.dropout(self.output(seen.transpose(1, 2).flatten(2)))
        return found


class _Convolution(nn.Module):
    """Every frame sees its neighbourhood, feature by feature; beyond the sequence there is nothing."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        width = config.width
        self.norm, self.gated = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, config.kernel, padding=config.kernel // 2, groups=width)
        self.after, self.output, self.dropout = nn.LayerNorm(width), nn.Linear(width, width), nn.Dropout(config.dropout)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        gated = nn.functional.glu(self.gated(self.norm(x)), 2).masked_fill(~inside[:, :, None], 0.0)
        near = self.depthwise(gated.transpose(1, 2)).transpose(1, 2)
        found: Tensor = self.dropout(self.output(nn.functional.silu(self.after(near))))
        return found


def rotated(x: Tensor) -> Tensor:
    """Queries or keys (N, heads, T, d), pairs of their elements turned by an angle that grows with time: their products
    then depend on how far apart two frames are, not on where they are. Angles are d / 2 geometric steps from 1 to
    1 / 10,000 a frame."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angle = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * 1e4**-steps
    a, b = x.float().chunk(2, -1)
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1).to(x.dtype)
