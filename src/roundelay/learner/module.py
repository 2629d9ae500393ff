"""A torch module trained by cross-entropy over examples.

Legend: B examples of a minibatch, C classes, P parameters.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.core.epochs import EpochPlan
from roundelay.core.flat import bind, flatten, parameter_count
from roundelay.core.state import Minibatch, Statistics
from roundelay.core.streams import stream_seed
from roundelay.learner.base import Learner

Inputs = tuple[Tensor, ...]


class Examples(Protocol):
    """Training and held-out examples by number."""

    def count(self, split: str) -> int:
        """Examples in `split`."""
        ...

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Inputs, Tensor]:
        """(the module's inputs, class targets (B,) int64) of these examples."""
        ...

    def in_order(self, split: str, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """All of `split` in minibatches of at most `size`, for evaluation."""
        ...


class ModuleLearner(Learner):
    """Gradients of mean cross-entropy, by backward, straight into a flat vector.

    Dropout and whatever else is random draws from torch's generator, seeded by the name of the minibatch: the gradient
    is a pure function of the point and the minibatch, in whatever process and order it is computed.

    Args:
        module: maps inputs to (B, C) scores; its initial parameters are the starting point. It must not keep state
        between
            calls: buffers that change in training (batch normalisation statistics) are refused.
        examples: the data.
        autocast: run forward and backward under bfloat16 autocast.
    """

    def __init__(self, module: nn.Module, examples: Examples, autocast: bool = False) -> None:
        for name, part in module.named_modules():
            if getattr(part, "track_running_stats", False):
                raise ValueError(
                    f"module {name!r} keeps running statistics, which no strategy averages; use layer norm"
                )
        self.module = module
        self.parameters = parameter_count(module)
        self.examples = examples.count("train")
        self._examples, self._autocast = examples, autocast
        self._initial = flatten(module)
        self._at, self._into = 0, 0
        self._order: tuple[EpochPlan, NDArray[np.int64]] | None = None

    def initial(self) -> Tensor:
        return self._initial.clone()

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor) -> Statistics:
        out.zero_()
        if not batch.frames:
            return Statistics()
        self._point_at(x, out)
        if self._order is None or self._order[0] != plan:
            self._order = (plan, plan.order())
        inputs, targets = self._examples.batch("train", self._order[1][batch.start : batch.stop])
        self.module.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(plan.seed, "dropout", batch.epoch, batch.index))
            loss, statistics = self._forward(inputs, targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return statistics

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        self._point_at(x, torch.zeros_like(x))
        self.module.eval()
        total = Statistics()
        with torch.inference_mode():
            for inputs, targets in self._examples.in_order(split, 4096):
                total += self._forward(inputs, targets)[1]
        return total

    def _forward(self, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Statistics]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            scores = self.module(*inputs)
        scores = scores.float()
        loss = nn.functional.cross_entropy(scores, targets)
        frames = len(targets)
        correct = int((scores.detach().argmax(1) == targets).sum())
        return loss, Statistics(frames, float(loss.detach()) * frames, correct)

    def _point_at(self, x: Tensor, out: Tensor) -> None:
        """Make the module look at `x` and `out`. Cheap, and skipped when it already does, as on a real learner
        always."""
        if (x.data_ptr(), out.data_ptr()) != (self._at, self._into):
            bind(self.module, x, out)
            self._at, self._into = x.data_ptr(), out.data_ptr()


def autocast_pays() -> bool:
    """True where this processor multiplies bfloat16 matrices in hardware (AVX512-BF16).

    Elsewhere autocast on the CPU converts back and forth and is slower than float32.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "AVX512" in torch.backends.cpu.get_cpu_capability() and "avx512_bf16" in flags
