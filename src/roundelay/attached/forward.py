"""Before a module's forward: the session begins a step, and sees the module's arguments.

No module's hook reports `layer.forward(x)`, `F.linear(x, layer.weight)`, or a value that is read. Where an optimizer
has been asked to step and others have not, its parameters are those of before the step until it is complete. For that
while their class is one that tells the session first. Torch asks the class of a tensor before it computes with it
(`__torch_function__`), so every read of their values is seen, and nothing else costs anything.

Beside torch.compile: a compiled model has the graphs that it has without us, and its calls are heard of.

Code that Dynamo inlines is traced once and not run again, so our hook in it has no effect. On a module that is called
itself it runs as ever (`left_alone`). A whole function that calls the module, or a container of torch's own, is inlined
with the module's hooks; such a call is heard of where it begins, in the wrapper that `torch.compile` returns.
"""

import copy
import copyreg
import hashlib
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from operator import attrgetter, contains, delitem, setitem
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame

from roundelay.core.errors import UserError

if TYPE_CHECKING:
    from roundelay.attached.steps import Steps

F = TypeVar("F", bound=Callable[..., Any])
CALLED_FIRST = "_callback_from_stance"
"""Function of torch._dynamo.eval_frame that every compiled function calls first, at each call (torch 2.6 and later). It
is private: without it a step begins when its gradient is taken, and a session says so where that matters."""


def never_compiled(function: F) -> F:
    """Return `function` in a form that is never compiled: a compiled function that calls it is split there, and torch
    refuses, with our reason, one that must be a single graph."""
    found: F = torch.compiler.disable(  # type: ignore[no-untyped-call]
        function,
        reason="a step of roundelay.attach talks with other learners and cannot be compiled: leave it out of a "
        "function that is compiled with fullgraph=True",
    )
    return found


def left_alone(function: F) -> F:
    """Return `function` such that torch.compile runs its own frame as it is, where uncompiled code calls it. Where
    compiled code inlines it, it is traced: let it ask torch.compiler.is_compiling() and return."""
    eval_frame.skip_code(function.__code__)
    return function


@final
class CompiledCalls:
    """Reports of calls of compiled functions to the method `report`, until removed or its object is gone."""

    _all: ClassVar["weakref.WeakSet[CompiledCalls]"] = weakref.WeakSet()
    _original: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, report: Callable[[], None]) -> None:
        kind, self._report = CompiledCalls, weakref.WeakMethod(report)
        if kind._original is None and hasattr(eval_frame, CALLED_FIRST):
            original = kind._original = getattr(eval_frame, CALLED_FIRST)

            def callback_from_stance(callback: Any) -> Any:
                if callback is not None and callback is not False:  # else nothing is compiled there
                    for calls in [*kind._all]:
                        if (report := calls._report()) is not None:
                            report()
                return original(callback)

            setattr(eval_frame, CALLED_FIRST, callback_from_stance)
        kind._all.add(self)

    def remove(self) -> None:
        """Stop the reports."""
        kind = CompiledCalls
        kind._all.discard(self)
        if not kind._all and kind._original is not None:
            setattr(eval_frame, CALLED_FIRST, kind._original)
            kind._original = None


TENSORS, BYTES, DEPTH = 4, 2**20, 4
"""Tensors of a module's inputs that are looked at, bytes of each, and depth of lists and dicts."""
_hooks_of, _with_names_of = attrgetter("_forward_pre_hooks"), attrgetter("_forward_pre_hooks_with_kwargs")


class NotScripted(UserError, AttributeError):
    """Error for an attached module that was given to `torch.jit.script`."""


