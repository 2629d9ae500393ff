"""Codecs: the form in which a vector travels. A codec turns a vector into bytes, and bytes into a vector.

A codec that leaves a part out does not lose it if it has a memory: the part is added to the next message (error
feedback; Seide et al. 2014, there for one bit; Karimireddy et al. 2019, arXiv 1901.09847):

    s = x + e                 e: the rest of earlier times, 0 at first
    q = decode(encode(s))     as it arrives
    e = s - q

After n times the sum of all q is the sum of all x up to one last rest: sum_n q = sum_n x - e_n.

The abstract class and the identity are here, since effects name them; the other codecs are in algorithms/codecs.

Legend: P parameters, C elements of a chunk, B numbers of a coded one.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.core.flat import CHUNK, chunks


@dataclass(frozen=True)
class Codec(ABC):
    """A form in which vectors travel. A codec has no state; its memory is a vector of the strategy's.

    `memory` is the name of the vector (P,), one of those that the strategy declares, in which a learner keeps the part
    this codec leaves out. Without a name that part is lost.
    """

    memory: str = ""

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    """True for the identity: the bytes sent are those in memory, and no part is left out."""
    error: ClassVar[float] = 0.0
    """Largest error of an element, as a share of the largest element of its block ..."""
    block: ClassVar[int] = 1
    """... which is a run of this many elements, counted from the beginning of a chunk; 1: the element itself."""
    form: ClassVar[torch.dtype] = torch.uint8
    """Type of the numbers of a coded chunk. Where a codec is one number an element, this spares it a view a chunk, of
    which a row has hundreds (1 % of the CPU time of a row between hosts in bf16)."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """The codec's options in the order of their declaration: with its name, all that another host must know."""
        return tuple(float(getattr(self, option.name)) for option in fields(self) if option.name != "memory")

    @abstractmethod
    def bytes_of(self, elements: int) -> int:
        """Return the exact size of a coded vector of `elements` elements. The size of a vector is the sum of its
        chunks' sizes, that of a whole chunk is a multiple of 8, and none is more than 4 above that of FP32."""

    @abstractmethod
    def encode(self, x: Tensor, coded: Tensor) -> None:
        """Write `x` (C,) float32, which is only read, into `coded` (B,) of type `form`.

        To code a decoded vector changes nothing: a vector that has arrived may travel on.
        """

    @abstractmethod
    def decode(self, coded: Tensor, x: Tensor) -> None:
        """Decode `coded` (B,) of type `form` into `x` (C,) float32."""

    def remember(self, x: Tensor, error: Tensor | None, coded: Tensor, arrived: Tensor) -> None:
        """Code `x` (C,), which is only read, with error feedback into `coded` (B,); `arrived` (C,) becomes the vector
        that the receiver gets, `error` (C,), where there is one, the new rest. `arrived` may be `x` itself.

        Numbers that are not finite leave no rest: else one infinity would be remembered for ever.
        """
        if self.exact or error is None:
            self.encode(x, coded)
            self.decode(coded, arrived)
            return
        error.add_(x)
        self.encode(error, coded)
        self.decode(coded, arrived)
        error.sub_(arrived)
        if not (error.is_cpu and math.isfinite(error.sum())):  # a third of the time of a needless mending
            error.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def send(self, x: Tensor, error: Tensor | None, arrived: Tensor) -> None:
        """Write `x` (P,) to `arrived` (P,) as the receiver gets it, chunk by chunk, as if it had travelled; `error`
        (P,), where there is one, becomes the new rest."""
        room = torch.empty(self._numbers(min(len(x), CHUNK)), dtype=self.form, device=x.device)
        for part in chunks(len(x)):
            coded = room[: self._numbers(part.stop - part.start)]
            self.remember(x[part], None if error is None else error[part], coded, arrived[part])

    def parts(self, coded: Tensor, elements: int) -> list[Tensor]:
        """Return views of the bytes `coded` (uint8) of a vector of `elements` elements: its chunks, (B,) of type
        `form`."""
        return list(torch.split(coded[: self.bytes_of(elements)].view(self.form), self._numbers(CHUNK)))

    def _numbers(self, elements: int) -> int:
        """Return B, the length of a coded chunk of `elements` elements."""
        return self.bytes_of(elements) // self.form.itemsize


class Cast(Codec):
    """A codec that casts every element to another type of number."""

    def bytes_of(self, elements: int) -> int:
        return self.form.itemsize * elements

    def encode(self, x: Tensor, coded: Tensor) -> None:
        coded.copy_(x)

    def decode(self, coded: Tensor, x: Tensor) -> None:
        x.copy_(coded)


@dataclass(frozen=True)
class Fp32(Cast):
    """The identity codec: 4 bytes an element, as in memory."""

    name: ClassVar[str] = "fp32"
    exact: ClassVar[bool] = True
    form: ClassVar[torch.dtype] = torch.float32


FP32: Codec = Fp32()
