"""Phones as hidden Markov models, and which of their states share a distribution.

Every phone is three emitting states from left to right, each with a loop to itself and an arc to the next. Silence may
have another number of them; with more than three, the first is followed by one or more of those between, in order, any
of which may be left out, and by the last: room for several kinds of noise, and still no longer than three frames. All
transitions cost nothing: at the acoustic scales that decoding needs, transition probabilities move no word.
A phone is known by its id, 1 to P (silence is 1; 0 stands for the edge of an utterance), its state by 0, 1, 2 (or
more in silence), a distribution by its pdf id, 0 to S - 1.

Legend: P phones, S pdfs, W states of the phone that has most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roundelay_speech.data.arrays import Int32, Ints

STATES = 3
SILENCE = 1
EDGE = 0

PhoneState = tuple[int, int, int]
"""(phone id, state, pdf id): the target of a frame's alignment."""


@dataclass(frozen=True, eq=False)
class Tying:
    """A tying: the pdf of each state of a phone between its neighbours, `table[left, phone, right, state]`."""

    phones: tuple[str, ...]  # the P phones in the order of their ids, silence first
    context: int  # 1 monophones (neighbours ignored), 2 left biphones (the right one ignored), 3 triphones
    num_pdfs: int
    # (P + 1, P + 1, P + 1, W); -1 for phone 0, which is never one's own, and for states that a phone has not.
    table: Int32

    @property
    def width(self) -> int:
        """W, the most states of a phone."""
        return int(self.table.shape[3])

    def states(self, phone: int) -> int:
        """Return the number of states of a phone."""
        return int((self.table[EDGE, phone, EDGE] >= 0).sum())

    def pdf(self, left: int, phone: int, right: int, state: int) -> int:
        """Return the pdf of one state between its neighbours."""
        return int(self.table[left, phone, right, state])

    def of_window(self, window: Sequence[int], state: int) -> int:
        """Return the pdf of the last but one (triphones) or last phone in a window of `context` phones."""
        left = window[0] if self.context > 1 else EDGE
        right = window[2] if self.context > 2 else EDGE
        return self.pdf(left, window[min(1, self.context - 1)], right, state)


def transitions(states: int) -> list[tuple[int, int]]:
    """Return the pairs (state, next state) allowed in a phone with `states` states, besides loops, in order; the phone
    ends after the last state."""
    if states <= STATES:
        return [(state, state + 1) for state in range(states - 1)]
    last = states - 1
    inner = [(state, after) for state in range(1, last) for after in range(state + 1, states)]
    return [(0, after) for after in range(1, last)] + inner


def phone_bounds(phones: Ints, states: Ints) -> npt.NDArray[np.int64]:
    """Return first frames of the phones of an alignment, and its end: a phone begins where it changes or its state goes
    back."""
    begins = np.flatnonzero((phones[1:] != phones[:-1]) | (states[1:] < states[:-1])) + 1
    return np.concatenate([[0], begins, [len(phones)]]).astype(np.int64)