class BeforeForward:
    """A forward pre-hook. Copies of a module are not attached, and have none; where a class of modules copies itself
    in a way of its own, the copied hook does nothing."""

    def __init__(self, session: "Steps | None" = None) -> None:
        self.session = session

    @property
    def __name__(self) -> str:
        """
        Raises:
            NotScripted: a hook that is to be scripted is asked for its name, and this one cannot be.
        """
        raise NotScripted(
            "torch.jit.script of an attached module: its calls would not be heard of. Script a copy, "
            "torch.jit.script(copy.deepcopy(module)), inside `with session.consensus():` for the common model; or the "
            "module itself after session.close()."
        )

    @left_alone
    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling() and self.session is not None and not torch._C._get_tracing_state():
            self.session.before_forward((arguments, named))

    def __deepcopy__(self, memo: object) -> "BeforeForward":
        return BeforeForward()

    def __reduce__(self) -> tuple[type["BeforeForward"], tuple[()]]:
        return BeforeForward, ()


class PickledWithoutHook:
    """Copying and pickling of modules of the classes `kinds` without our hook, until this object and those of other
    sessions are removed. A class that has registered its own way of copying with copyreg keeps it."""

    _sessions: ClassVar[Counter[type[nn.Module]]] = Counter()  # that need it, by class

    def __init__(self, kinds: Iterable[type[nn.Module]]) -> None:
        self._kinds = [kind for kind in {*kinds} if copyreg.dispatch_table.get(kind, _without_hook) is _without_hook]
        for kind in self._kinds:
            copyreg.pickle(kind, _without_hook)
        self._sessions.update(self._kinds)

    def remove(self) -> None:
        """Let the classes be pickled as before, where no other session needs them pickled without the hook."""
        self._sessions.subtract(self._kinds)
        for kind in self._kinds:
            if not self._sessions[kind]:
                del self._sessions[kind]
                if copyreg.dispatch_table.get(kind) is _without_hook:
                    del copyreg.dispatch_table[kind]


@final
class ForwardHooks:
    """The session's forward pre-hook on every part of a module that uses parameters, so that whichever is called first
    finds them right. Calls of compiled functions, where it has no effect, are reported by `CompiledCalls`.

    Once a step has begun the hook has nothing to do until its gradient is taken, but on the root, where it looks at
    further forwards. Then it rests: torch takes a longer way through each module that has a hook, which for 28 modules
    costs a quarter of a millisecond a step.

    Args:
        sharded: the loop calls the root alone, and the values that parts are gathered from are to be right before.
    """

    def __init__(self, module: nn.Module, session: "Steps", sharded: bool = False) -> None:
        self.session, hook, owners = session, BeforeForward(session), [module] if sharded else _owners(module)
        self._pickled = PickledWithoutHook(type(part) for part in owners)
        self._handles = [part.register_forward_pre_hook(hook, with_kwargs=True, prepend=sharded) for part in owners]
        self._parts = {id(part) for part in owners}
        self._hook = hook
        self._resting = [(part, handle.id) for part, handle in zip(owners, self._handles, strict=True)]
        self._inner, self._keys = owners[1:], [handle.id for handle in self._handles[1:]]
        self._rests = False
        self._calls = CompiledCalls(session.before_call)
        _sessions.add(self)

    def rest(self) -> None:
        """Take the hook off each part where it is the only one, until `wake`. Beside others it keeps its place."""
        self._rests, (root, _) = True, self._resting[0]
        stays = root._compiled_call_impl is None  # else its calls are heard of as those of compiled functions
        inner = list(map(_hooks_of, self._inner))
        if stays and all(map(contains, inner, self._keys)) and sum(map(len, inner)) == len(inner):
            deque(map(delitem, inner, self._keys), 0)  # nearly always, and in every step: no loop in Python
            deque(map(delitem, map(_with_names_of, self._inner), self._keys), 0)
            return
        for part, key in self._resting[stays:]:
            if len(hooks := part._forward_pre_hooks) == 1 and hooks.pop(key, None) is not None:
                del part._forward_pre_hooks_with_kwargs[key]

    def wake(self) -> None:
        """Put the hook back on each part, before any other hook that has been added meanwhile."""
        if not self._rests:
            return
        self._rests, (root, kept) = False, self._resting[0]
        inner = list(map(_hooks_of, self._inner))
        if not any(inner) and kept in root._forward_pre_hooks:
            deque(map(setitem, inner, self._keys, repeat(self._hook)), 0)
            deque(map(setitem, map(_with_names_of, self._inner), self._keys, repeat(True)), 0)
            return
        for part, key in self._resting:
            hooks = part._forward_pre_hooks
            if key not in hooks:
                later = {**hooks}
                hooks.clear()
                hooks[key] = self._hook
                hooks.update(later)
                part._forward_pre_hooks_with_kwargs[key] = True

    def remove(self) -> None:
        """Take the hook off all parts for good."""
        _sessions.discard(self)
        for handle in self._handles:
            handle.remove()
        self._calls.remove()
        self._pickled.remove()
        self._handles, self._resting, self._inner, self._keys = [], [], [], []
        del self.session, self._hook

    def of_part(self, module: nn.Module) -> bool:
        """Return True if the session is open and `module` has a part in common with its module."""
        return self.session.open and any(id(part) in self._parts for part in module.modules())


