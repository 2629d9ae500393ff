"""Payloads of exchanges between two hosts, and the arithmetic at both ends.

Of the row m that travels and the row t that it visits, both ends get the same vectors m^ and t^: the two rows as
carried. Both apply the rule to these, and each adds the rule's change of its own row to that row:

    m <- m + rule_m(m^, t^) - m^           t <- t + rule_t(m^, t^) - t^

In full precision t^ is t itself, under its lock; m^ is m as it was sent, and m may have moved on since. (Where both
travel at once, t^ is t as it was sent, and t may have moved on.) A rule that keeps the sum of the two keeps it here,
for any m^ and t^: that is why coding them does no harm to it.

By another codec than FP32 m^ and t^ are the rows as decoded. The part a codec leaves out is remembered (core/codec.py):
if the run chose the codec, in one of two memories that each row has, one for when it travels and one for when it is
visited; if the strategy did, in the vector it names. A rule's first row is that of the learner that asked for the
exchange, whether it travels or is visited (`swapped`).

A fragment is a run of whole chunks; the fragments of a row take turns. Both are for rules of nothing but the two rows:
private vectors and ages belong to whole rows in full precision.

Of a report (algorithms/rules.py) the difference d of the row and its private vector travels. The rule is applied at the
centre alone, to d in the place of the row and zeros in the place of the vector, with the vectors beside the centre;
where it leaves both as copies of the centre, that comes back.

Legend: P parameters, C elements of a chunk.

A mean with a row that was sent long ago mixes little: what both learners have done meanwhile is not in it. So an
exchange is to be short. A row that takes longer than `SHORT` seconds travels in as many fragments as make each exchange
take about so long; one that takes longer than `LONG` seconds travels by the smaller codec, so that each part of it is
mixed again soon (docs/exchanges.md).

Seconds are those from the request to the change of the asker's row: what other learners, other traffic and busy cores
make of a link counts as the link.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, Literal, final

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.codecs import CODECS
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Rule
from roundelay.core.flat import CHUNK, WHOLE, VectorFragment
from roundelay.runtime.hosts.options import AUTO, HostOptions
from roundelay.runtime.rows import Row


@dataclass(frozen=True)
class RowFormat:
    """The form of rows between hosts where the strategy does not say: the codec, and the number of exchanges in which
    a row is through; AUTO: by the speed of the link (`LinkForm`)."""

    wire: str = "fp32"
    fragments: int | Literal["auto"] = 1

    @classmethod
    def of(cls, options: HostOptions, paced: bool) -> "RowFormat":
        """Return the form of rows that the options of a run ask for; `paced`: no learner waits for exchanges, so the
        speed of the link may choose it."""
        if paced:
            return cls(options.wire, options.fragments)
        return cls(options.codec.name, 1 if options.fragments == AUTO else options.fragments)

    @property
    def codec(self) -> Codec:
        """Codec called `wire`."""
        return CODECS[self.wire]

    def said(self) -> str:
        """Return a sentence on it, for the beginning of a run; empty where a run has said both itself."""
        if AUTO not in (self.wire, self.fragments):
            return ""
        wire = "bf16, in int8 where a link is slow" if self.wire == AUTO else self.wire
        parts = "in as many parts as keep exchanges short" if self.fragments == AUTO else f"in {self.fragments} parts"
        return (
            f"rows between hosts go in {wire}, {parts}, by what each link is found to bear; `roundelay status` shows "
            "what that is"
        )

    def fragment(self, parameters: int, turn: int) -> "Fragment":
        """Return the chunks that exchange number `turn` carries. Every cycle through the row begins one fragment
        further on, so that no fragment always meets the same neighbour."""
        count = -(-parameters // CHUNK)
        parts = max(1, min(1 if self.fragments == AUTO else self.fragments, count))
        part = (turn + turn // parts) % parts
        return Fragment(count * part // parts, count * (part + 1) // parts, parameters)


@dataclass(frozen=True)
class Fragment:
    """A run of whole chunks of a vector (P,); or the `part` of it that the strategy has said."""

    first: int
    stop: int
    parameters: int
    part: VectorFragment = WHOLE

    @classmethod
    def whole(cls, parameters: int) -> "Fragment":
        """Return the fragment that is a whole row of so many `parameters`."""
        return cls(0, -(-parameters // CHUNK), parameters)

    @property
    def elements(self) -> slice:
        """Elements of the fragment, as a slice of the vector."""
        if self.part != WHOLE:
            return self.part.within(self.parameters)
        return slice(self.first * CHUNK, min(self.parameters, self.stop * CHUNK))

    @property
    def size(self) -> int:
        """Number of elements of the fragment."""
        elements = self.elements
        return int(elements.stop) - int(elements.start)

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Return the chunks of the fragment, (C,) each, as views of `vector` (P,)."""
        return list(torch.split(vector[self.elements], CHUNK))


