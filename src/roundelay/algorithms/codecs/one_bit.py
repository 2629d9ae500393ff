"""One bit an element, and two values for every block of 1,024: a thirtieth of the bytes (Seide, Fu, Droppo, Li and Yu
2014, "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech DNNs").

Of a block s_1 ... s_b:

    q_i = mean of all s_j >= 0     if s_i >= 0          |s_i - q_i| <= max |s|
    q_i = mean of all s_j < 0      else

The two values are those with the least squared error for the threshold 0. Most of a vector is lost, so a memory is a
must (error feedback, which the paper introduced; core/codec.py).

Source: the abstract, and CNTK's code of the same authors (`ColumnQuantizer.h` with a threshold at 0); the equations of
the paper's own text were not read. Where we differ: blocks are runs of the row, there the columns of each matrix; the
two values are in bfloat16, there floats.

Means are taken in float64 and cut to eight bits: that of n equal numbers of so many bits is exactly that number, so to
code a decoded vector changes nothing. An infinity or NaN makes the value of its side one.

Sent, of C elements: ceil(C / 1024) pairs of 2 + 2 bytes, then ceil(C / 8) bytes: element i is bit i div ceil(C / 8) of
byte i mod ceil(C / 8), 1 below zero.

Legend: C elements of a chunk, B bytes of a coded one, n blocks.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.algorithms.codecs.blocks import BLOCK, blocks_of, scales_of
from roundelay.core.codec import Codec

_PAIR = 4  # bytes of two values
_UPPER_HALF = -65536  # a mask of a float32, which is the bfloat16


@dataclass(frozen=True)
class OneBit(Codec):
    """Codec of one bit an element, its sign, and two means a block."""

    name: ClassVar[str] = "1bit"
    error: ClassVar[float] = 1.0
    block: ClassVar[int] = BLOCK

    def bytes_of(self, elements: int) -> int:
        return _PAIR * scales_of(elements) + -(-elements // 8)

    def encode(self, x: Tensor, coded: Tensor) -> None:
        head, eighth = _PAIR * scales_of(len(x)), -(-len(x) // 8)
        below = torch.signbit(x)  # also of a zero that a tiny mean was cut to, which then stays on its side
        values, first = coded[:head].view(torch.bfloat16).view(-1, 2), 0
        for s, negative in zip(blocks_of(x), blocks_of(below), strict=True):
            means = values[first : first + len(s)]
            for side, members in enumerate((~negative, negative)):
                total = torch.where(members, s, 0.0).sum(1, dtype=torch.float64)
                mean = (total / members.sum(1).clamp_(min=1)).float()
                mean.view(torch.int32).bitwise_and_(_UPPER_HALF)  # towards zero: never beyond the largest
                means[:, side] = mean.abs_().neg_() if side else mean
            first += len(s)
        bits = coded[head:].zero_()
        for place in range(8):
            part = below[place * eighth : (place + 1) * eighth]
            bits[: len(part)].bitwise_or_(part.view(torch.uint8) << place)

    def decode(self, coded: Tensor, x: Tensor) -> None:
        head, eighth = _PAIR * scales_of(len(x)), -(-len(x) // 8)
        bits, below = coded[head:], torch.empty(len(x), dtype=torch.bool, device=x.device)
        for place in range(8):
            part = below[place * eighth : (place + 1) * eighth]
            part.copy_(bits[: len(part)] >> place & 1)
        values, first = coded[:head].view(torch.bfloat16).view(-1, 2).float(), 0
        for q, negative in zip(blocks_of(x), blocks_of(below), strict=True):
            means = values[first : first + len(q)]
            q.copy_(torch.where(negative, means[:, 1:], means[:, :1]))
            first += len(q)
