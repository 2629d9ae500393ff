"""A Conformer: attention over the whole utterance and convolution over its neighbourhood, in every block.

    (N, T, 120) -> Linear D -> [ 1/2 feed-forward, attention, convolution, 1/2 feed-forward, layer norm ] x layers
                -> (B, D) -> Linear S

    feed-forward   layer norm, Linear 4 D, swish, dropout, Linear D, dropout
    attention      layer norm, multi-head self-attention over the sequence, Linear D, dropout
    convolution    layer norm, Linear 2 D, gated, depthwise over time, layer norm, swish, Linear D, dropout
    each is added to its input

Gulati et al. 2020, "Conformer: convolution-augmented transformer for speech recognition". Differences here: layer norm
instead of batch norm, whose running statistics no strategy could average; rotary positions (Su et al. 2021) instead of
relative sinusoids; no subsampling unless asked for, since every frame of an alignment has a label, and then frames are
stacked instead of convolved. At 16 blocks of width 144, 4 heads, with 5,723 tied states: 8.6 million parameters. The
default, 4 blocks of that width, suits two CPU cores and an hour of speech: 2.0 million with 500 tied states.

With `attention_chunk` it needs no end of the utterance. Rows are cut into chunks of L, from the first on; attention
sees its own chunk and `left_chunks` before it, convolution its own chunk and half a kernel before it. So scores of a
chunk depend on its frames and on a bounded past, and can be found when it is whole, with keys, values and inputs of
convolutions kept from the chunks before. With `dynamic_chunks` every training minibatch draws a chunk, as Zhang et al.
2020, "Unified streaming and non-streaming two-pass end-to-end model for speech recognition": in half of them all of a
sequence, else from 1 frame to a second. Their convolution is causal instead. Such a network recognises utterances that
are over as a whole, and in chunks only what is being said.

Legend: N sequences, T frames of the longest, B frames that count, D width, S tied states, L rows of a chunk, C chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self, final

import torch
from torch import Tensor, nn

from roundelay.core.bounds import Count, ShareBelowOne, Whole
from roundelay.core.errors import UserError
from roundelay_speech.models.frontend import Columns
from roundelay_speech.models.network import AcousticNetwork, NetworkConfig, SequenceNetwork, Streamed, stacked
from roundelay_speech.models.sequences import Pieces

LONGEST_DRAWN = 100
"""Most frames of a drawn chunk: a second."""


@dataclass(frozen=True)
class ConformerConfig(NetworkConfig):
    """Attention over the utterance and convolution over the neighbourhood of a frame (Gulati et al. 2020).

    The default suits two CPU cores and an hour of speech."""

    name: Literal["conformer"] = field(default="conformer", kw_only=True)
    layers: Count = 4
    """Conformer blocks."""
    width: Count = 144
    """Width of a block."""
    heads: Count = 4
    """Attention heads."""
    kernel: Count = 31
    """Frames of the depthwise convolution, odd."""
    expansion: Count = 4
    """Factor by which the feed-forward layers are wider."""
    dropout: ShareBelowOne = 0.1
    """Share of units dropped while training."""
    chunk: Count | None = None
    """Train on subsequences of about so many frames; null for whole utterances."""
    context: Whole = 40
    """Frames on each side of a subsequence that the network sees and that do not count."""
    deltas: Whole = 2
    """Orders of deltas beside the static features."""
    subsampling: Count = 1
    """Frames that become one before the first layer; more than 1 for objectives that need no alignment
    (docs/objectives.md)."""
    attention_chunk: Count | None = None
    """Frames that are evaluated together and see none later, so that words come during live speech; null for the
    whole utterance (docs/models.md)."""
    left_chunks: Whole = 4
    """Chunks before its own that attention sees."""
    dynamic_chunks: bool = False
    """Draw the frames of a chunk anew for every training minibatch; utterances that are over are then recognised as a
    whole."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise UserError(f"model.width is {self.width}: give a multiple of {2 * self.heads}, twice model.heads.")
        if self.kernel % 2 == 0:
            raise UserError(f"model.kernel is {self.kernel}: give an odd number of frames.")
        self._check_chunks()

    def _check_chunks(self) -> None:
        if self.attention_chunk is None:
            if self.dynamic_chunks:
                raise UserError(
                    "model.dynamic_chunks: give model.attention_chunk, the frames of a chunk in recognition."
                )
            return
        if self.attention_chunk % self.subsampling:
            raise UserError(
                f"model.attention_chunk is {self.attention_chunk}: give a multiple of model.subsampling, "
                f"{self.subsampling} frames, of which a row of scores is made."
            )
        if self.chunk is not None:
            raise UserError(
                "model.chunk and model.attention_chunk: a network that is evaluated in chunks of attention trains on "
                "whole utterances; leave model.chunk=null."
            )

    @classmethod
    def small(cls) -> Self:
        """Return 16 blocks, about the size of the smallest of Gulati et al. 2020; for a GPU and hundreds of hours."""
        return cls(layers=16)

    @property
    def rows(self) -> int | None:
        """L, the rows of a chunk, in recognition; None: whole utterances."""
        return None if self.attention_chunk is None else self.attention_chunk // self.subsampling

    @property
    def rows_before(self) -> int:
        """Number of rows before a chunk that attention sees."""
        return self.left_chunks * (self.rows or 0)

    def network(self, features: Columns, states: int) -> "Conformer":
        return Conformer(self, features, states)


