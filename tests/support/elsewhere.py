"""Rows that a process has on a device, for which a processor stands in: nothing else of the process is there."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.runtime.procs.memory.arena import Arena

BETWEEN = frozenset(("copy_", "to", "cpu", "__get__", "__set__"))
"""Functions that take tensors on two devices, or on any."""


class Elsewhere(Tensor):
    """A tensor that refuses what one on a GPU would: to be looked at as an array, or to meet one in the memory of the
    host."""

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        name = function.__name__
        if name in ("numpy", "__array__"):
            raise RuntimeError(f"{name} of a tensor on a device")
        if name == "cpu":
            with torch._C.DisableTorchFunctionSubclass():
                return arguments[0].clone().as_subclass(Tensor)
        flat = [one for given in arguments for one in (given if isinstance(given, list | tuple) else [given])]
        if name not in BETWEEN and any(isinstance(one, Tensor) and not isinstance(one, cls) for one in flat):
            raise RuntimeError(f"{name} of tensors on two devices")
        found = super().__torch_function__(function, types, tuple(arguments), dict(named or {}))  # type: ignore[no-untyped-call]
        return arguments[0] if name == "copy_" else found


def lie_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """Let what an arena of this process has on devices be of that kind."""
    vector = Arena.vector

    def found(self: Arena, name: str, rank: int) -> Tensor:
        one, there = vector(self, name, rank), self.on_devices
        if there is None or name not in there.vectors or there.vectors[name][rank] is None:
            return one
        return one.as_subclass(Elsewhere)

    patch.setattr(Arena, "vector", found)
