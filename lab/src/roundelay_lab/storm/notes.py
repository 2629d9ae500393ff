"""Notes that learners of a watched script leave: files that are written over after every step."""

import struct
from dataclasses import dataclass
from typing import final

NOTE_NAME, LABEL = "learner-{rank}.note", "label.txt"
_FORM = struct.Struct("<qqdq")
MOST = 63
"""Most learners that a note can name."""


@final
@dataclass(frozen=True)
class Note:
    """A note: the state of one learner's session."""

    steps: int  # of this learner, those of the session that it goes on from included
    living: tuple[int, ...]  # ranks that live, as far as this learner has noticed
    at: float  # the machine's clock (s)

    def packed(self) -> bytes:
        """Return the note as bytes."""
        mask = sum(1 << rank for rank in self.living if rank < MOST)
        return _FORM.pack(self.steps, mask, self.at, self.steps)


def note_of(data: bytes) -> Note | None:
    """Return the note in bytes from `packed`; None if they are no whole note."""
    if len(data) != _FORM.size:
        return None
    steps, mask, at, again = _FORM.unpack(data)
    if steps != again:
        return None
    return Note(steps, tuple(rank for rank in range(MOST) if mask >> rank & 1), at)
