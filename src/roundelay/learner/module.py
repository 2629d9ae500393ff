"""A torch module trained by an objective over examples.

Legend: B examples of a minibatch (or gradients computed together), P parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Protocol, runtime_checkable
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from roundelay.core.block_order import Order
from roundelay.core.epochs import EpochPlan
from roundelay.core.flat import bind, flatten, parameter_count, pieces
from roundelay.core.state import Minibatch, Statistics
from roundelay.core.streams import stream_seed
from roundelay.learner.base import Learner, OnReady
from roundelay.learner.gradient_graphs import GradientGraphs, same_operations
from roundelay.learner.objectives import Classification, CrossEntropy, Evidence, Inputs, Objective

CROSS_ENTROPY = CrossEntropy()


class Examples(Protocol):
    """Training and held-out examples by number."""

    def count(self, split: str) -> int:
        """Return the number of examples in `split`."""
        ...

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Inputs, Tensor]:
        """Return (the module's inputs, the objective's targets (B, ...)) for the examples `numbers` of `split`."""
        ...

    def in_order(self, split: str, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield all of `split` in minibatches of at most `size`, for evaluation."""
        ...


@runtime_checkable
class Ordered(Protocol):
    """Examples that determine the order of an epoch themselves."""

    @property
    def sequences(self) -> int | None:
        """Number of training sequences, whose shapes differ; None: examples are single, and of one shape."""
        ...

    def order(self, plan: EpochPlan) -> Order:
        """Return all training examples by number in the order of the plan's epoch."""
        ...


