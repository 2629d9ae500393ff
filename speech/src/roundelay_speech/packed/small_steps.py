"""Training a packed network on with little speech: a few epochs of small steps from where it is.

A few minutes have few of the words and sounds there are, and a network soon learns from them that the others do not
exist. Two things keep it from that. The first layer alone is trained, which moves what is heard of a speaker to where
the layers behind it know it from others. And the network may be held to what it said before, frame by frame (Yu, Yao,
Su, Li and Seide 2013, "KL-divergence regularized deep neural network adaptation"):

    loss = (1 - r) objective(labels) + r KL(p_before || p) + constant

Legend: P parameters, S columns of scores.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.state import Statistics
from roundelay.learner.module import Examples, ModuleLearner
from roundelay.learner.objectives import CrossEntropy, Evidence, Inputs, Objective
from roundelay_speech.models.network import FrameNetwork
from roundelay_speech.objectives.ctc import Ctc
from roundelay_speech.packed.labelling import HeardSpeech, LabelledSpeech
from roundelay_speech.packed.model import Model

SPLICED_FRAMES, SEQUENCE_FRAMES, UTTERANCES = 256, 1024, 8
"""Examples of a minibatch: of networks that splice, of those of sequences, and of models without an alignment."""
_SPLIT = "train"
Layers = Literal["first", "all"]


@dataclass(frozen=True)
class SmallSteps:
    """Options of training on."""

    epochs: int = 10  # through the speech
    learning_rate: float = 5e-4  # of Adam, at first; it falls to nothing along a line
    layers: Layers = "first"  # that are trained: the first, where the features come in, or all
    hold: float = 0.0  # r, the share of the loss that is the distance from what the network said before
    clip: float = 5.0  # norm of a gradient, at most
    seed: int = 0  # of the order of examples, and of dropout

    def __post_init__(self) -> None:
        for name, value, least in (("epochs", self.epochs, 1), ("seed", self.seed, 0)):
            if value < least:
                raise UserError(f"--{name} {value}: give {least} or more.")
        if not 0 < self.learning_rate < 1:
            raise UserError(f"--learning-rate {self.learning_rate:g}: give a number between 0 and 1, 0.0005 for one.")
        if not 0 <= self.hold < 1:
            raise UserError(f"--hold {self.hold:g}: give a share from 0 up to, not including, 1; 0.5 for one.")


@final
@dataclass(frozen=True, eq=False)
class Held(Objective):
    """An objective, and the distance of a network's posteriors from those that it gave before."""

    goal: Objective  # the objective; what is reported is its own
    before: nn.Module  # the network as it was, in evaluation mode
    share: float  # of the distance in the loss
    name: str = "held"

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        given: list[Tensor] = []

        def kept(*inputs: Tensor) -> Tensor:
            given.append(module(*inputs))
            return given[-1]

        loss, evidence = self.goal.loss(kept, inputs, targets)
        with torch.no_grad():
            before = torch.log_softmax(self.before(*inputs).float(), -1)
        scores = torch.log_softmax(given[-1].float(), -1)
        distance = nn.functional.kl_div(scores, before, log_target=True, reduction="sum") / len(targets)
        return (1 - self.share) * loss + self.share * distance, evidence

    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        return self.goal.statistics(evidence, targets)


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """A network after training on.

    Attributes:
        before, after: mean loss of an example (a frame, or an utterance) of the speech.
    """

    parameters: Tensor  # (P,)
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
    held = Held(objective, copy.deepcopy(module).eval(), how.hold)
    learner = ModuleLearner(module, examples, clip=how.clip, objective=held)
    x = learner.initial()
    before = learner.evaluate(x, _SPLIT).mean_loss
    gradient, optimizer = torch.empty_like(x), torch.optim.Adam([x], lr=how.learning_rate)
    trained = _first_layer(module) if how.layers == "first" else torch.ones_like(x)
    plans = [EpochPlan(epoch, learner.examples, size, 1, how.seed) for epoch in range(how.epochs)]
    steps, done = sum(plan.pieces for plan in plans), 0
    progress.start("training on", steps)
    for plan in plans:
        for index in range(plan.pieces):
            learner.gradient(x, plan.piece(index), plan, gradient)
            x.grad = gradient.mul_(trained)
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


def _first_layer(module: nn.Module) -> Tensor:
    """Return (P,): 1 for the parameters of the part that has the first of them, 0 for the others."""
    named = list(module.named_parameters())
    first = named[0][0].rpartition(".")[0]
    return torch.cat([torch.full((p.numel(),), float(name.rpartition(".")[0] == first)) for name, p in named])
