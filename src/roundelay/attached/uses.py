"""Uses of parameters that no module's hook reports: `layer.forward(x)`, `F.linear(x, layer.weight)`, a value read.

Where an optimizer has been asked to step and others have not, its parameters are those of before the step until it is
complete. For that while their class is one that tells the session first. Torch asks the class of a tensor before it
computes with it (`__torch_function__`), so whatever reads their values is seen, and nothing else costs anything.
"""

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")
"""Attributes of a tensor through which its values are read; the others say what it is, or are its gradient."""
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
"""Methods that do not look at them."""


@final
class Uses:
    """Watched parameters of one session; `used` is called before the first use, and is to `forget` them."""

    def __init__(self, used: Callable[[], None]) -> None:
        self._kind = _watched_by(weakref.WeakMethod(used))
        self._watched: list[nn.Parameter] = []

    def watch(self, parameters: Iterable[nn.Parameter]) -> None:
        """Watch these too. A parameter of a class of its own is left as it is."""
        for p in parameters:
            if type(p) is nn.Parameter:
                p.__class__ = self._kind
                self._watched.append(p)

    def forget(self) -> None:
        """Make them ordinary parameters again."""
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
