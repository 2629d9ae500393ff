"""Size of a round's minibatch: a number, the unit it counts, and whether learners share it."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from roundelay.core.errors import UserError

Unit = Literal["frames", "sequences"]
TOTAL, PER_LEARNER = "training.minibatch", "training.minibatch_per_learner"
"""Options of a recipe, one of which says the size."""


@dataclass(frozen=True)
class MinibatchSize:
    """`number` frames or sequences: of a round, cut over all learners, or of every learner."""

    number: int
    unit: Unit = "frames"
    per_learner: bool = False

    @property
    def option(self) -> str:
        """Option of the recipe that says it."""
        return PER_LEARNER if self.per_learner else TOTAL

    def a_round(self, learners: int) -> int:
        """Return number of a round, over all learners."""
        return self.number * learners if self.per_learner else self.number

    def frames(self, learners: int, examples: int, sequences: int | None, kind: str = "frames") -> int:
        """Return frames of a round, of a training set of so many `examples` (frames) in `sequences`, where it has any.

        Sequences stand for the frames that so many have on average: rounds have equally many frames in either unit.

        Args:
            kind: of the examples; where they are not frames, they are sequences themselves.

        Raises:
            UserError: sequences are asked for, and the model trains on single frames; the set is too small for a round.
        """
        wanted = self.a_round(learners)
        if self.unit == "sequences":
            if sequences is None:
                raise UserError(
                    "training.minibatch_unit is sequences, but this model trains on single frames: choose frames, or "
                    "a model that trains on sequences (docs/models.md)."
                )
            wanted = max(learners, -(-wanted * examples // sequences))  # rounded up, so that no round is left over
        if examples < wanted:
            there = f"{examples} training {kind}"
            there += f" in {sequences} sequences" * (self.unit == "sequences" and kind == "frames")
            each = f" for each of {learners} learners" * (self.per_learner and learners > 1)
            raise UserError(f"{self.option} is {self.number} {self.unit}{each}, but there are only {there}.")
        return wanted

    def recorded(self, learners: int) -> dict[str, Any]:
        """Return fields of the records of a run that give this size, beside the frames."""
        sequences = self.a_round(learners) if self.unit == "sequences" else None
        return {"minibatch_per_learner": self.per_learner, "minibatch_sequences": sequences}

    def text(self, learners: int) -> str:
        """Return words such as `1,024 frames a learner (4,096 a round)`."""
        if self.per_learner:
            return f"{self.number:,} {self.unit} a learner ({self.a_round(learners):,} a round)"
        return f"{self.number:,} {self.unit} a round ({self.number // learners:,} a learner)"


class MinibatchRecord(Protocol):
    """A record that says the size of a minibatch."""

    @property
    def learners(self) -> int: ...

    @property
    def minibatch_frames(self) -> int: ...

    @property
    def minibatch_per_learner(self) -> bool: ...

    @property
    def minibatch_sequences(self) -> int | None: ...


def recorded_text(record: MinibatchRecord) -> str:
    """Return the size of a minibatch as a run was given it, in words. Where examples are sequences, they have no
    frames."""
    number = record.minibatch_sequences or record.minibatch_frames
    unit: Unit = "sequences" if record.minibatch_sequences else "frames"
    one = number // record.learners if record.minibatch_per_learner else number
    cut = unit == "sequences" and number != record.minibatch_frames
    frames = f", {record.minibatch_frames:,} frames" if cut else ""
    return MinibatchSize(one, unit, record.minibatch_per_learner).text(record.learners) + frames
