"""A deep bidirectional LSTM: every frame sees all frames before it and after it.

    (N, T, 120) -> [LSTM ahead H | LSTM back H, dropout] x layers -> (N, T, 2 H)
                -> the B frames that count -> (B, 2 H) -> Linear 256, a bottleneck, or none -> Linear S

The large size (`BlstmConfig.large`) is meant for corpora like 2,000 hours of Switchboard: 6 layers of 1,024 cells, 512
a direction, a linear bottleneck of 256, 21-frame subsequences; with 260 features and 32,000 tied states that is 43.2
million parameters. The default, 2 layers of 192 a direction on whole utterances, suits two CPU cores and an hour of
speech: 1.6 million with 500 tied states.

Graves and Schmidhuber 2005, "Framewise phoneme classification with bidirectional LSTM"; Hochreiter and Schmidhuber 1997
with the forget gates of Gers et al. 2000, as torch.nn.LSTM has them.

Sequences of a minibatch are padded to the longest and not packed: a packed one takes torch's slow path on a CPU.
The way back begins at the last frame of each sequence, which is brought to the front for it: padding is always at the
end of an LSTM's input, and has no influence.

Legend: N sequences, T frames of the longest, B frames that count, F features, I inputs of a layer, S tied states,
H cells a direction.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from roundelay.core.bounds import Count, ShareBelowOne, Whole
from roundelay_speech.models.frontend import Columns
from roundelay_speech.models.network import NetworkConfig, SequenceNetwork, stacked
from roundelay_speech.models.sequences import Pieces


@dataclass(frozen=True)
class BlstmConfig(NetworkConfig):
    """Bidirectional LSTM over whole utterances, or subsequences of them.

    The default suits two CPU cores and an hour of speech."""

    name: Literal["blstm"] = field(default="blstm", kw_only=True)
    layers: Count = 2
    """LSTM layers in each direction."""
    cells: Count = 192
    """Cells of a layer in one direction."""
    bottleneck: Count | None = None
    """Width of a linear layer before the output; null for none."""
    dropout: ShareBelowOne = 0.3
    """Share of units dropped while training."""
    chunk: Count | None = None
    """Train on subsequences of about so many frames; null for whole utterances."""
    context: Whole = 40
    """Frames on each side of a subsequence, or of a cut in an utterance, that the network sees and that do not
    count."""
    deltas: Whole = 2
    """Orders of deltas beside the static features."""
    subsampling: Count = 1
    """Frames that become one before the first layer; more than 1 for objectives that need no alignment
    (docs/objectives.md)."""

    @classmethod
    def large(cls) -> Self:
        """Return the size for thousands of hours on a GPU; its 260 features a frame have their deltas in them."""
        return cls(layers=6, cells=512, bottleneck=256, dropout=0.0, chunk=21, context=0, deltas=0)

    def network(self, features: Columns, states: int) -> "Blstm":
        return Blstm(self, features, states)


class Blstm(SequenceNetwork):
    """The network: scores (B, S) of tied states for frames of sequences; see `SequenceNetwork` for the inputs."""

    same_operations = True

    def __init__(self, config: BlstmConfig, features: Columns, states: int) -> None:
        pieces = Pieces(config.chunk, config.context, config.context)
        super().__init__(features, config.deltas, 0, pieces, config.subsampling)
        inputs = self.frontend.width * config.subsampling
        self.layers = nn.ModuleList()
        for _ in range(config.layers):
            self.layers.append(_BothWays(inputs, config.cells))
            inputs = 2 * config.cells
        self.dropout = nn.Dropout(config.dropout)
        self.bottleneck = nn.Linear(inputs, config.bottleneck) if config.bottleneck else None
        self.output = nn.Linear(config.bottleneck or inputs, states)
        self.reset()

    def forward(self, features: Tensor, mean: Tensor, std: Tensor, lengths: Tensor, index: Tensor) -> Tensor:
        x, lengths = stacked(self.frontend.flat_over_time(features, mean, std), lengths, self.subsampling)
        x = x.transpose(0, 1)  # (T, N, I): torch's LSTM likes it
        longest, sequences = x.shape[:2]
        turn = turned(lengths, longest)
        for layer in self.layers:
            x = self.dropout(layer(x, turn)) if layer is not self.layers[-1] else layer(x, turn)
        row = torch.div(index, longest, rounding_mode="floor")
        wanted = (index - row * longest) * sequences + row
        hidden = self.dropout(x.flatten(0, 1).index_select(0, wanted))
        if self.bottleneck is not None:
            hidden = self.bottleneck(hidden)
        scores: Tensor = self.output(hidden)
        return scores


class _BothWays(nn.Module):
    """One bidirectional layer, (T, N, I) -> (T, N, 2 H)."""

    def __init__(self, inputs: int, cells: int) -> None:
        super().__init__()
        self.ahead, self.back = nn.LSTM(inputs, cells), nn.LSTM(inputs, cells)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        ahead = self.ahead(x)[0]
        back = self.back(_rearrange(x, turn))[0]
        return torch.cat([ahead, _rearrange(back, turn)], 2)


def turned(lengths: Tensor, longest: int) -> Tensor:
    """Return the order (T N,) of frames in flattened (T, N) that reverses every sequence; padding keeps its place. The
    order is its own inverse."""
    time = torch.arange(longest, device=lengths.device)[:, None]
    turned = torch.where(time < lengths, lengths - 1 - time, time)
    return (turned * len(lengths) + torch.arange(len(lengths), device=lengths.device)).flatten()


def _rearrange(x: Tensor, turn: Tensor) -> Tensor:
    """Return the frames of `x` (T, N, I) in the order `turn` (T N,)."""
    rearranged: Tensor = _Turn.apply(x.flatten(0, 1), turn)  # type: ignore[no-untyped-call]
    return rearranged.view(x.shape)


class _Turn(torch.autograd.Function):
    """A reordering of rows that is its own inverse, so that the gradient is reordered alike; autograd's own would add
    up into zeros."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, turn: Tensor) -> Tensor:
        ctx.save_for_backward(turn)
        return rows.index_select(0, turn)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None
