"""Vectors in the form in which they travel between hosts: coded, and as bytes.

Legend: P parameters.
"""

from typing import Any

import torch
from torch import Tensor

from roundelay.core.codec import Codec
from roundelay.core.flat import CHUNK


def as_bytes(vector: Tensor) -> Any:
    """Return the bytes as they lie in memory."""
    return vector.view(torch.uint8).numpy()


def encoded(codec: Codec, vector: Tensor) -> Tensor:
    """Return a vector (P,) that has been decoded before, as bytes."""
    coded = torch.empty(codec.bytes_of(len(vector)), dtype=torch.uint8)
    for x, out in zip(torch.split(vector, CHUNK), codec.parts(coded, len(vector)), strict=True):
        codec.encode(x, out)
    return coded


def decode(codec: Codec, coded: Tensor, vector: Tensor) -> None:
    """Decode what has come into `vector`; a vector that goes as it is, is there already."""
    if not codec.exact:
        for x, part in zip(torch.split(vector, CHUNK), codec.parts(coded, len(vector)), strict=True):
            codec.decode(part, x)
