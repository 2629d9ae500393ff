"""Before a module's forward: the session begins a step, and sees what the module is called with."""

import copyreg
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

TENSORS, BYTES, DEPTH = 4, 2**20, 4
"""Of a module's inputs, so many tensors are looked at, so many bytes of each, in lists and dicts so deep."""


class Begins(Protocol):
    """A hook's report of a forward."""

    @property
    def open(self) -> bool: ...

    def before_forward(self, inputs: object) -> None: ...


class BeforeForward:
    """A forward pre-hook. Copies of a module are not attached, and have none; where a class of modules copies itself
    in a way of its own, the copied hook does nothing."""

    def __init__(self, session: Begins | None = None) -> None:
        self.session = session

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self.session is not None:
            self.session.before_forward((arguments, named))

    def __deepcopy__(self, memo: object) -> "BeforeForward":
        return BeforeForward()

    def __reduce__(self) -> tuple[type["BeforeForward"], tuple[()]]:
        return BeforeForward, ()


class PickledWithoutHook:
    """Modules of some classes are copied and pickled without our hook, until this is removed and every other session's
    like it. A class that says by copyreg itself how it is copied keeps that."""

    _sessions: ClassVar[Counter[type[nn.Module]]] = Counter()  # that need it, by class

    def __init__(self, kinds: Iterable[type[nn.Module]]) -> None:
        self._kinds = [kind for kind in {*kinds} if copyreg.dispatch_table.get(kind, _without_hook) is _without_hook]
        for kind in self._kinds:
            copyreg.pickle(kind, _without_hook)
        self._sessions.update(self._kinds)

    def remove(self) -> None:
        """Undo it."""
        self._sessions.subtract(self._kinds)
        for kind in self._kinds:
            if not self._sessions[kind]:
                del self._sessions[kind]
                if copyreg.dispatch_table.get(kind) is _without_hook:
                    del copyreg.dispatch_table[kind]


def hook_into(module: nn.Module, session: Begins) -> list[RemovableHandle | PickledWithoutHook]:
    """Put the hook where calls use parameters, so that whatever part is called first finds them right. Of a compiled
    module only the root has it, whose hook is not compiled."""
    hook, owners = BeforeForward(session), _owners(module)
    handles = [part.register_forward_pre_hook(hook, with_kwargs=True) for part in owners]
    return [*handles, PickledWithoutHook(type(part) for part in owners)]


def _without_hook(part: nn.Module) -> str | tuple[Any, ...]:
    """A module as it is copied and pickled, without our hook: a model that is saved whole while it is attached is
    loaded where Roundelay is not known, and by `torch.load` with weights_only."""
    found = part.__reduce_ex__(2)
    if isinstance(found, str) or len(found) < 3 or not isinstance(found[2], dict):
        return found
    make, arguments, state, *rest = found
    hooks = state.get("_forward_pre_hooks", {})
    kept = OrderedDict((number, hook) for number, hook in hooks.items() if not isinstance(hook, BeforeForward))
    if len(kept) < len(hooks):
        named = state["_forward_pre_hooks_with_kwargs"]
        named = OrderedDict((number, value) for number, value in named.items() if number in kept)
        state = {**state, "_forward_pre_hooks": kept, "_forward_pre_hooks_with_kwargs": named}
    return make, arguments, state, *rest


def other_session(module: nn.Module) -> bool:
    """True if the module, or a part of it, is attached already."""
    hooks = (hook for part in module.modules() for hook in part._forward_pre_hooks.values())
    return any(isinstance(hook, BeforeForward) and hook.session is not None and hook.session.open for hook in hooks)


def _owners(module: nn.Module) -> list[nn.Module]:
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        return [module]
    return [module, *(part for part in module.modules() if part is not module and part._parameters)]


def fingerprint(inputs: object, most: int | None = TENSORS) -> int | None:
    """A number for what a module is called with, equal for equal tensors, 63 bits; None: there is no tensor in it. At
    most so many tensors are looked at; None: all."""
    digest, found = hashlib.blake2b(digest_size=8), 0
    for tensor in _tensors(inputs, DEPTH):
        flat = tensor.detach().reshape(-1)[: BYTES // max(1, tensor.element_size())].cpu().contiguous()
        digest.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(_bytes(flat))
        found += 1
        if found == most:
            break
    return int.from_bytes(digest.digest(), "little") >> 1 if found else None


def _bytes(flat: Tensor) -> bytes:
    if not flat.numel():
        return b""
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _tensors(found: object, depth: int) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        if found.layout == torch.strided and not found.is_quantized and found.device.type != "meta":
            yield found
    elif depth and isinstance(found, Mapping):
        for value in found.values():
            yield from _tensors(value, depth - 1)
    elif depth and isinstance(found, list | tuple):
        for value in found:
            yield from _tensors(value, depth - 1)
