"""Section `init` of a recipe: the model that a run starts from, if not from one of its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roundelay.core.bounds import Count, NonNegative, Whole
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError


@dataclass(frozen=True)
class FirstPhase:
    """A first phase: one learner trains by `sgd` at a fixed rate. Runs beside each other share it."""

    epochs: Whole = 0
    """First phase that runs of a comparison share, epochs of sgd on one learner; 0 for none."""
    learning_rate: NonNegative | None = None
    """Its learning rate, which is fixed; null for schedule.learning_rate."""
    minibatch: Count | None = None
    """Its minibatch; null for that of one learner of the run."""

    def __post_init__(self) -> None:
        check_values(self, "init.first")


@dataclass(frozen=True)
class Init:
    """The model that a run starts from; with neither `model` nor epochs of `first` its own, drawn by training.seed."""

    model: Path | None = None
    """Model that the run starts from (`train --init`), a run directory, a packed model, a model.safetensors or a
    checkpoint; null for one of its own."""
    which: Literal["final", "best"] = "final"
    """Model taken of a run directory, its final one or its best checkpoint so far."""
    output: Literal["keep", "new"] = "keep"
    """Keep the output layer of init.model, which needs the same tied states, or draw a new one."""
    first: FirstPhase = FirstPhase()

    def __post_init__(self) -> None:
        if self.model is not None and self.first.epochs:
            first = f"init.first.epochs is {self.first.epochs}"
            raise UserError(f"init.model is {self.model}, and {first}: a run starts from one of them.")
