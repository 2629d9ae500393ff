"""Size of a round's minibatch: a number, the unit it counts, and whether learners share it."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from roundelay.core.errors import UserError

Unit = Literal["frames", "sequences"]
TOTAL, PER_LEARNER = "training.minibatch", "training.minibatch_per_learner"
"""Options of a recipe that give a size: the round's, or each learner's."""


@dataclass(frozen=True)
class MinibatchSize:
    """The size of a minibatch: `number` frames or sequences, for all learners of a round together or for each."""

    number: int
    unit: Unit = "frames"
    per_learner: bool = False

    @property
    def option(self) -> str:
        """Option of the recipe that gives this size."""
        return PER_LEARNER if self.per_learner else TOTAL

    def a_round(self, learners: int) -> int:
        """Return the frames or sequences of a round, over all learners."""
        return self.number * learners if self.per_learner else self.number

    def frames(self, learners: int, examples: int, sequences: int | None, kind: str = "frames") -> int:
        """Return the frames of a round, for a training set of `examples` frames in `sequences` sequences (None: it has
        none). A size in sequences becomes the frames that so many sequences have on average: all rounds have equally
        many frames.

        Args:
            kind: kind of the examples; unless they are frames, they are sequences themselves.

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
        """Return the fields by which records of a run give this size, besides the frames."""
        sequences = self.a_round(learners) if self.unit == "sequences" else None
        return {"minibatch_per_learner": self.per_learner, "minibatch_sequences": sequences}

    def text(self, learners: int) -> str:
        """Return the size in words, such as `1,024 frames a learner (4,096 a round)`."""
        if self.per_learner:
            return f"{self.number:,} {self.unit} a learner ({self.a_round(learners):,} a round)"
        return f"{self.number:,} {self.unit} a round ({self.number // learners:,} a learner)"


class MinibatchRecord(Protocol):
    """A record that has the size of a minibatch."""

    @property
    def learners(self) -> int: ...

    @property
    def minibatch_frames(self) -> int: ...

    @property
    def minibatch_per_learner(self) -> bool: ...

    @property
    def minibatch_sequences(self) -> int | None: ...


def recorded_text(record: MinibatchRecord) -> str:
    """Return the size of a minibatch in words, in the unit that the run was given; sequences as examples have no
    frames."""
    number = record.minibatch_sequences or record.minibatch_frames
    unit: Unit = "sequences" if record.minibatch_sequences else "frames"
    one = number // record.learners if record.minibatch_per_learner else number
    cut = unit == "sequences" and number != record.minibatch_frames
    frames = f", {record.minibatch_frames:,} frames" if cut else ""
    return MinibatchSize(one, unit, record.minibatch_per_learner).text(record.learners) + frames
