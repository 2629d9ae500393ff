"""The few largest elements of every block of 4,096, in two bits each, with their places.

    q = Q(top-k(s))     k = density W of the W elements of a block; all others are 0     |s_i - q_i| <= max |s|

algorithms/sparsification.py derives it and names its source, SparseLoCo. Most of a vector is not sent, so a memory is a
must, and the vector has to be a change: a model that is sent again and again would pile up in the memory.

Sent, of a block of W elements with K kept: four values of 4 bytes and ceil(K / 4) bytes of which element has which, or
without `two_bits` K values of 4 bytes; then the places, 12 bits each, two of them in three bytes. Where all of that is
not less than 4 W bytes, the block goes as it is, with its zeros. With K = 0.03 W that is 233 bytes instead of 16,384.

Legend: C elements of a chunk, B blocks, W elements of one, K kept of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from roundelay.algorithms.sparsification import SPARSE_BLOCK, kept_of, largest, numbered
from roundelay.core.codec import Codec

_TABLE = 16  # bytes of four values


@dataclass(frozen=True)
class Sparse(Codec):
    """Codec of the largest elements of each block: their places, and their values in two bits each.

    Raises:
        ValueError: the density is no share.
    """

    density: float = 0.03
    two_bits: bool = True

    name: ClassVar[str] = "sparse"
    error: ClassVar[float] = 1.0
    block: ClassVar[int] = SPARSE_BLOCK

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"density is {self.density}: the share of elements that is sent is above 0, up to 1")

    def bytes_of(self, elements: int) -> int:
        whole, rest = divmod(elements, SPARSE_BLOCK)
        return whole * self._bytes(SPARSE_BLOCK) + (self._bytes(rest) if rest else 0)

    def _values(self, width: int) -> int:
        """Return the bytes that the values of a block of `width` elements take."""
        kept = kept_of(width, self.density)
        return _TABLE + -(-kept // 4) if self.two_bits else 4 * kept

    def _bytes(self, width: int) -> int:
        """Return the bytes that a block of `width` elements takes."""
        return min(4 * width, self._values(width) + 3 * -(-kept_of(width, self.density) // 2))

    def encode(self, x: Tensor, coded: Tensor) -> None:
        for block, room in self._blocks(x, coded):
            width = block.shape[1]
            places, values = largest(block, kept_of(width, self.density), self.two_bits)
            if room.shape[1] == 4 * width:
                room.copy_(torch.zeros_like(block).scatter_(1, places, values).view(torch.uint8))
                continue
            head = self._values(width)
            if self.two_bits:
                table, which = numbered(values)
                room[:, :_TABLE] = table.view(torch.uint8)
                room[:, _TABLE:head] = _four_in_a_byte(which)
            else:
                room[:, :head] = values.contiguous().view(torch.uint8)
            room[:, head:] = _two_in_three_bytes(places)

    def decode(self, coded: Tensor, x: Tensor) -> None:
        for block, room in self._blocks(x, coded):
            width = block.shape[1]
            if room.shape[1] == 4 * width:
                block.copy_(_floats(room))
                continue
            head, kept = self._values(width), kept_of(width, self.density)
            if self.two_bits:
                values = _floats(room[:, :_TABLE]).gather(1, _each_of_four(room[:, _TABLE:head], kept))
            else:
                values = _floats(room[:, :head])
            places = _each_of_two(room[:, head:], kept).clamp_(max=width - 1)  # a sender's may be any
            block.zero_().scatter_(1, places, values)

    def _blocks(self, x: Tensor, coded: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of `x` (C,) and `coded`: all whole blocks, (B, W) and their bytes, (B, bytes of one); and the
        rest, (1, W) and its bytes."""
        first = 0
        whole = len(x) // SPARSE_BLOCK * SPARSE_BLOCK
        for part, width in ((x[:whole], SPARSE_BLOCK), (x[whole:], len(x) - whole)):
            if part.numel():
                block = part.view(-1, width)
                stop = first + len(block) * self._bytes(width)
                yield block, coded[first:stop].view(len(block), -1)
                first = stop


def _floats(room: Tensor) -> Tensor:
    """Return the float32 (B, n) that the bytes `room` (B, 4 n) hold, at any alignment."""
    return room.clone(memory_format=torch.contiguous_format).view(torch.float32)


def _two_in_three_bytes(places: Tensor) -> Tensor:
    """Pack places (B, K) of 12 bits, two in three bytes: (B, 3 ceil(K / 2))."""
    pairs = pad(places, (0, places.shape[1] % 2))
    first, second = pairs[:, ::2], pairs[:, 1::2]
    parts = first & 255, first >> 8 | (second & 15) << 4, second >> 4
    return torch.stack(parts, 2).flatten(1).to(torch.uint8)


def _each_of_two(room: Tensor, number: int) -> Tensor:
    """Return the K = `number` places (B, K) packed in `room`: the inverse of `_two_in_three_bytes`."""
    low, middle, high = room.long().reshape(len(room), room.shape[1] // 3, 3).unbind(2)
    return torch.stack((low | (middle & 15) << 8, middle >> 4 | high << 4), 2).flatten(1)[:, :number]


def _four_in_a_byte(numbers: Tensor) -> Tensor:
    """Pack numbers (B, K) from 0 to 3, four in a byte: (B, ceil(K / 4))."""
    fours = pad(numbers, (0, -numbers.shape[1] % 4))
    fours = fours.reshape(len(fours), fours.shape[1] // 4, 4)
    return (fours << _shifts(numbers)).sum(2).to(torch.uint8)


def _each_of_four(room: Tensor, number: int) -> Tensor:
    """Return the K = `number` numbers (B, K) packed in `room`: the inverse of `_four_in_a_byte`."""
    return (room.long()[:, :, None] >> _shifts(room) & 3).flatten(1)[:, :number]


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(0, 8, 2, device=like.device)
