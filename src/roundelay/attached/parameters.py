"""A user's module as one flat vector, without taking it away from its optimizer.

The row is float32, also where the module has other types. A parameter of float32 is a view of the vector the module
looks at. One of bfloat16 or float16 has a rounded copy of its own, and its part of the row is the float32 master that
the optimizer updates (Micikevicius et al. 2018, "Mixed precision training", section 3.1).

Wrappers that average a module's gradients or keep its parameters are refused, since both would do it; and modules of
TorchScript, for nothing reports their calls. They are known by the names of classes, so that nothing is imported that
the user does not use. A DistributedDataParallel over a group of one process averages nothing, and is taken as it is:
frameworks make it always.

Of a module that a group of processes has sharded, each process has its own parts. Torch gathers a parameter from them
before it is used and takes them as they are where they lie, so they stay there: the values that the module is to show
are copied into them. An optimizer steps the part a parameter looks at, so for the moment of an update that is the row.

Legend: P trainable parameters, T tensors they are in, p one of these.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from roundelay.attached.forward import fingerprint
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import Group, is_sharded, local, look_at, sharded_like

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
SHARDED = "FSDPModule"
REMEDY = (
    "it would average or shard what the session averages. Attach the module itself (`ddp.module` of a wrapper) and "
    "train that one, without the wrapper. Of a framework that wraps by itself, switch its distributed training off: "
    "each learner is to believe that it is alone."
)


def refuse_wrapped(module: nn.Module, rank: int) -> None:
    """Refuse a module that is, or a part of which is, wrapped, sharded or compiled by TorchScript.

    Raises:
        UserError: the module or a part of it is wrapped so; names the part and the wrapper.
    """
    sharded = any(map(is_sharded, module.parameters()))  # by fully_shard, over the processes of one learner
    for name, part in module.named_modules():
        wrapper = next((cls.__name__ for cls in type(part).__mro__ if cls.__name__ in WRAPPERS), None)
        if wrapper and not _alone(part) and not (sharded and wrapper == SHARDED):
            raise UserError(f"rank {rank}: {name or 'the module'} is a {wrapper}: {REMEDY}")
        if isinstance(part, torch.jit.ScriptModule):
            raise UserError(
                f"rank {rank}: {name or 'the module'} is of TorchScript (torch.jit), which reports none of its calls: "
                "attach the module that it was made from and train that one, by torch.compile if it is to be faster."
            )


def refuse_reducer(rank: int, attached: nn.Module | None = None) -> None:
    """Refuse, in a forward, a DistributedDataParallel over several processes made around the module after attach.

    Args:
        attached: the DistributedDataParallel that was given to attach, if one was.

    Raises:
        UserError: the forward runs inside another DistributedDataParallel.
    """
    around = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if around is not None and around is not attached and not _alone(around):
        raise UserError(f"rank {rank}: the attached module is run by a DistributedDataParallel around it: {REMEDY}")


def _alone(part: nn.Module) -> bool:
    """Return True if `part` is torch's DistributedDataParallel over a group of this process alone."""
    return isinstance(part, nn.parallel.DistributedDataParallel) and part.process_group.size() == 1


ROUNDED = (torch.bfloat16, torch.float16)
"""Types of parameters that have a float32 master."""


_gradient_of, _layout_of, _DENSE = attrgetter("grad"), attrgetter("layout"), frozenset([torch.strided])
_requires_gradient = attrgetter("requires_grad")

LISTED_CHARACTERS = 300_000
"""Characters of the longest list that learners show each other; a checksum stands for a longer one."""


def module_facts(module: nn.Module) -> dict[str, list[str]]:
    """Return, in words, the facts that learners' modules must have in common: every parameter and buffer, and checksums
    of frozen parameters, which are never averaged."""
    facts: dict[str, list[str]] = {"parameter of the module": [], "values of frozen parameter": [], "buffer": []}
    for name, p in module.named_parameters():
        facts["parameter of the module"].append(f"{name} {_kind(p)}{'' if p.requires_grad else ', frozen'}")
        if not p.requires_grad:
            values = fingerprint([local(p)], None) or 0
            facts["values of frozen parameter"].append(f"{name}, checksum {values:016x}")
    facts["buffer"] = [f"{name} {_kind(buffer)}" for name, buffer in kept_buffers(module)]
    return {what: _bounded(listed) for what, listed in facts.items()}


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _bounded(listed: list[str]) -> list[str]:
    if sum(map(len, listed)) <= LISTED_CHARACTERS:
        return listed
    digest = hashlib.blake2b("\n".join(listed).encode(), digest_size=8).hexdigest()
    return [f"one of {len(listed)}, of checksum {digest}"]


