"""Gradients on a GPU as CUDA graphs: forward, backward and counts of a minibatch are recorded once and replayed.

A step of a small or recurrent network is a thousand kernels of microseconds each, and the processor takes longer to ask
for them than the GPU to run them. A graph is asked for at once. It does the recorded operations at the recorded
addresses, so one is recorded for each point, gradient vector and shape of minibatch that comes again and again, and the
inputs are copied to where it reads them. Random numbers follow the generator's seed, as they do without a graph.

It is right for modules that do the same operations for all inputs of a shape (`same_operations`). A module that asks a
tensor for its value on the way cannot be recorded; its gradients are computed as before, which is said once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundelay.learner.objectives import Inputs

log = logging.getLogger("roundelay")
AFTER = 2
"""Minibatches of a shape that are computed before its graph is recorded, in which libraries make their workspaces."""
MOST_GRAPHS = 8
"""Most graphs of a learner. They share one pool of memory, so another one costs only its inputs and list of kernels."""
aten = torch.ops.aten
WAITING = frozenset(
    operation.default for operation in (aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select)
)
COPIES = frozenset(operation.default for operation in (aten._to_copy, aten.copy_))
Key = tuple[object, ...]
Compute = Callable[[Inputs, Tensor], Tensor]


def same_operations(module: nn.Module) -> bool:
    """Return True if the module does the same operations for all inputs of a shape: it says so by an attribute
    `same_operations`, or it and all its parts are layers of torch.

    Parts that draw random numbers on the processor (`draws`), and recurrent layers with dropout, whose random numbers
    cuDNN keeps, do not.
    """
    parts = list(module.modules())
    if any(getattr(part, "draws", False) or (isinstance(part, nn.RNNBase) and part.dropout) for part in parts):
        return False
    said: bool | None = getattr(module, "same_operations", None)
    return all(type(part).__module__.startswith("torch.nn.modules.") for part in parts) if said is None else said


@dataclass(frozen=True)
class RecordedGradient:
    """A recorded graph of a gradient, the tensors from which it reads its minibatch, and its counts."""

    graph: "torch.cuda.CUDAGraph"
    minibatch: tuple[Tensor, ...]
    counts: Tensor

    def replay(self, minibatch: tuple[Tensor, ...]) -> Tensor:
        """Compute the gradient of another minibatch of the same shape; return its counts."""
        for there, some in zip(self.minibatch, minibatch, strict=True):
            there.copy_(some)
        self.graph.replay()
        return self.counts


class Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A watch on a module's operations for those that no graph can record, since the processor waits for their
    result."""

    asks = ""
    """Name of one such operation; "" if there was none."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        there = any(one.is_cuda for one in given)
        back = operation in COPIES and not found.is_cuda
        masked = operation is aten.index.Tensor and any(one.dtype == torch.bool for one in given[1:])
        if there and (back or masked or operation in WAITING):
            self.asks = str(operation)
        return found


class GradientGraphs:
    """The recorded graphs of one learner's gradients on one GPU, one for each shape of minibatch."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._works = device, True
        self._side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._seen: Counter[Key] = Counter()
        self._recorded: dict[Key, RecordedGradient] = {}
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def number(self) -> int:
        """Number of recorded graphs."""
        return len(self._recorded)

    @contextmanager
    def on_side(self) -> Iterator[None]:
        """Work on the stream that graphs are recorded on, after earlier and before later work of the current stream.

        Make hooks of parameters there too: autograd adds up a gradient on the stream where its hook was made, and a
        recording may have no part of another stream.
        """
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            yield
        current.wait_stream(self._side)

    def counts(self, compute: Compute, places: tuple[int, int], inputs: Inputs, targets: Tensor) -> Tensor:
        """Compute the gradient of a minibatch, by the graph of its shape if there is one or one is due. Return its
        counts, valid until the next call.

        Args:
            compute: does forward and backward of `(inputs, targets)`, and returns their counts.
            places: addresses of the point and of the gradient.
        """
        minibatch = (*inputs, targets)
        key: Key = (places, *((some.shape, some.dtype, some.stride()) for some in minibatch))
        recorded = self._recorded.get(key)
        if recorded is None and self._works and self._seen[key] >= AFTER and len(self._recorded) < MOST_GRAPHS:
            recorded = self._record(compute, minibatch)
            if recorded is not None:
                self._recorded[key] = recorded
        if recorded is not None:
            return recorded.replay(minibatch)
        listening = Listening()  # type: ignore[no-untyped-call]
        with self.on_side(), listening if self._works and not self._seen[key] else nullcontext():
            counts = compute(inputs, targets)
        if listening.asks:
            self._fail(f"{listening.asks} waits for the GPU")
        if self._works:
            self._seen[key] += 1
        return counts

    def _record(self, compute: Compute, minibatch: tuple[Tensor, ...]) -> RecordedGradient | None:
        """Record a graph for the shape of `minibatch`, without computing anything; return None if that cannot be
        recorded."""
        graph = torch.cuda.CUDAGraph()
        try:
            kept = tuple(some.clone() for some in minibatch)
            # thread_local: other threads of the process, which exchange rows, may do as they like meanwhile.
            with torch.cuda.graph(graph, self._pool, self._side, capture_error_mode="thread_local"):
                counts = compute(kept[:-1], kept[-1])
        except Exception as error:  # of the module, of CUDA, or for want of memory
            self._fail((str(error).strip().splitlines() or [type(error).__name__])[0])
            # A recording that broke off would keep the generator for itself, though its seed is the one before.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            seed = generator.initial_seed()
            generator.graphsafe_set_state(torch.Generator(self._device).graphsafe_get_state())
            generator.manual_seed(seed)
            return None
        return RecordedGradient(graph, kept, counts)

    def _fail(self, why: str) -> None:
        self._works = False
        log.warning("gradients are computed without a CUDA graph, kernel by kernel: %s", why)
