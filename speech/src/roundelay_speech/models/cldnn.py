"""Convolution, feed-forward and LSTM layers one above the other: the CLDNN of Li et al. 2017.

    (N, T + 2 c, 2, 40) -> Conv 128 maps, (2 c + 1) x 9, ReLU, max over 3 bands -> (N, T, 128 x 10)
                        -> [Linear 1024, ReLU, dropout] x 2
                        -> [LSTM 1024 cells, projected to 512, dropout] x 2 -> (B, 512) -> Linear S

Published: 40 filterbanks with one delta, 1 convolution layer with 128 maps, 2 layers of 1,024, 2 LSTM layers of 1,024
cells and 512 projections, 5,723 tied states, truncated backpropagation over 20 frames on 100 subsequences of different
utterances at a time. The filter's size, the pooling and how the layers are joined are not printed; 9 bands and a
maximum over 3 are those of Sainath et al. 2015, "Convolutional, long short-term memory, fully connected deep neural
networks", which the paper names. With c = 5 that makes 16.9 million parameters, 13.9 without the output layer; the
paper prints about 13.8.

**Truncated backpropagation, as a pure function.** The usual way keeps the LSTM's state from one minibatch to the
next, as it was left by weights that have changed since. Here nothing is kept: a chunk's first state is the one that the
LSTM reaches over the `warmup` frames before it, with the weights of now, and no gradient flows into them. So a
minibatch means the same to every learner, at any time. Before an utterance begins, its first frame is repeated. In
evaluation and recognition an utterance is read from its beginning to its end.

Legend: N sequences, T frames of the longest, B frames that count, S tied states, c frames of context a side.
"""

import warnings
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor, nn

from roundelay.core.bounds import Count, ShareBelowOne, Whole
from roundelay.core.errors import UserError
from roundelay_speech.models.frontend import Columns
from roundelay_speech.models.network import NetworkConfig, SequenceNetwork, small_output
from roundelay_speech.models.sequences import Pieces


