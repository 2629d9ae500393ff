"""Words for what runs count and measure: frames and cross-entropy, or whatever their objective says."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from roundelay.core.records import Results, RunStarted

_FRAMES = "frames"


@final
@dataclass(frozen=True)
class Wording:
    """Words of one objective, or of several at once.

    Attributes:
        examples: the things that are counted, in the plural.
        loss: the mean that a run is known by.
        unit: its unit.
        right: the share that is counted beside it.
    """

    examples: str = _FRAMES
    loss: str = "cross-entropy"
    unit: str = "nats per frame"
    right: str = "accuracy"

    @property
    def of_frames(self) -> bool:
        """True if frames are counted, and nothing else."""
        return self.examples == _FRAMES

    @property
    def loss_meaning(self) -> str:
        """The loss, for whoever does not know the run."""
        return f"frame {self.loss}" if self.of_frames else self.loss

    @property
    def right_meaning(self) -> str:
        """The share, for whoever does not know the run."""
        return "frames whose tied state was the likeliest" if self.of_frames else self.right


def wording_of(record: RunStarted | Results) -> Wording:
    """Return words of a record."""
    if record.examples == _FRAMES:
        return Wording(loss=record.measured, right=record.right)
    one = record.examples.removesuffix("s")
    each = f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
    return Wording(record.examples, record.measured.removesuffix(f" of {each}"), f"nats {each}", record.right)


def together(words: Iterable[Wording]) -> Wording:
    """Return words for several runs: their own where they have the same, else what fits all."""
    kinds = list(dict.fromkeys(words)) or [Wording()]
    if len(kinds) == 1:
        return kinds[0]
    examples, units = (list(dict.fromkeys(getattr(kind, name) for kind in kinds)) for name in ("examples", "unit"))
    return Wording(" or ".join(examples), "loss", units[0] if len(units) == 1 else "nats")