def room(parameters: int, vectors: int = 1) -> int:
    """Return the bytes that so many `vectors` (P,) take at most, the first by any codec."""
    return FP32.bytes_of(parameters) * vectors + 4 * -(-parameters // CHUNK)  # the most that a codec may take


class Buffer:
    """Buffer with room for one fragment of a row by any codec, or for a row in full precision and private vectors
    behind it. Pages that are not used cost nothing."""

    def __init__(self, parameters: int, vectors: int = 1) -> None:
        lying: Any = np.empty(room(parameters, vectors), np.uint8)  # NumPy asks the kernel for large pages
        self.bytes, self.view = torch.from_numpy(lying), memoryview(lying)

    def filled(self, size: int, codec: Codec = FP32) -> memoryview:
        """Return the bytes of the buffer that `size` elements take when coded by `codec`."""
        return self.view[: codec.bytes_of(size)]

    def parts(self, size: int, codec: Codec) -> list[Tensor]:
        """Return the chunks of `size` elements, as coded by `codec`, as views of the buffer."""
        return codec.parts(self.bytes, size)

    def vectors(self, size: int, at: int = 0) -> list[Tensor]:
        """Return the chunks (C,) of `size` elements in full precision, as views from element `at` of the buffer."""
        lying = self.bytes[4 * at : 4 * (at + size)].view(torch.float32)
        return list(torch.split(lying, CHUNK))


class Scratch:
    """Scratch space of one thread: a few chunks, which stay in cache."""

    def __init__(self) -> None:
        self._chunks = torch.empty(3, CHUNK).unbind()

    def take(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return three vectors of scratch space, (size,) each."""
        a, b, c = self._chunks
        return (a, b, c) if size == CHUNK else (a[:size], b[:size], c[:size])


def swapped(rule: Rule) -> Rule:
    """Return the same rule for an exchange whose asker's row is the one that is visited: its two rows change places,
    and so do the vectors that both learners bring."""

    def applied(theirs: Tensor, mine: Tensor, *along: Tensor) -> None:
        each = len(along) // 2
        rule(mine, theirs, *along[each:], *along[:each])

    return applied


def encode(row: Row, fragment: Fragment, codec: Codec, hold: Buffer, error: Tensor | None, scratch: Scratch) -> None:
    """Write, under the lock, `fragment` of the row to `hold` by `codec`, with feedback of `error` (P,) if given."""
    if codec.exact:
        hold.bytes[: 4 * fragment.size].view(torch.float32).copy_(row.vector[fragment.elements])
        return
    errors = fragment.parts(error) if error is not None else repeat(None)
    for x, e, coded in zip(fragment.parts(row.vector), errors, hold.parts(fragment.size, codec), strict=False):
        codec.remember(x, e, coded, scratch.take(len(x))[0])


def encode_change(row: Row, private: Tensor, hold: Buffer) -> None:
    """Write the row minus the `private` vector (P,) to `hold`. Call it under the row's lock."""
    parameters = len(private)
    for x, p, out in zip(row.parts, torch.split(private, CHUNK), hold.vectors(parameters), strict=True):
        torch.sub(x, p, out=out)


def apply_report(row: Row, hold: Buffer, beside: Sequence[Tensor], scratch: Scratch, rule: Rule) -> None:
    """Apply, under the lock, a mutation begun, a report to the centre, which is `row`. `hold` has the change that came,
    and afterwards the other row as the rule leaves it; `beside` are the vectors (P,) beside the centre."""
    vectors = [torch.split(vector, CHUNK) for vector in beside]
    for number, (change, centre) in enumerate(zip(hold.vectors(len(row.vector)), row.parts, strict=True)):
        nothing, _, _ = scratch.take(len(centre))
        rule(change, centre, nothing.zero_(), *(vector[number] for vector in vectors))


def take_centre(row: Row, private: Tensor, sent: Buffer, found: Buffer, untouched: bool) -> None:
    """Set the row that has reported, and its `private` vector (P,), to the centre as it was `found`. Unless
    `untouched`, the row keeps its own moves since its change was `sent`. Call it under the lock, a mutation begun."""
    parameters = len(private)
    changes, centres = sent.vectors(parameters), found.vectors(parameters)
    for x, p, change, centre in zip(row.parts, torch.split(private, CHUNK), changes, centres, strict=True):
        if untouched:
            x.copy_(centre)
        else:
            x.sub_(p).sub_(change).add_(centre)
        p.copy_(centre)


def apply_remote(
    row: Row,
    fragment: Fragment,
    codec: Codec,
    hold: Buffer,
    error: Tensor | None,
    scratch: Scratch,
    rule: Rule,
    private: int,
) -> None:
    """Apply, under the lock, a mutation begun, the server's half of an exchange. `hold` has the payload: m^ and so many
    `private` vectors; t^ takes the place of m^. `error` (P,) remembers what the codec leaves out."""
    rows = fragment.parts(row.vector)
    if codec.exact:
        vectors = [hold.vectors(fragment.size, fragment.size * (1 + number)) for number in range(private)]
        for number, (m, t) in enumerate(zip(hold.vectors(fragment.size), rows, strict=True)):
            theirs, _, _ = scratch.take(len(t))
            theirs.copy_(t)
            rule(m, t, *(vector[number] for vector in vectors))
            m.copy_(theirs)
        return
    errors = fragment.parts(error) if error is not None else repeat(None)
    for coded, t, e in zip(hold.parts(fragment.size, codec), rows, errors, strict=False):
        theirs, before, after = scratch.take(len(t))
        codec.decode(coded, before)
        codec.remember(t, e, coded, theirs)
        rule(before, after.copy_(theirs))
        t.add_(after.sub_(theirs))


def apply_along(row: Row, along: Sequence[Tensor], hold: Buffer, rule: Rule) -> None:
    """Apply, under the lock, a mutation begun, the server's half of an exchange in which vectors `along` (P,) take
    part. `hold` has the other row and the vectors of its learner; this row and `along` take their places."""
    parameters = len(row.vector)
    came = [hold.vectors(parameters, number * parameters) for number in range(1 + len(along))]
    own = [row.parts, *(torch.split(vector, CHUNK) for vector in along)]
    for number in range(len(row.parts)):
        theirs, mine = [chunks[number] for chunks in came], [chunks[number] for chunks in own]
        before = [chunk.clone() for chunk in mine]
        rule(theirs[0], mine[0], *theirs[1:], *mine[1:])
        for place, chunk in zip(theirs, before, strict=True):
            place.copy_(chunk)


def apply_reply(
    row: Row,
    fragment: Fragment,
    codec: Codec,
    sent: Buffer,
    found: Buffer,
    scratch: Scratch,
    rule: Rule,
    private: Sequence[Tensor],
    untouched: bool,
    along: int = 0,
) -> None:
    """Apply the client's half of an exchange. Call it under the row's lock, with a mutation begun.

    Args:
        sent: has m^.
        found: has t^, and `along` vectors of the other learner.
        private: vectors (P,) that the rule takes, and those of this learner that went along.
        untouched: the row has not changed since it was sent: in full precision it becomes the rule's result itself.
    """
    vectors, rows, size = [fragment.parts(vector) for vector in private], fragment.parts(row.vector), fragment.size
    vectors += [found.vectors(size, (1 + number) * size) for number in range(along)]
    coded = zip(sent.parts(fragment.size, codec), found.parts(fragment.size, codec), strict=True)
    for number, (m, t) in enumerate(coded):
        own, x = [vector[number] for vector in vectors], rows[number]
        if codec.exact and untouched:
            rule(x, t, *own)
            continue
        before, after, theirs = scratch.take(len(x))
        codec.decode(m, before)
        codec.decode(t, theirs)
        rule(after.copy_(before), theirs, *own)
        x.add_(after.sub_(before))


SHORT: Final = 0.1
"""Seconds that an exchange may take before a row is cut."""
LONG: Final = 0.5
"""Seconds that a row may take, in all its fragments, by the larger codec."""
NEWEST: Final = 0.5
"""Weight of the last exchange in the seconds that a row takes."""
USUAL, SMALLER = "bf16", "int8"


@final
class LinkForm:
    """Form of rows in the exchanges of one learner with the learners of one other host.

    Args:
        row_format: the form that the run asks for.
        parameters: number of parameters of the row.
    """

    def __init__(self, row_format: RowFormat, parameters: int) -> None:
        self._cuts, self._codes = row_format.fragments == AUTO, row_format.wire == AUTO
        self._wire = USUAL if row_format.wire == AUTO else row_format.wire
        self._fragments = 1 if row_format.fragments == AUTO else row_format.fragments
        self._parameters, self._turn, self._seconds = parameters, 0, 0.0

    def next(self) -> tuple[Fragment, Codec]:
        """Return the fragment that travels next, and the codec by which it does."""
        form = RowFormat(self._wire, self._fragments)
        return form.fragment(self._parameters, self._turn), form.codec

    def said(self) -> str:
        """Return the form in words, with the seconds that an exchange has taken lately."""
        parts = "whole" if self._fragments == 1 else f"in {self._fragments} parts"
        took = f", {self._seconds / self._fragments:.2g} s an exchange" if self._seconds else ""
        return f"{self._wire}, {parts}{took}"

    def took(self, seconds: float) -> None:
        """Note that the exchange of the fragment that `next` returned has been made, in `seconds`."""
        self._turn += 1
        seconds *= self._fragments  # of the whole row
        self._seconds += (NEWEST if self._seconds else 1.0) * (seconds - self._seconds)
        if self._codes and self._wire == USUAL and self._seconds > LONG:
            self._wire, self._seconds = SMALLER, self._seconds / 2
        elif self._codes and self._wire == SMALLER and self._seconds < LONG / 4:
            self._wire, self._seconds = USUAL, self._seconds * 2
        if self._cuts:
            most = max(1, self._parameters // CHUNK)
            while self._seconds > SHORT * self._fragments and 2 * self._fragments <= most:
                self._fragments *= 2
            if self._seconds < SHORT * self._fragments / 4 and self._fragments > 1:
                self._fragments //= 2


SETTLED: Final = 60
"""Exchanges after which a form has settled on a link that stays as it is."""


def settled(row_format: RowFormat, parameters: int, seconds_of: Callable[[int], float]) -> LinkForm:
    """Return the form that rows of so many `parameters` come to have on a link.

    Args:
        seconds_of: returns the seconds that an exchange takes, given the bytes that go each way.
    """
    form = LinkForm(row_format, parameters)
    for _ in range(SETTLED):
        fragment, codec = form.next()
        form.took(seconds_of(codec.bytes_of(fragment.size)))
    return form
