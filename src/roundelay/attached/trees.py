"""Nested values, as optimizers and schedules keep their state, as plain JSON and tensors beside it.

Dicts (with keys of any plain type), lists, tuples, numbers, texts, None and tensors; nothing else, since whoever reads
them runs no code of theirs.
"""

import math
from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from roundelay.core.errors import UserError

Plain = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value of JSON."""


def to_plain(value: object, name: str, tensors: MutableMapping[str, Tensor]) -> Plain:
    """`value` as JSON; its tensors go into `tensors`, in the memory of the host, under names that begin with `name`.

    Raises:
        UserError: it holds something else; names it and its place.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Tensor():
            tensors[name] = _own(value)
            return {"tensor": name}
        case list():
            return [to_plain(item, f"{name}.{number}", tensors) for number, item in enumerate(value)]
        case tuple():
            return {"tuple": [to_plain(item, f"{name}.{number}", tensors) for number, item in enumerate(value)]}
        case dict():
            kind = "counter" if isinstance(value, Counter) else "dict"
            return {kind: [[_key(key, name), to_plain(value[key], f"{name}.{key}", tensors)] for key in value]}
        case _:
            raise UserError(
                f"{name} is a {type(value).__name__}, which a save cannot hold: give numbers, texts, tensors, and "
                "lists and dicts of them."
            )


def from_plain(said: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `to_plain`.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    if isinstance(said, list):
        return [from_plain(item, tensors) for item in said]
    if not isinstance(said, dict):
        return said
    ((kind, content),) = said.items()
    if kind == "tensor":
        return tensors[content]
    if kind in ("dict", "counter"):
        found = {key: from_plain(item, tensors) for key, item in content}
        return found if kind == "dict" else Counter(found)
    if kind == "tuple":
        return tuple(from_plain(item, tensors) for item in content)
    if kind != "float":
        raise ValueError(f"a value of kind {kind!r}")
    return float(content)


def _key(key: object, name: str) -> object:
    if not isinstance(key, str | int | float | bool | None):
        raise UserError(f"{name} has a key that is a {type(key).__name__}: a save holds texts and numbers as keys.")
    return key


def _own(tensor: Tensor) -> Tensor:
    """On the host, in a storage that no other tensor has a part of."""
    plain = tensor.detach()
    return torch.empty_like(plain, device="cpu", memory_format=torch.contiguous_format).copy_(plain)
