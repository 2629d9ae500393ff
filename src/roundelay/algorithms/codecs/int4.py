"""Four bits an element, two of them in a byte, and a scale for every block of 1,024: an eighth of the bytes.

    q_i = k_i d,  -7 <= k_i <= 7,  d = max |s| / 7 of the block     |s_i - q_i| <= max |s| / 14

blocks.py derives it and names its sources; four bits for learners' changes after many local steps are those of
Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512; there a float of four bits, and no rest is remembered). Sent,
of C elements: ceil(C / 1024) scales of 4 bytes, then ceil(C / 2) bytes: number i, of the first half, in the lower four
bits, number i + ceil(C / 2) in the upper ones.

Legend: C elements of a chunk, B bytes of a coded one.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.algorithms.codecs.blocks import BLOCK, quantise, restore, scales_of
from roundelay.core.codec import Codec

LARGEST = 7
_LOW, _SIGN = 15, 8


@dataclass(frozen=True)
class Int4(Codec):
    """Codec of half a byte an element, and a scale a block."""

    name: ClassVar[str] = "int4"
    error: ClassVar[float] = 1 / (2 * LARGEST)
    block: ClassVar[int] = BLOCK

    def bytes_of(self, elements: int) -> int:
        return 4 * scales_of(elements) + -(-elements // 2)

    def encode(self, x: Tensor, coded: Tensor) -> None:
        head, half = 4 * scales_of(len(x)), -(-len(x) // 2)
        numbers = torch.empty(len(x), dtype=torch.int8, device=x.device)
        quantise(x, LARGEST, coded[:head].view(torch.float32), numbers)
        bits, pairs = numbers.view(torch.uint8), coded[head:]
        torch.bitwise_and(bits[:half], _LOW, out=pairs)
        pairs[: len(x) - half].bitwise_or_(bits[half:] << 4)

    def decode(self, coded: Tensor, x: Tensor) -> None:
        head, half = 4 * scales_of(len(x)), -(-len(x) // 2)
        pairs, bits = coded[head:], torch.empty(len(x), dtype=torch.uint8, device=x.device)
        torch.bitwise_and(pairs, _LOW, out=bits[:half])
        torch.bitwise_right_shift(pairs[: len(x) - half], 4, out=bits[half:])
        numbers = bits.view(torch.int8).bitwise_xor_(_SIGN).sub_(_SIGN)  # from four bits, two's complement, to eight
        restore(coded[:head].view(torch.float32), numbers, x)
