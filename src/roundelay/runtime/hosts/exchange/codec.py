"""What is carried between two hosts for an exchange, and the arithmetic at both ends.

Of the row m that travels and the row t that it visits, both ends get the same vectors m^ and t^: what was carried of
them. Both apply the rule to these, and each changes its own row by what the rule changes of its own:

    m <- m + rule_m(m^, t^) - m^           t <- t + rule_t(m^, t^) - t^

In full precision t^ is t itself, under its lock; m^ is m as it was sent, and m may have moved on since. A rule that
keeps the sum of the two keeps it here, whatever m^ and t^ are: that is why rounding them does no harm to it.

In 16 bits m^ and t^ are rounded with error feedback (algorithms/rounding.py), of which each row has two memories: one
for when it travels and one for when it is visited. A rule's first row is that of the learner that asked for the
exchange, whether it travels or is visited (`swapped`).

A fragment is a run of whole chunks; the fragments of a row take turns. Both are for rules of nothing but the two rows:
private vectors and ages belong to whole rows in full precision.

Legend: P parameters, C elements of a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from roundelay.algorithms.rounding import round_with_feedback_
from roundelay.core.effects import Rule
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK
from roundelay.runtime.learner_state import Row

Precision = Literal["fp32", "bf16"]
WIDTH: dict[str, int] = {"fp32": 4, "bf16": 2}
"""Bytes of a parameter on the wire."""


@dataclass(frozen=True)
class RowFormat:
    """How rows are carried between hosts: in what precision, and in how many exchanges a row is through."""

    wire: Precision = "fp32"
    fragments: int = 1

    def __post_init__(self) -> None:
        if self.wire not in get_args(Precision):
            raise UserError(f"--wire {self.wire}: choose one of {', '.join(get_args(Precision))}.")
        if self.fragments < 1:
            raise UserError(f"--fragments {self.fragments}: at least one is needed, which is the whole row.")

    def fragment(self, parameters: int, turn: int) -> "Fragment":
        """The chunks that exchange number `turn` carries. Every cycle through the row begins one fragment further on,
        so that no fragment always meets the same neighbour."""
        count = -(-parameters // CHUNK)
        parts = max(1, min(self.fragments, count))
        part = (turn + turn // parts) % parts
        return Fragment(count * part // parts, count * (part + 1) // parts, parameters)


@dataclass(frozen=True)
class Fragment:
    """A run of whole chunks of a vector (P,)."""

    first: int
    stop: int
    parameters: int

    @classmethod
    def whole(cls, parameters: int) -> "Fragment":
        """All of it."""
        return cls(0, -(-parameters // CHUNK), parameters)

    @property
    def elements(self) -> slice:
        """Where it lies in the vector."""
        return slice(self.first * CHUNK, min(self.parameters, self.stop * CHUNK))

    @property
    def size(self) -> int:
        """How many elements it has."""
        return min(self.parameters, self.stop * CHUNK) - self.first * CHUNK

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Its chunks, (C,) each, of a vector (P,)."""
        return list(torch.split(vector[self.elements], CHUNK))


class Buffer:
    """Room for one span of a row, in either precision: (P,) float32, or its first half as bfloat16. Pages that are
    never used cost nothing."""

    def __init__(self, parameters: int, vectors: int = 1) -> None:
        self.bytes = torch.empty(4 * parameters * vectors, dtype=torch.uint8)
        lying: Any = self.bytes.numpy()
        self.view = memoryview(lying)

    def filled(self, size: int, wire: str) -> memoryview:
        """The part that `size` elements take."""
        return self.view[: size * WIDTH[wire]]

    def parts(self, size: int, wire: str, at: int = 0) -> list[Tensor]:
        """Chunks (C,) of `size` elements, `at` so many elements from the beginning."""
        kind = torch.float32 if wire == "fp32" else torch.bfloat16
        start = at * WIDTH[wire]
        lying = self.bytes[start : start + size * WIDTH[wire]].view(kind)
        return list(torch.split(lying, CHUNK))


class Scratch:
    """A few chunks that stay in cache. One thread's."""

    def __init__(self) -> None:
        self.vectors = torch.empty(3, CHUNK)

    def take(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Three of them, (size,) each."""
        a, b, c = self.vectors[:, :size]
        return a, b, c


def swapped(rule: Rule) -> Rule:
    """The same rule for an exchange whose asker's row is the one that is visited: its two rows change places."""

    def applied(theirs: Tensor, mine: Tensor) -> None:
        rule(mine, theirs)

    return applied


def encode(row: Row, fragment: Fragment, wire: str, hold: Buffer, error: Tensor | None, scratch: Scratch) -> None:
    """Under the lock: write `fragment` of the row to `hold`; in bf16 with `error` (P,) feedback."""
    lying = hold.parts(fragment.size, wire)
    if wire == "fp32":
        for x, out in zip(fragment.parts(row.vector), lying, strict=True):
            out.copy_(x)
        return
    assert error is not None
    for x, e, out in zip(fragment.parts(row.vector), fragment.parts(error), lying, strict=True):
        round_with_feedback_(x, e, out, scratch.take(len(x))[0])


def apply_remote(
    row: Row,
    fragment: Fragment,
    wire: str,
    hold: Buffer,
    error: Tensor | None,
    scratch: Scratch,
    rule: Rule,
    private: int,
) -> None:
    """Under the lock, a mutation begun: the server's half. `hold` has what came, m^ and so many private vectors, one
    after the other; t^ takes the place of m^."""
    mine = hold.parts(fragment.size, wire)
    vectors = [hold.parts(fragment.size, "fp32", fragment.size * (1 + number)) for number in range(private)]
    errors = fragment.parts(error) if error is not None else []
    for number, (m, t) in enumerate(zip(mine, fragment.parts(row.vector), strict=True)):
        theirs, before, after = scratch.take(len(t))
        if wire == "fp32":
            theirs.copy_(t)
            rule(m, t, *(vector[number] for vector in vectors))
            m.copy_(theirs)
        else:
            before.copy_(m)
            round_with_feedback_(t, errors[number], m, theirs)
            rule(before, after.copy_(theirs))
            t.add_(after.sub_(theirs))


def apply_reply(
    row: Row,
    fragment: Fragment,
    wire: str,
    sent: Buffer,
    found: Buffer,
    scratch: Scratch,
    rule: Rule,
    private: Sequence[Tensor],
    untouched: bool,
) -> None:
    """Under the lock, a mutation begun: the client's half. `sent` has m^, `found` t^; `private` are (P,). If the row is
    `untouched` since it was sent, it takes the rule's result as it is."""
    lying = zip(sent.parts(fragment.size, wire), found.parts(fragment.size, wire), strict=True)
    vectors = [fragment.parts(vector) for vector in private]
    rows = fragment.parts(row.vector)
    for number, (m, t) in enumerate(lying):
        own, x = [vector[number] for vector in vectors], rows[number]
        if wire == "fp32" and untouched:
            rule(x, t, *own)
        else:
            before, after, theirs = scratch.take(len(x))
            rule(after.copy_(before.copy_(m)), theirs.copy_(t), *own)
            x.add_(after.sub_(before))