def device_of(module: nn.Module, rank: int) -> torch.device | None:
    """Return the device that holds the whole module; None for the memory of the host.

    Raises:
        UserError: the module is on several devices or an unknown kind of device, or has parameters without a shape.
    """
    first, where = "", torch.device("cpu")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"rank {rank}: {name} has no shape yet (LazyLinear and the like): call the module once, with inputs of "
                "the shape that they will have, and attach it then."
            )
        if first and tensor.device != where:
            raise UserError(
                f"rank {rank}: {first} is on {where} and {name} on {tensor.device}: attach takes a module that is all "
                "on one device."
            )
        first, where = first or name, tensor.device
    if where.type not in ("cpu", "cuda"):
        raise UserError(f"rank {rank}: {first} is on {where}: attach trains on CPUs and CUDA devices. Move the module.")
    return None if where.type == "cpu" else where


class Parameters:
    """The trainable parameters of a module, in `module.parameters()` order. Frozen parameters stay where they are.

    Raises:
        UserError: no parameter is trainable, or one cannot be part of a row; names that one.
    """

    def __init__(self, module: nn.Module, rank: int) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise UserError(f"rank {rank}: the module has no parameter that requires a gradient: nothing to train.")
        for name, p in named:
            if p.dtype not in (torch.float32, *ROUNDED) or p.layout != torch.strided:
                raise UserError(
                    f"rank {rank}: parameter {name} is {p.dtype}, {p.layout}: trainable parameters must be dense, and "
                    "float32, bfloat16 or float16, for the row they are averaged in is float32."
                )
        self._rank, self.all = rank, [p for _, p in named]
        self.tensors: list[Tensor] = [*self.all]
        """(T) The tensors with the values in this process: the parameters, or its parts of them."""
        self.names = [name for name, _ in named]
        exact = [p.dtype == torch.float32 for p in self.all]
        self.rounded: list[Tensor | None] = [
            None if same else p.detach().contiguous().clone() for p, same in zip(self.all, exact, strict=True)
        ]
        """(T) The tensor the module looks at in place of a float32 view."""
        self._exact = self.alike = all(exact)
        self.graphs = False  # have the last gradients one each (create_graph=True)?
        self._number = {id(p): number for number, p in enumerate(self.all)}
        self.count = sum(p.numel() for p in self.all)

    def settle(self) -> None:
        """Let the module hold the attached parameters themselves, where a forward has put others in their place."""

    def flatten(self) -> Tensor:
        """Return a copy of the values of all trainable parameters, (P,) float32."""
        return torch.cat([p.detach().reshape(-1).float() for p in self.tensors])

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return `vector` (P,) cut into the shapes of the parameters."""
        tensors = self.tensors
        parts = torch.split(vector, [p.numel() for p in tensors])
        return [part.view(p.shape) for part, p in zip(parts, tensors, strict=True)]

    def show(self, views: Sequence[Tensor]) -> None:
        """Make the module's parameters look at `views`. A parameter of float32 is the view itself: a value written
        there is in the module. Any other becomes a rounded copy of its view as it is now."""
        for p, view, rounded in zip(self.all, views, self.rounded, strict=True):
            p.data = view if rounded is None else rounded.copy_(view)

    def shown(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors (T) that the parameters look at after `show(views)`, if nothing has changed that since."""
        pairs = zip(views, self.rounded, strict=True)
        return [view if rounded is None else rounded for view, rounded in pairs]

    def gradients(self, which: Sequence[int]) -> dict[int, Tensor]:
        """Return the gradients of the parameters numbered `which`, by number, without those that have none. Afterwards
        `alike` says whether all of them lie as views of a vector do.

        Raises:
            UserError: a gradient is sparse; names its parameter.
        """
        gradients = list(map(_gradient_of, map(self.all.__getitem__, which)))  # in every step: no loop in Python
        there = list(map(is_not, gradients, repeat(None)))
        found = dict(zip(compress(which, there), compress(gradients, there), strict=True))
        if not _DENSE.issuperset(map(_layout_of, found.values())):
            number = next(number for number, gradient in found.items() if gradient.layout is not torch.strided)
            raise UserError(
                f"rank {self._rank}: the gradient of {self.names[number]} is sparse: use dense gradients "
                "(sparse=False), and an optimizer for them."
            )
        self.alike = self._exact and all(map(Tensor.is_contiguous, found.values()))
        self.graphs = any(map(_requires_gradient, found.values()))
        return {number: gradient.detach() for number, gradient in found.items()} if self.graphs else found

    def multiply_gradients(self, views: Sequence[Tensor], numbers: Sequence[int], factor: Tensor) -> None:
        """Multiply `views`, which were copied from the gradients of the parameters `numbers`, by `factor`; and those
        gradients themselves, unless they are float16, whose range is too small."""
        for view, number in zip(views, numbers, strict=True):
            view.mul_(factor)
            gradient = self.all[number].grad
            if gradient is not None and gradient.dtype != torch.float16:
                gradient.mul_(factor)

    def take_state(self, optimizer: Optimizer) -> None:
        """Bring an optimizer's loaded state into the form that fits these parameters."""

    def numbers(self, parameters: Iterable[Tensor]) -> list[int]:
        """Return the numbers of `parameters` among the trainable ones; others are left out."""
        return [number for number in map(self._number.get, map(id, parameters)) if number is not None]

    @contextmanager
    def updated(self, rows: Sequence[Tensor] | None, gradients: Sequence[Tensor | None]) -> Iterator[None]:
        """Let the parameters be `rows`, in float32, with these `gradients`, in a `with` in which an optimizer steps;
        without `rows` they stay where they are, all in float32. Afterwards call `show`: only their own gradients are
        restored, unless the step has removed them."""
        own = list(map(_gradient_of, self.all))
        if rows is None:
            deque(map(setattr, self.all, repeat("grad"), gradients), 0)
        else:
            for p, row, gradient in zip(self.all, rows, gradients, strict=True):
                p.grad = None
                p.data = row
                p.grad = gradient
        try:
            yield
        except RuntimeError as error:
            if self.graphs and not any(gradient is not None and gradient.requires_grad for gradient in gradients):
                error.add_note(
                    f"rank {self._rank}: the gradients of this loop have a graph (create_graph=True), but not the one "
                    "that this strategy steps by. An optimizer that differentiates gradients in its step (AdaHessian) "
                    "needs a strategy that steps by a learner's own gradient, such as adpsgd, bsp or diloco."
                )
            raise
        finally:
            lost = [gradient is not None and p.grad is None for p, gradient in zip(self.all, gradients, strict=True)]
            for p, kept, rounded, gone in zip(self.all, own, self.rounded, lost, strict=True):
                p.grad = None
                if rounded is not None:
                    p.data = rounded
                p.grad = None if gone else kept


