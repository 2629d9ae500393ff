"""Coding: a learner's vector, or two rows that exchange, as others receive them by the codec of an effect.

Every runtime applies a codec here, when the vector is given, so all of them come to the same bits. A codec's memory is
one of the vectors that the strategy declares: it is in every checkpoint, and a replay finds it where the run had it.

Legend: P parameters, C elements of a chunk.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from roundelay.core.codec import Codec
from roundelay.core.effects import Exchange
from roundelay.core.flat import WHOLE, VectorFragment


def arrived(
    codec: Codec, vector: Tensor, weight: float, memory: Mapping[str, Tensor], fragment: VectorFragment = WHOLE
) -> Tensor:
    """Return the vector (P,) that others receive of `vector` (P,): itself by an exact codec, else another. With weight
    0 nothing is sent, and nothing is remembered.

    Args:
        memory: the learner's vectors by name; that of the codec is changed.
        fragment: the part of a vector (P,) that `vector` (n,) is; the same part of the codec's memory is changed.
    """
    if codec.exact or not weight or not vector.numel():
        return vector
    found = torch.empty_like(vector)
    rest = memory_of(codec, memory)
    codec.send(vector, None if rest is None else rest[fragment.within(len(rest))], found)
    return found


def memory_of(codec: Codec, memory: Mapping[str, Tensor]) -> Tensor | None:
    """Return the vector (P,) in `memory` that keeps what the codec leaves out; None for a codec without one, and for
    the centre.

    Raises:
        ValueError: the strategy has declared vectors, but none of this name.
    """
    if codec.exact or not codec.memory or not memory:
        return None
    if codec.memory not in memory:
        raise ValueError(
            f"the memory of codec {codec.name} is {codec.memory!r}, which is none of the strategy's vectors: "
            f"{', '.join(memory)}"
        )
    return memory[codec.memory]


class CodedRule:
    """The rule of an exchange with a codec, for a chunk of each row and of each row's rest. Each row may be on a device
    of its own; the rule works where mine is.

    Raises:
        ValueError: the exchange has private vectors or an age, which go with rows in full precision.
    """

    def __init__(self, request: Exchange, rule: Callable[..., None]) -> None:
        if request.private or request.theirs or request.since is not None or request.fragment != WHOLE:
            raise ValueError(f"an exchange by codec {request.codec.name} takes no private vectors, age or fragment")
        self._codec, self._rule = request.codec, rule

    def apply(self, mine: Tensor, theirs: Tensor, my_error: Tensor | None, their_error: Tensor | None) -> None:
        """Apply the rule in place to both chunks (C,), and to the part that the codec left out of each."""
        m, t_there = torch.empty_like(mine), torch.empty_like(theirs)
        self._codec.send(mine, my_error, m)
        self._codec.send(theirs, their_error, t_there)
        t = t_there.to(mine.device)
        m_before, t_before = m.clone(), t.clone()
        self._rule(m, t)
        mine.add_(m.sub_(m_before))
        theirs.add_(t.sub_(t_before).to(theirs.device))