class Conformer(SequenceNetwork):
    """The network: scores (B, S) of tied states for frames of sequences; see `SequenceNetwork` for the inputs."""

    def __init__(self, config: ConformerConfig, features: Columns, states: int) -> None:
        pieces = Pieces(config.chunk, config.context, config.context)
        super().__init__(features, config.deltas, 0, pieces, config.subsampling)
        self.input = nn.Linear(self.frontend.width * config.subsampling, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.width, states)
        self.config, self.same_operations = config, not config.dynamic_chunks
        self.any_chunk = config.dynamic_chunks  # it was trained on chunks of any size
        self.reset()

    def forward(self, features: Tensor, mean: Tensor, std: Tensor, lengths: Tensor, index: Tensor) -> Tensor:
        x, lengths = stacked(self.frontend.flat_over_time(features, mean, std), lengths, self.subsampling)
        x = self.dropout(self.input(x))
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # (N, T)
        chunk = self._chunk()
        seen = inside[:, None] if chunk is None else self._seen(inside, chunk)
        for block in self.blocks:
            x = block(x, inside, seen, chunk)
        scores: Tensor = self.output(x.flatten(0, 1).index_select(0, index))
        return scores

    def streamed(self, mean: Tensor, std: Tensor) -> Streamed | None:
        return None if self.config.attention_chunk is None else _StreamedChunks(self, mean, std)

    def in_chunks(self, frames: int) -> AcousticNetwork:
        """Return the network with the same parameters, evaluated in chunks of `frames` frames; attention sees as much
        of the past as before, rounded up to whole chunks.

        Raises:
            UserError: the network was trained on chunks of one size, or on none; `frames` is no multiple of
                `subsampling`.
        """
        if not self.config.dynamic_chunks:
            return super().in_chunks(frames)
        before = self.config.rows_before * self.subsampling
        config = replace(self.config, attention_chunk=frames, left_chunks=-(-before // frames), dynamic_chunks=False)
        other = Conformer(config, self.frontend.parts, self.columns)
        other.load_state_dict(self.state_dict())
        other.any_chunk = True
        return other.train(self.training)

    def going_on(self, x: Tensor, pasts: Sequence["Past"], seen: Tensor | None = None) -> Tensor:
        """Return scores (L, S) of the chunk (1, L, I), or of the rest of an utterance, after the frames that `pasts`
        hold, one for each block; they then hold this chunk too.

        Args:
            seen: (1, 1, 1, rows before + L), True for rows that exist; None: all do.
        """
        x = self.dropout(self.input(x))
        for block, past in zip(self.blocks, pasts, strict=True):
            assert isinstance(block, _Block)
            x = block.going_on(x, past, seen)
        scores: Tensor = self.output(x[0])
        return scores

    def _chunk(self) -> int | None:
        """Return L, the rows of a chunk, for this call; None: whole sequences."""
        if not self.config.dynamic_chunks:
            return self.config.rows
        if not self.training:
            return None
        whole, share = torch.rand(2).tolist()
        return None if whole < 0.5 else 1 + int(share * max(1, LONGEST_DRAWN // self.subsampling))

    def _seen(self, inside: Tensor, chunk: int) -> Tensor:
        """Return the mask (N, T, T) of the rows that attention sees from each row, itself always."""
        rows = torch.arange(inside.shape[1], device=inside.device)
        number = rows // chunk
        behind = number[:, None] - number
        near = (behind >= 0) & (behind <= -(-self.config.rows_before // chunk))
        return (near & inside[:, None]) | (rows[:, None] == rows)


@final
@dataclass(eq=False)
class Past:
    """Everything of earlier chunks that one block needs for later ones."""

    rows: int | Tensor  # that came before
    # keys, values: (1, heads, rows that attention sees, D / heads) each.
    keys: Tensor
    values: Tensor
    near: Tensor  # (1, half a kernel, D), inputs of the convolution

    @classmethod
    def none(cls, config: ConformerConfig) -> "Past":
        """Return the past before the first chunk."""
        none = torch.zeros((1, config.heads, 0, config.width // config.heads))
        return cls(0, none, none, torch.zeros((1, config.kernel // 2, config.width)))


@final
class _StreamedChunks(Streamed):
    """An evaluation of one utterance chunk by chunk."""

    def __init__(self, network: Conformer, mean: Tensor, std: Tensor) -> None:
        assert network.config.attention_chunk is not None
        least = network.subsampling if network.any_chunk else None
        super().__init__(network.reach, network.config.attention_chunk, network.columns, least)
        self._network, self._mean, self._std = network, mean[None], std[None]
        self._pasts = [Past.none(network.config) for _ in network.blocks]

    def _scores(self, features: Tensor, chunk: int) -> Tensor:
        x = self._network.frontend.flat_over_time(features[None], self._mean, self._std)
        found = []
        for some in torch.split(x, chunk, 1):
            rows, _ = stacked(some, torch.tensor([some.shape[1]]), self._network.subsampling)
            found.append(self._network.going_on(rows, self._pasts))
        return torch.cat(found)


class _Block(nn.Module):
    """One Conformer block, (N, T, D) -> (N, T, D)."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.first, self.last = _feed_forward(config), _feed_forward(config)
        self.attention, self.convolution = _Attention(config), _Convolution(config)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, inside: Tensor, seen: Tensor, chunk: int | None) -> Tensor:
        x = x + 0.5 * self.first(x)
        x = x + self.attention(x, seen)
        x = x + self.convolution(x, inside, chunk)
        x = x + 0.5 * self.last(x)
        normal: Tensor = self.norm(x)
        return normal

    def going_on(self, x: Tensor, past: Past, seen: Tensor | None) -> Tensor:
        """Return the block's output for the next chunk (1, L, D), after `past`, which then has this chunk too."""
        x = x + 0.5 * self.first(x)
        x = x + self.attention.going_on(x, past, seen)
        x = x + self.convolution.going_on(x, past)
        x = x + 0.5 * self.last(x)
        past.rows = past.rows + x.shape[1]
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
    """Self-attention of every frame over the frames of its sequence that it may see.

    Args:
        config: configuration of the network.
    """

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.heads, self.before = config.heads, config.rows_before
        self.norm = nn.LayerNorm(config.width)
        self.inputs, self.output = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        query, key, value = self._parts(x, 0)
        return self._found(query, key, value, seen[:, None])

    def going_on(self, x: Tensor, past: Past, seen: Tensor | None) -> Tensor:
        """Return the attention's output for the next chunk (1, L, D), after `past`, which then has this chunk too."""
        query, key, value = self._parts(x, past.rows)
        keys, values = torch.cat([past.keys, key], 2), torch.cat([past.values, value], 2)
        forgotten = max(0, keys.shape[2] - self.before)
        past.keys, past.values = keys[:, :, forgotten:], values[:, :, forgotten:]
        return self._found(query, keys, values, seen)

    def _parts(self, x: Tensor, before: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values (N, heads, T, D / heads) of rows after `before` others."""
        sequences, longest, width = x.shape
        heads = self.inputs(self.norm(x)).view(sequences, longest, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        query = rotated(query, before)
        return query, rotated(key, before), value.to(query.dtype)

    def _found(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> Tensor:
        heard = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        found: Tensor = self.dropout(self.output(heard.transpose(1, 2).flatten(2)))
        return found


class _Convolution(nn.Module):
    """A convolution over each frame's neighbourhood, feature by feature; beyond the sequence, and behind a chunk, are
    zeros."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        width = config.width
        self.norm, self.gated = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, config.kernel, padding=config.kernel // 2, groups=width)
        self.after, self.output, self.dropout = nn.LayerNorm(width), nn.Linear(width, width), nn.Dropout(config.dropout)
        self.side = config.kernel // 2

    def forward(self, x: Tensor, inside: Tensor, chunk: int | None) -> Tensor:
        gated = nn.functional.glu(self.gated(self.norm(x)), 2).masked_fill(~inside[:, :, None], 0.0)
        if chunk is None:
            return self._found(self.depthwise(gated.transpose(1, 2)).transpose(1, 2))
        sequences, rows, width = gated.shape
        chunks = rows // chunk + 1  # rounded up, with an empty one where they fit: torch.export can reason about that
        padded = nn.functional.pad(gated, (0, 0, self.side, chunks * chunk - rows))
        first = torch.arange(chunks, device=x.device)[:, None] * chunk
        some = padded[:, first + torch.arange(self.side + chunk, device=x.device)]  # (N, C, half + L, D)
        near = self._inside(some.flatten(0, 1).transpose(1, 2)).transpose(1, 2)
        return self._found(near.reshape(sequences, -1, width)[:, :rows])

    def going_on(self, x: Tensor, past: Past) -> Tensor:
        """Return the convolution's output for the next chunk (1, L, D), after `past`, which then has this chunk too."""
        gated = torch.cat([past.near, nn.functional.glu(self.gated(self.norm(x)), 2)], 1)
        past.near = gated[:, x.shape[1] :]
        return self._found(self._inside(gated.transpose(1, 2)).transpose(1, 2))

    def _inside(self, some: Tensor) -> Tensor:
        """Convolve chunks with half a kernel of frames before them, (C, D, half + L) -> (C, D, L)."""
        weight, bias = self.depthwise.weight, self.depthwise.bias
        return nn.functional.conv1d(nn.functional.pad(some, (0, self.side)), weight, bias, groups=some.shape[1])

    def _found(self, near: Tensor) -> Tensor:
        found: Tensor = self.dropout(self.output(nn.functional.silu(self.after(near))))
        return found


def rotated(x: Tensor, before: int | Tensor = 0) -> Tensor:
    """Rotate queries or keys (N, heads, T, d): pairs of their elements are turned by an angle that grows with time, so
    that products depend on the distance of two frames alone. Angles are d / 2 geometric steps from 1 to 1 / 10,000 a
    frame; the first row is number `before`."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32) / half
    time = torch.arange(x.shape[2], device=x.device, dtype=torch.float32) + before
    angle = time[:, None] * 1e4**-steps
    a, b = x.float().chunk(2, -1)
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1).to(x.dtype)