class ShardedParameters(Parameters):
    """This process's own parts of a module's sharded trainable parameters."""

    def __init__(self, module: nn.Module, rank: int) -> None:
        super().__init__(module, rank)
        self._shards = [part for part in module.modules() if hasattr(part, "reshard")]
        self.tensors = [local(p) for p in self.all]
        self.rounded = [*self.tensors]  # none is a view of a vector
        self._exact = self.alike = False
        self.count = sum(part.numel() for part in self.tensors)

    def settle(self) -> None:
        for part in self._shards:  # after a forward without a backward the root keeps its gathered values
            part.reshard()  # type: ignore[operator]
        self.tensors = [local(p) for p in self.all]  # torch pads them at the first forward

    def show(self, views: Sequence[Tensor]) -> None:
        self.settle()
        for part, view in zip(self.tensors, views, strict=True):
            part.copy_(view)

    def shown(self, views: Sequence[Tensor]) -> list[Tensor]:
        return self.tensors

    def gradients(self, which: Sequence[int]) -> dict[int, Tensor]:
        found = {number: local(gradient) for number, gradient in super().gradients(which).items()}
        self.graphs = False  # parts are not differentiated
        return found

    def multiply_gradients(self, views: Sequence[Tensor], numbers: Sequence[int], factor: Tensor) -> None:
        for view, number in zip(views, numbers, strict=True):
            view.mul_(factor)
            gradient = self.all[number].grad
            if gradient is not None:
                local(gradient).mul_(factor)

    @contextmanager
    def updated(self, rows: Sequence[Tensor] | None, gradients: Sequence[Tensor | None]) -> Iterator[None]:
        assert rows is not None, "parts are never stepped where they are"
        own, parts = [p.grad for p in self.all], self.tensors
        for p, row, gradient in zip(self.all, rows, gradients, strict=True):
            look_at(p, row)
            p.grad = None if gradient is None else sharded_like(p, gradient)
        try:
            yield
        finally:
            lost = [gradient is not None and p.grad is None for p, gradient in zip(self.all, gradients, strict=True)]
            for p, kept, part, gone in zip(self.all, own, parts, lost, strict=True):
                look_at(p, part)
                p.grad = None if gone else kept

    def take_state(self, optimizer: Optimizer) -> None:
        with torch.no_grad():
            for p, state in optimizer.state.items():
                for name, value in state.items():
                    if isinstance(value, Tensor) and not is_sharded(value) and value.shape == local(p).shape != ():
                        state[name] = sharded_like(p, value)


