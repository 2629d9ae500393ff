"""Section `init` of a recipe: the model that a run starts from, if not from one of its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roundelay.core.errors import UserError


@dataclass(frozen=True)
class FirstPhase:
    """A first phase: one learner trains by `sgd` at a fixed rate. Runs beside each other share it."""

    epochs: int = 0
    learning_rate: float | None = None
    minibatch: int | None = None

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise UserError(f"init.first.epochs is {self.epochs}: give 1 or more, or 0 for no first phase.")
        if self.learning_rate is not None and not self.learning_rate >= 0:
            raise UserError(f"init.first.learning_rate is {self.learning_rate}: it cannot be negative.")
        if self.minibatch is not None and self.minibatch < 1:
            raise UserError(f"init.first.minibatch is {self.minibatch}: give 1 or more.")


@dataclass(frozen=True)
class Init:
    """The model that a run starts from; with neither `model` nor epochs of `first` its own, drawn by training.seed."""

    model: Path | None = None
    which: Literal["final", "best"] = "final"
    output: Literal["keep", "new"] = "keep"
    first: FirstPhase = FirstPhase()

    def __post_init__(self) -> None:
        if self.model is not None and self.first.epochs:
            first = f"init.first.epochs is {self.first.epochs}"
            raise UserError(f"init.model is {self.model}, and {first}: a run starts from one of them.")
