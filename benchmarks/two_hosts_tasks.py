"""Tasks of benchmarks/two_hosts.py --to-loss: a network, minibatches for a plain training loop, and a held-out loss.

Every way to train together is given the same loop, the same network, and minibatches drawn by the same generators.
"""

import gzip
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class LossTask(ABC):
    """A network and its data.

    Attributes:
        inputs: the content of a minibatch, in words.
        rate: the learning rate of every learner.
    """

    inputs: str
    rate: float

    @abstractmethod
    def network(self) -> nn.Module:
        """Return the network, with the same weights in every process."""

    @abstractmethod
    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of a learner for these parameters."""

    @abstractmethod
    def minibatch(self, drawn: Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return (inputs, targets) of a minibatch that a learner draws by the generator `drawn`."""

    @abstractmethod
    def held_out(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Yield (inputs, targets) of the minibatches by which models are judged, the same in every call."""

    @staticmethod
    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return cross_entropy(scores.flatten(0, -2).float(), targets.flatten())

    def judge(self, network: nn.Module) -> float:
        """Return the held-out loss of the network in its present state, in nats."""
        network.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for inputs, targets in self.held_out():
                total += float(self.loss(network(*inputs), targets)) * targets.numel()
                count += targets.numel()
        return total / count if math.isfinite(total) else math.inf


class Block(nn.Module):
    """A transformer block: causal attention, then two layers, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.looked_at, self.seen = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block for `x` (B, T, width), of the same shape."""
        several, time, width = x.shape
        split = self.looked_at(self.before(x)).view(several, time, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.seen(found.transpose(1, 2).reshape(several, time, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))


class CharacterModel(nn.Module):
    """A model that scores the next character after each of a row of characters."""

    def __init__(self, characters: int, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.last, self.scores = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores (B, T, characters) for `text` (B, T), numbers of characters."""
        x = self.characters(text) + self.places.weight[: text.shape[1]]
        scored: Tensor = self.scores(self.last(self.blocks(x)))
        return scored


@final
@dataclass
class TextTask(LossTask):
    """The task of predicting the next character of a text, whose last twentieth is held out.

    Args:
        path: a text, compressed by gzip or not.
        rows: pieces of `context` characters in a minibatch.
    """

    path: Path
    width: int = 128
    layers: int = 4
    context: int = 64
    rows: int = 12
    rate: float = 1e-3
    judged: int = 128

    def __post_init__(self) -> None:
        opener = gzip.open if self.path.suffix == ".gz" else open
        with opener(self.path, "rb") as file:
            text = np.frombuffer(file.read(), np.uint8)
        known, coded = np.unique(text, return_inverse=True)
        self._characters, edge = len(known), len(text) - len(text) // 20
        self._train, self._held_out = coded[:edge].astype(np.int64), coded[edge:].astype(np.int64)
        self.inputs = f"{self.rows} rows of {self.context} characters"

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return CharacterModel(self._characters, self.context, self.width, self.layers)

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.rate)

    def minibatch(self, drawn: Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        return self._pieces(self._train, drawn.integers(0, len(self._train) - self.context - 1, self.rows))

    def held_out(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        begins = np.linspace(0, len(self._held_out) - self.context - 2, self.judged).astype(np.int64)
        for some in np.array_split(begins, max(1, self.judged // 32)):
            yield self._pieces(self._held_out, some)

    def _pieces(self, text: NDArray[np.int64], begins: NDArray[np.int64]) -> tuple[tuple[Tensor, ...], Tensor]:
        pieces = torch.from_numpy(np.stack([text[at : at + self.context + 1] for at in begins]))
        return (pieces[:, :-1],), pieces[:, 1:]


@final
@dataclass
class DnnTask(LossTask):
    """The task of a recipe's network on its labelled frames, whose corpus is prepared and aligned.

    Args:
        overrides: changes to the recipe, each SECTION.KEY=VALUE.
        frames: number of frames in a minibatch of one learner.
        judged: the most frames of the held-out split that are used.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    frames: int = 256
    rate: float = 0.02
    momentum: float = 0.9
    judged: int = 4096

    def __post_init__(self) -> None:
        from roundelay.learner.module import ModuleLearner
        from roundelay_speech.acoustic import make_job
        from roundelay_speech.acoustic_task import AcousticTask
        from roundelay_speech.recipes.recipe import load_recipe

        task = make_job(load_recipe(self.recipe, self.overrides)).cluster.task
        assert isinstance(task, AcousticTask)
        learner = task.build()
        assert isinstance(learner, ModuleLearner)
        self._network = learner.module
        self._examples = task.targets().examples(learner.module)  # type: ignore[arg-type]
        self.inputs = f"{self.frames} frames"

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return self._network

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum)

    def minibatch(self, drawn: Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        return self._examples.batch("train", drawn.integers(0, self._examples.count("train"), self.frames))

    def held_out(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        count = self._examples.count("dev")
        numbers = np.linspace(0, count - 1, min(count, self.judged)).astype(np.int64)
        for some in np.array_split(numbers, max(1, len(numbers) // 1024)):
            yield self._examples.batch("dev", some)