def parameters_of(module: nn.Module, rank: int, group: Group | None) -> Parameters:
    """Return the trainable parameters of a module as this process has them."""
    return (Parameters if group is None or group.whole else ShardedParameters)(module, rank)


log = logging.getLogger("roundelay")


def cache_names(module: nn.Module) -> set[str]:
    """Return the names of a module's buffers that are registered with `persistent=False`."""
    return {
        f"{path}.{name}".removeprefix(".")
        for path, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }


def kept_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the names and buffers that the module's own state dict has. Those of `persistent=False` are caches
    (positions, masks) that a module makes anew, of another size where its inputs are longer."""
    caches, kept = cache_names(module), dict[int, tuple[str, Tensor]]()
    for name, one in module.named_buffers(remove_duplicate=False):
        if name not in caches:
            kept.setdefault(id(one), (name, one))
    return list(kept.values())


class Buffers:
    """The buffers of a module (running statistics, mostly) as bytes that others can read, except caches.

    The rule: buffers are no part of the row; no strategy averages them. Each learner keeps its own while it trains. In
    the model to evaluate, buffers of floating point are the mean over living learners, others are those of the lowest
    living rank.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._said = module, False
        self._sizes = {name: buffer.nbytes for name, buffer in kept_buffers(module)}

    def _kept(self) -> list[Tensor]:
        """Return the buffers that the module had when the session began.

        Raises:
            UserError: a buffer had another size when the session began, or is gone; names it.
        """
        found = dict(kept_buffers(self._module))
        others = [name for name, size in self._sizes.items() if name not in found or found[name].nbytes != size]
        if others:
            raise UserError(
                f"buffers {', '.join(others)} have another size than when the module was attached, or are gone: attach "
                "a module whose buffers keep their sizes, or register caches with persistent=False."
            )
        added = [name for name in found if name not in self._sizes]
        if added and not self._said:
            self._said = True
            log.warning(
                "buffers %s were added to the module after it was attached: each learner keeps its own, and no save "
                "has them. Attach after a first batch, or after what makes them.",
                ", ".join(added),
            )
        return [found[name] for name in self._sizes]

    def pack(self) -> Tensor:
        """Return all kept buffers as bytes, (B,) uint8.

        Raises:
            UserError: a buffer had another size when the session began, or is gone; names it.
        """
        parts = [_bytes(buffer).cpu() for buffer in self._kept()]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def unpack(self, packed: Tensor) -> None:
        """Copy the bytes `packed`, (B,) uint8, back into the module's buffers."""
        offset = 0
        with torch.no_grad():
            for buffer in self._kept():
                size = buffer.nbytes
                buffer.copy_(_values(packed[offset : offset + size], buffer))
                offset += size

    def mean(self, packed: Sequence[Tensor]) -> Tensor:
        """Return the buffers of the model to evaluate, (B,), from the living learners' `packed`, (B,) each, by rank."""
        means, offset = [], 0
        for buffer in self._kept():
            end = offset + buffer.nbytes
            each = [_values(one[offset:end], buffer) for one in packed]
            if buffer.is_floating_point():
                means.append(_bytes(torch.stack(each).double().mean(0).to(buffer.dtype)))
            elif buffer.is_complex():
                means.append(_bytes(torch.stack(each).to(torch.complex128).mean(0).to(buffer.dtype)))
            else:
                means.append(packed[0][offset:end].clone())
            offset = end
        return torch.cat(means) if means else torch.empty(0, dtype=torch.uint8)


def _bytes(buffer: Tensor) -> Tensor:
    flat: Any = buffer.detach().reshape(-1).clone()
    return torch.view_as_real(flat).reshape(-1).view(torch.uint8) if flat.is_complex() else flat.view(torch.uint8)


def _values(raw: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        return torch.view_as_complex(raw.clone().view(like.real.dtype).view(-1, 2)).view(like.shape)
    return raw.clone().view(like.dtype).view(like.shape)
