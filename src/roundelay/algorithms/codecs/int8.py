"""Eight bits an element, and a scale for every block of 1,024: a quarter of the bytes.

    q_i = k_i d,  -127 <= k_i <= 127,  d = max |s| / 127 of the block     |s_i - q_i| <= max |s| / 254

blocks.py derives it and names its sources. Sent, of C elements: ceil(C / 1024) scales of 4 bytes, then C numbers.

Legend: C elements of a chunk, B bytes of a coded one.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.algorithms.codecs.blocks import BLOCK, quantise, restore, scales_of
from roundelay.core.codec import Codec

LARGEST = 127


@dataclass(frozen=True)
class Int8(Codec):
    """Codec of one byte an element, and a scale a block."""

    name: ClassVar[str] = "int8"
    error: ClassVar[float] = 1 / (2 * LARGEST)
    block: ClassVar[int] = BLOCK

    def bytes_of(self, elements: int) -> int:
        return 4 * scales_of(elements) + elements

    def encode(self, x: Tensor, coded: Tensor) -> None:
        head = 4 * scales_of(len(x))
        quantise(x, LARGEST, coded[:head].view(torch.float32), coded[head:].view(torch.int8))

    def decode(self, coded: Tensor, x: Tensor) -> None:
        head = 4 * scales_of(len(x))
        restore(coded[:head].view(torch.float32), coded[head:].view(torch.int8), x)