@dataclass(frozen=True)
class CldnnConfig(NetworkConfig):
    """Convolution over bands, feed-forward and LSTM layers (Li et al. 2017).

    The default suits two CPU cores and an hour of speech."""

    name: Literal["cldnn"] = field(default="cldnn", kw_only=True)
    maps: Count = 32
    """Filters of the convolution."""
    context: Whole = 5
    """Frames on each side that the network sees."""
    bands: Count = 9
    """Neighbouring features that a filter covers."""
    pool: Count = 3
    """Neighbouring outputs of a filter of which the largest is taken."""
    dense_layers: Whole = 2
    """Feed-forward layers."""
    width: Count = 384
    """Units of a feed-forward layer."""
    lstm_layers: Count = 2
    """LSTM layers."""
    cells: Count = 320
    """Cells of an LSTM layer."""
    projection: Count | None = 160
    """Width that an LSTM's output is projected to; null for none."""
    dropout: ShareBelowOne = 0.2
    """Share of units dropped while training."""
    chunk: Count = 20
    """Frames of a subsequence, over which gradients flow back; as many as fit into training.minibatch go side by
    side."""
    warmup: Whole = 20
    """Frames before a subsequence over which the LSTMs reach their first state."""
    deltas: Whole = 1
    """Orders of deltas beside the static features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projection is not None and self.projection >= self.cells:
            raise UserError(
                f"model.projection is {self.projection}, of {self.cells} cells: give fewer than cells, or null."
            )

    @classmethod
    def published(cls) -> Self:
        """Return the sizes of Li et al. 2017, who name no dropout. Their 100 subsequences of 20 are a minibatch of
        2,000."""
        return cls(maps=128, width=1024, cells=1024, projection=512, dropout=0.0)

    def network(self, features: Columns, states: int) -> "Cldnn":
        return Cldnn(self, features, states)


class Cldnn(SequenceNetwork):
    """The network: scores (B, S) of tied states for frames of sequences; see `SequenceNetwork` for the inputs."""

    same_operations = True

    def __init__(self, config: CldnnConfig, features: Columns, states: int) -> None:
        pieces = Pieces(config.chunk, left=config.warmup, fill=True)
        super().__init__(features, config.deltas, config.context, pieces)
        self.warmup, self.pool = config.warmup, config.pool
        self.convolution = nn.Conv2d(config.deltas + 1, config.maps, (2 * config.context + 1, config.bands))
        parts, stored = self.frontend.parts, self.frontend.scale.shape[1]
        if self.frontend.kept is not None or len(parts) > 1:
            raise UserError(
                f"The cldnn convolves over neighbouring bands with {config.deltas} orders of deltas: it needs one "
                f"filterbank that has them, not {', '.join(f'{p.name} (deltas {p.deltas})' for p in parts)}. Choose "
                "other features (`roundelay features`), model.deltas or another model."
            )
        bands = (stored - config.bands + 1) // config.pool
        if bands < 1:
            raise UserError(
                f"model.bands is {config.bands} and model.pool {config.pool}: too many for {stored} features."
            )
        inputs, dense = config.maps * bands, []
        for _ in range(config.dense_layers):
            dense += [nn.Linear(inputs, config.width), nn.ReLU(), nn.Dropout(config.dropout)]
            inputs = config.width
        self.dense = nn.Sequential(*dense)
        self.lstms = nn.ModuleList()
        for _ in range(config.lstm_layers):
            self.lstms.append(nn.LSTM(inputs, config.cells, batch_first=True, proj_size=config.projection or 0))
            inputs = config.projection or config.cells
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(inputs, states)
        self.reset()

    def reset(self) -> None:
        """Draw new parameters: He et al. 2015 for ReLU; uniform in +- 1 / sqrt(cells) for the LSTMs, torch's own; the
        output layer small, so that training starts near the uniform distribution."""
        for part in (self.convolution, *self.dense):
            if isinstance(part, nn.Linear | nn.Conv2d):
                nn.init.kaiming_uniform_(part.weight, nonlinearity="relu")
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        for lstm in self.lstms:
            assert isinstance(lstm, nn.LSTM)
            lstm.reset_parameters()
        small_output(self.output)

    def forward(self, features: Tensor, mean: Tensor, std: Tensor, lengths: Tensor, index: Tensor) -> Tensor:
        # The frames of the warm-up go through the same layers apart from the others and are cut off from the gradient
        # there: it is computed only where it is asked for. (Under no_grad, autocast would remember weights without
        # one.)
        before = self._below(features[:, : self.warmup + 2 * self.reach], mean, std).detach() if self.warmup else None
        x = self._below(features[:, self.warmup :], mean, std)
        for number, lstm in enumerate(self.lstms):
            state = None
            if before is not None:
                before, (hidden, cells) = _read(lstm, before)
                before, state = before.detach(), (hidden.detach(), cells.detach())
            x = _read(lstm, x, state)[0]
            if number < len(self.lstms) - 1:
                x = self.dropout(x)
                before = self.dropout(before) if before is not None else None
        sequences, longest = x.shape[0], x.shape[1] + self.warmup
        row = torch.div(index, longest, rounding_mode="floor")
        wanted = index - (row + 1) * self.warmup
        scores: Tensor = self.output(self.dropout(x.reshape(sequences * x.shape[1], -1).index_select(0, wanted)))
        return scores

    def _below(self, features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Apply the convolution and the feed-forward layers, (N, t + 2 R, F) -> (N, t, width)."""
        maps = self.convolution(self.frontend.over_time(features, mean, std).transpose(1, 2)).relu()
        pooled = nn.functional.max_pool2d(maps, (1, self.pool))
        below: Tensor = self.dense(pooled.transpose(1, 2).flatten(2))
        return below


State = tuple[Tensor, Tensor]


def _read(lstm: nn.Module, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """Run an LSTM; return its outputs and last state, without torch's warning that it has no fast path for projections
    on a CPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN", UserWarning)
        outputs, after = lstm(x, state)
    return outputs, after