_sessions: "weakref.WeakSet[ForwardHooks]" = weakref.WeakSet()


def _without_hook(part: nn.Module) -> str | tuple[Any, ...]:
    """Return a module as it is copied and pickled, without our hook. So a model that is saved whole while it is
    attached can be loaded where Roundelay is not known, and by `torch.load` with weights_only."""
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
    """Return True if `module`, or a part of it, is attached already."""
    return any(hooks.of_part(module) for hooks in list(_sessions))


def _owners(module: nn.Module) -> list[nn.Module]:
    return [module, *(part for part in module.modules() if part is not module and part._parameters)]


def fingerprint(inputs: object, most: int | None = TENSORS) -> int | None:
    """Return a number of 63 bits for a module's arguments, equal for equal tensors; None if there is no tensor in them.
    At most `most` tensors are read; None: all."""
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


VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")
"""Attributes of a tensor through which its values are read; the others describe it, or are its gradient."""
OF_IT = (
    Tensor.data_ptr,
    Tensor.dim,
    Tensor.element_size,
    Tensor.is_contiguous,
    Tensor.nelement,
    Tensor.numel,
    Tensor.register_hook,
    Tensor.register_post_accumulate_grad_hook,
    Tensor.requires_grad_,
    Tensor.size,
    Tensor.stride,
)
"""Methods of a tensor that do not read its values."""


@final
class Uses:
    """Parameters watched for reads of their values. `used` is called before the first read, and is to call `forget`."""

    def __init__(self, used: Callable[[], None]) -> None:
        self._kind = _watched_by(weakref.WeakMethod(used))
        self._watched: list[nn.Parameter] = []

    def watch(self, parameters: Iterable[nn.Parameter]) -> None:
        """Watch these parameters too, except those of a class other than nn.Parameter."""
        for p in parameters:
            if type(p) is nn.Parameter:
                p.__class__ = self._kind
                self._watched.append(p)

    def forget(self) -> None:
        """Make all watched parameters ordinary ones again."""
        while self._watched:
            _release(self._watched.pop())


def _release(p: nn.Parameter) -> None:
    p.__class__ = nn.Parameter


def _watched_by(used: "weakref.WeakMethod[Callable[[], None]]") -> type[nn.Parameter]:
    class Parameter(nn.Parameter):
        """A parameter whose step is not complete."""

        @classmethod
        def __torch_function__(
            cls, function: Any, kinds: object, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
        ) -> Any:
            if _reads(function) and (told := used()) is not None:
                told()
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **(named or {}))

        def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
            if (told := used()) is not None:
                told()
            _release(self)  # and so the copy is an ordinary one
            return copy.deepcopy(self, memo)

    return Parameter


def _reads(function: Any) -> bool:
    """Return True if a function of torch may read the values of its arguments."""
    attribute = getattr(function, "__self__", None)
    if function.__name__ in ("__get__", "__set__"):
        return getattr(attribute, "__name__", "") in VALUES
    return function not in OF_IT
