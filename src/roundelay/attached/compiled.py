"""Beside torch.compile: a compiled model has the graphs that it has without us, and its calls are heard of.

What Dynamo inlines is traced once and not run again, so a hook of ours is nothing there. On a module that is called
itself it runs as ever (`left_alone`). A whole function that calls the module, or a container of torch's own, is inlined
with the module's hooks; such a call is heard of where it begins, in the wrapper that `torch.compile` returns.
"""

import weakref
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, final

import torch
from torch._dynamo import eval_frame

F = TypeVar("F", bound=Callable[..., Any])
CALLED_FIRST = "_callback_from_stance"
"""Function of torch._dynamo.eval_frame that every compiled function calls first, at each call (torch 2.6 and later). It
is private: without it a step begins when its gradient is taken, and a session says so where that matters."""


def never_compiled(function: F) -> F:
    """Return the function as one that runs as it is wherever it is called from: a compiled function is cut in two
    there, and one that is to be one graph is refused by torch with our reason."""
    found: F = torch.compiler.disable(  # type: ignore[no-untyped-call]
        function,
        reason="a step of roundelay.attach talks with other learners and cannot be compiled: leave it out of a "
        "function that is compiled with fullgraph=True",
    )
    return found


def left_alone(function: F) -> F:
    """Return the function, whose own frame is run as it is where compiled code calls it from code that is not.
    Inlined it is traced: let it ask torch.compiler.is_compiling() and return."""
    eval_frame.skip_code(function.__code__)
    return function


@final
class CompiledCalls:
    """Reports of calls of compiled functions, until removed, or until the object whose method `report` is has gone."""

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
        """Report nothing more."""
        kind = CompiledCalls
        kind._all.discard(self)
        if not kind._all and kind._original is not None:
            setattr(eval_frame, CALLED_FIRST, kind._original)
            kind._original = None
