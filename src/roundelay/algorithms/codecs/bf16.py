"""bfloat16: half of the bytes.

    q = round(s)     to eight significant bits, to nearest even: |s - q| <= 2^-8 |s|, the range of float32 kept

Source: the format is that of Kalamkar et al. 2019, arXiv 1905.12322. Sent: 2 bytes an element.

Legend: C elements of a chunk.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from roundelay.core.codec import Cast


@dataclass(frozen=True)
class Bf16(Cast):
    """Codec of 2 bytes an element: the upper half of every float32, rounded."""

    name: ClassVar[str] = "bf16"
    error: ClassVar[float] = 2.0**-8
    form: ClassVar[torch.dtype] = torch.bfloat16