class ModuleLearner(Learner):
    """A learner of a torch module: gradients of an objective, by backward straight into a flat vector.

    Dropout and all else that is random draws from torch's generator, seeded by the name of the minibatch: the gradient
    is a pure function of the point and the minibatch, in any process and any order.

    Args:
        module: maps inputs to the outputs that the objective wants, (B, ...); its initial parameters are the starting
            point. It must not keep state between calls: buffers that change in training (batch normalisation
            statistics) are refused.
        examples: the data.
        autocast: run forward and backward under bfloat16 autocast.
        clip: a gradient whose Euclidean norm is above this is scaled down to it. Each learner scales that of its own
            minibatch, before any mean is taken: it stays a pure function of point and minibatch.
        device: where to compute. Points and gradients are copied there and back, unless the runtime has them there
            (`resident`); None, the processor they are on, copies nothing.
        compiled: compile the module's forward and backward (torch.compile), for shapes that vary.
        objective: the loss, and the counts beside it.
    """

    def __init__(
        self,
        module: nn.Module,
        examples: Examples,
        autocast: bool = False,
        clip: float | None = None,
        device: torch.device | None = None,
        compiled: bool = False,
        objective: Objective = CROSS_ENTROPY,
    ) -> None:
        for name, part in module.named_modules():
            if getattr(part, "track_running_stats", False):
                raise ValueError(
                    f"module {name!r} keeps running statistics, which no strategy averages; use layer norm"
                )
        self.module = module
        self.parameters, self.shapes = parameter_count(module), tuple(tuple(p.shape) for p in module.parameters())
        self.examples = examples.count("train")
        self._examples, self._autocast, self._clip = examples, autocast, clip
        self._objective, self.unit = objective, objective.examples
        self.measured, self.right = objective.measured.removeprefix("frame "), objective.right
        self._ordered = examples if isinstance(examples, Ordered) else None
        self.sequences = self._ordered.sequences if self._ordered else None
        self._initial = flatten(module)
        self.device = device
        self._point = self._gradient = torch.empty(0)
        if device is not None:
            module.to(device)
        self._call = torch.compile(module, dynamic=True) if compiled else module
        self._at, self._into = 0, 0
        self._places: dict[Tensor, Tensor] = {}
        self._missing: set[Tensor] = set()
        self._flat_order = list(module.parameters())
        self._starts = [0, *accumulate(p.numel() for p in self._flat_order)]
        self._tail = 0  # so many of the first of them are not there yet, or lie before one that is not
        self._on_ready: OnReady | None = None  # to be told of the parts that are there
        self._graphs: GradientGraphs | None = None
        alike = isinstance(objective, Classification) and same_operations(module)
        if device is not None and device.type == "cuda" and alike and not compiled:
            self._graphs = GradientGraphs(device)
        # Weakly: hooks of a parameter are out of sight of Python's search for cycles, and would keep the learner.
        arrived = _weakly(self._arrived)
        with nullcontext() if self._graphs is None else self._graphs.on_side():
            for p in module.parameters():
                p.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
        self._order: tuple[EpochPlan, Order] | None = None
        self._ahead: tuple[tuple[Minibatch, EpochPlan] | None, tuple[Inputs, Tensor] | None] = (None, None)

    def initial(self) -> Tensor:
        return self._initial.clone()

    def gradient(
        self,
        x: Tensor,
        batch: Minibatch,
        plan: EpochPlan,
        out: Tensor,
        *,
        resident: bool = False,
        on_ready: OnReady | None = None,
    ) -> Statistics:
        if not batch.frames:
            out.zero_()
            return Statistics()
        self._point_at(x, resident)
        found = self._gradient_at(out, resident)
        if found.data_ptr() != self._into:
            self._places = dict(zip(self.module.parameters(), pieces(self.module, found), strict=True))
            self._into = found.data_ptr()
        self._missing, self._tail = set(self._places), len(self._places)
        self._on_ready = on_ready if found is out and self._clip is None else None
        inputs, targets = self._examples_of(batch, plan)
        self.module.train()
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed formats a stack for every kind of GPU not in use: longer than a small gradient takes
            seed = torch.manual_seed if self.device is not None else torch.default_generator.manual_seed
            seed(stream_seed(plan.seed, "dropout", batch.epoch, batch.index))
            statistics = self._backward(inputs, targets)
        self._shorten(found)
        if found is not out:
            out.copy_(found)
        self._look_ahead(batch, plan)
        # Last: a device is given all its work before the host waits for a result.
        return statistics()

    def _backward(self, inputs: Inputs, targets: Tensor) -> Callable[[], Statistics]:
        """Compute forward and backward, into the places of the gradient; the returned function reads the statistics."""
        objective, graphs = self._objective, self._graphs
        if graphs is None:
            evidence, targets = self._backward_once(inputs, targets)
            return lambda: objective.statistics(evidence, targets)
        on_ready, self._on_ready = self._on_ready, None  # a graph does not call back
        counts = graphs.counts(self._counts, (self._at, self._into), inputs, targets)
        if on_ready is not None:
            on_ready(0)
        assert isinstance(objective, Classification)
        return lambda: objective.read(counts, len(targets))[0]

    def _counts(self, inputs: Inputs, targets: Tensor) -> Tensor:
        evidence, targets = self._backward_once(inputs, targets)
        assert isinstance(self._objective, Classification)
        return self._objective.counts(Evidence(evidence.measure[None], evidence.outputs[None]), targets[None])

    def _backward_once(self, inputs: Inputs, targets: Tensor) -> tuple[Evidence, Tensor]:
        loss, evidence, targets = self._forward(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        for p in self._missing:  # the loss does not depend on them
            self._places[p].zero_()
        return evidence, targets

    def _examples_of(self, batch: Minibatch, plan: EpochPlan) -> tuple[Inputs, Tensor]:
        """Return (inputs, targets) of a minibatch of the plan, on the device where there is one."""
        (expected, ahead), self._ahead = self._ahead, (None, None)
        if ahead is not None and expected == (batch, plan):
            return ahead
        inputs, targets = self._examples.batch("train", self._drawn(batch, plan))
        if self.device is None:
            return inputs, targets
        return tuple(self._there(some) for some in inputs), self._there(targets)

    def _look_ahead(self, batch: Minibatch, plan: EpochPlan) -> None:
        """Load the minibatch that this learner will probably draw next (a synchronous one certainly) while the device
        computes `batch`."""
        following = batch.index + plan.learners
        if self.device is not None and plan.learners <= following < plan.pieces:
            expected = plan.piece(following)
            self._ahead = (expected, plan), self._examples_of(expected, plan)

    def _shorten(self, gradient: Tensor) -> None:
        """Scale `gradient` (P,) down to the largest norm allowed."""
        if self._clip is None:
            return
        norm = torch.linalg.vector_norm(gradient)
        if gradient.device.type != "cpu":  # without a wait for its value
            gradient.mul_((self._clip / norm).clamp(max=1.0))
        elif norm > self._clip:
            gradient.mul_(self._clip / float(norm))

    def _arrived(self, p: Tensor) -> None:
        """Move the gradient of parameter `p` into the flat vector as soon as backward has it, while it is in cache.

        Accumulating into a flat vector that is zeroed first reads and writes all of it once more: 6 of 70 ms for 12.5
        million parameters, and the memory given back here serves the next layer.
        """
        gradient, p.grad = p.grad, None
        if gradient is not None:
            self._places[p].copy_(gradient)
            self._missing.discard(p)
            if self._on_ready is not None:
                self._say_ready(self._on_ready)

    def _say_ready(self, on_ready: OnReady) -> None:
        """Call `on_ready` with the element from which on the flat vector is complete: backward fills it from
        its end."""
        before = self._tail
        while self._tail and self._flat_order[self._tail - 1] not in self._missing:
            self._tail -= 1
        if self._tail < before:
            on_ready(self._starts[self._tail])

    def gradients(self, x: Tensor, batches: Sequence[Minibatch], plan: EpochPlan, out: Tensor) -> list[Statistics]:
        """Compute many gradients at once by vmap, for each size of minibatch. They are computed one by one where the
        module draws random numbers, for these depend on the minibatch's name, or where minibatches of one size differ
        in shape."""
        found: list[Statistics] = [Statistics()] * len(batches)
        sizes: dict[int, list[int]] = {}
        for row, batch in enumerate(batches):
            sizes.setdefault(batch.frames, []).append(row)
        for size, rows in sizes.items():
            if size and len(rows) > 1 and not self._one_by_one:
                points = x if len(rows) == len(batches) else x[rows]
                gradients, statistics = self._stacked(points, [batches[row] for row in rows], plan)
                for gradient in gradients if self._clip is not None else ():
                    self._shorten(gradient)
                if points is x:
                    out.copy_(gradients)
                else:
                    out[rows] = gradients
            else:
                statistics = [self.gradient(x[row], batches[row], plan, out[row]) for row in rows]
            for row, statistic in zip(rows, statistics, strict=True):
                found[row] = statistic
        return found

    @property
    def _one_by_one(self) -> bool:
        parts = self.module.modules()
        return (
            (self.sequences is not None)
            or self.device is not None
            or any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in parts)
            or any(getattr(part, "draws", False) for part in self.module.modules())
        )

    def _stacked(self, x: Tensor, batches: Sequence[Minibatch], plan: EpochPlan) -> tuple[Tensor, list[Statistics]]:
        """Return the gradients (B, P) at the rows of `x` (B, P), and statistics, over minibatches of equal size."""
        examples = [self._examples.batch("train", self._drawn(batch, plan)) for batch in batches]
        inputs = tuple(torch.stack(parts) for parts in zip(*(some for some, _ in examples), strict=True))
        targets = torch.stack([some for _, some in examples])
        self.module.train()
        shapes = {name: p.shape for name, p in self.module.named_parameters()}

        def loss(flat: Tensor, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
            pieces = torch.split(flat, [shape.numel() for shape in shapes.values()])
            named = {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}

            def module(*inputs: Tensor) -> Tensor:
                with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
                    return functional_call(self.module, named, inputs)  # type: ignore[no-any-return]

            return self._objective.loss(module, inputs, targets)

        gradients, found = vmap(grad(loss, has_aux=True))(x, inputs, targets)
        return gradients, self._objective.statistics_of_each(found, targets)

    def _drawn(self, batch: Minibatch, plan: EpochPlan) -> NDArray[np.int64]:
        """Return the training examples (B,) of a minibatch of the plan."""
        plan, begin = plan.own(batch)
        return self._order_of(plan)[batch.start - begin : batch.stop - begin]

    def _order_of(self, plan: EpochPlan) -> Order:
        """Return the order of the plan's epoch, shuffled or the examples' own; the last one asked for is kept."""
        if self._order is None or self._order[0] != plan:
            self._order = (plan, self._ordered.order(plan) if self._ordered else plan.order())
        return self._order[1]

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        self._point_at(x)
        self.module.eval()
        total = Statistics()
        with torch.inference_mode():
            for inputs, targets in self._examples.in_order(split, 4096):
                self.may_stop()
                _, evidence, there = self._forward(inputs, targets)
                total += self._objective.statistics(evidence, there)
        return total

    def _forward(self, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence, Tensor]:
        """Return the loss (), the evidence, and the targets (B, ...) on the device of computation."""
        if self.device is not None:
            inputs, targets = tuple(self._there(some) for some in inputs), self._there(targets)
        device = targets.device.type

        def module(*inputs: Tensor) -> Tensor:
            with torch.autocast(device, torch.bfloat16, enabled=self._autocast):
                return self._call(*inputs)  # type: ignore[no-any-return]

        return *self._objective.loss(module, inputs, targets), targets

    def _there(self, some: Tensor) -> Tensor:
        """Copy a tensor to the device of computation; on a GPU the processor does not wait for the copy."""
        if self.device is not None and self.device.type == "cuda" and some.device.type == "cpu":
            some = some.pin_memory()
        return some.to(self.device, non_blocking=True)

    def _gradient_at(self, out: Tensor, resident: bool) -> Tensor:
        """Return the vector (P,) that backward fills: `out`, or one on the device to be copied to `out`."""
        if self.device is None or resident:
            return out
        if not self._gradient.numel():
            self._gradient = torch.zeros_like(out, device=self.device)
        return self._gradient

    def _point_at(self, x: Tensor, resident: bool = False) -> None:
        """Make the module's parameters views of `x`, or of a copy on the device. Nothing is done if they already are,
        as on a real learner always."""
        if self.device is not None and not resident:
            if not self._point.numel():
                self._point = torch.empty_like(x, device=self.device)
            self._point.copy_(x)
            x = self._point
        if x.data_ptr() != self._at:
            bind(self.module, x)
            self._at = x.data_ptr()


def _weakly(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Return the bound `method` in a form that does not keep its object alive."""
    reference = WeakMethod(method)

    def call(tensor: Tensor) -> None:
        found = reference()
        if found is not None:
            found(tensor)

    return call


def autocast_pays() -> bool:
    """Return True where this processor multiplies bfloat16 matrices in hardware (AVX512-BF16).

    Elsewhere autocast on the CPU converts back and forth and is slower than float32.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "AVX512" in torch.backends.cpu.get_cpu_capability() and "avx512_bf16" in flags
