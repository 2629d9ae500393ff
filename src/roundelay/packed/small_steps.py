"""Training a packed network on with little speech: a few epochs of small steps from where it is.

Legend: P parameters, T frames of all utterances together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.learner.module import Examples, ModuleLearner
from roundelay.learner.objectives import CrossEntropy, Objective
from roundelay.learner.objectives.ctc import Ctc
from roundelay.packed.labelling import HeardSpeech, LabelledSpeech
from roundelay.packed.model import Model
from roundelay.speech.models.network import FrameNetwork

SPLICED_FRAMES, SEQUENCE_FRAMES, UTTERANCES = 256, 1024, 8
"""Examples of a minibatch: of networks that splice, of those of sequences, and of models without an alignment."""
_SPLIT = "train"


@dataclass(frozen=True)
class SmallSteps:
    """Options of training on.

    Attributes:
        epochs: through the speech.
        learning_rate: of Adam, at first; it falls to nothing along a line.
        clip: norm of a gradient, at most.
        seed: of the order of examples, and of dropout.
    """

    epochs: int = 10
    learning_rate: float = 5e-4
    clip: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("epochs", self.epochs, 1), ("seed", self.seed, 0)):
            if value < least:
                raise UserError(f"--{name} {value}: give {least} or more.")
        if not 0 < self.learning_rate < 1:
            raise UserError(f"--learning-rate {self.learning_rate:g}: give a number between 0 and 1, 0.0005 for one.")


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """A network after training on.

    Attributes:
        parameters: (P,).
        before, after: mean loss of an example (a frame, or an utterance) of the speech.
    """

    parameters: Tensor
    before: float
    after: float


def train_on(
    model: Model, network: int, speech: tuple[HeardSpeech, LabelledSpeech], how: SmallSteps, progress: Progress
) -> TrainedOn:
    """Train one network of a packed model on; the model itself is not what it was after that.

    Raises:
        UserError: the loss is no number any more.
    """
    heard, labelled = speech
    module, store = model.hearings[network].model.module, heard.store(model, network)
    objective: Objective
    examples: Examples
    if labelled.units is None:
        examples, objective = module.examples(store, labelled.states, {_SPLIT: labelled.used}), CrossEntropy()
        size = SPLICED_FRAMES if isinstance(module, FrameNetwork) else SEQUENCE_FRAMES
    else:
        examples, objective, size = module.utterances(store, {_SPLIT: labelled.units}), Ctc(), UTTERANCES
    learner = ModuleLearner(module, examples, clip=how.clip, objective=objective)
    x = learner.initial()
    before = learner.evaluate(x, _SPLIT).mean_loss
    gradient, optimizer = torch.empty_like(x), torch.optim.Adam([x], lr=how.learning_rate)
    plans = [EpochPlan(epoch, learner.examples, size, 1, how.seed) for epoch in range(how.epochs)]
    steps, done = sum(plan.pieces for plan in plans), 0
    progress.start("training on", steps)
    for plan in plans:
        for index in range(plan.pieces):
            learner.gradient(x, plan.piece(index), plan, gradient)
            x.grad = gradient
            optimizer.param_groups[0]["lr"] = how.learning_rate * (1 - done / steps)
            optimizer.step()
            done += 1
            progress.advance()
    progress.finish()
    after = learner.evaluate(x, _SPLIT).mean_loss
    if not torch.isfinite(x).all():
        raise UserError("The loss is no number any more: give a lower --learning-rate.")
    module.eval()
    return TrainedOn(x, before, after)
