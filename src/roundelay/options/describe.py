"""Writes `options/known.json`: the options of strategies, from the dataclasses that they are.

python -m roundelay.options.describe
"""

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from roundelay.algorithms.codecs import CODECS
from roundelay.core.codec import Codec
from roundelay.core.configure import CHOICES, in_order, plain
from roundelay.core.files import write_text
from roundelay.core.flat import CHUNK
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.strategies import STRATEGIES

KNOWN = Path(__file__).with_name("known.json")
_SCALARS = {Any: "any", type(None): "null", bool: "bool", int: "int", float: "float", str: "str", Path: "path"}
_ELSEWHERE = (VirtualCluster,)  # a file of its own, or a whole section: docs/simulator.md


def describe() -> dict[str, Any]:
    """Return the content of `options/known.json`, from the dataclasses."""
    sections: dict[str, Any] = {}
    strategies = {}
    for name, cls in STRATEGIES.items():
        describe_fields(cls, sections)
        strategies[name] = {"section": section_of(cls), "about": about_of(cls)}
    codecs = {name: {"about": about_of(type(codec)), **_sizes(codec)} for name, codec in CODECS.items()}
    return {"sections": sections, "strategies": strategies, "codecs": codecs}


def write_known(file: Path, known: dict[str, Any]) -> None:
    """Write what is known as JSON."""
    write_text(file, json.dumps(known, indent=1, allow_nan=False) + "\n")


def names(union: Any) -> dict[str, Any]:
    """Return the section of each class of the union, by the value that tells it apart, and its first sentence."""
    found = {}
    for cls in get_args(union):
        (name,) = get_args(get_type_hints(cls)[dataclasses.fields(cls)[0].name])
        found[name] = {"section": section_of(cls), "about": about_of(cls)}
    return found


def _sizes(codec: Codec) -> dict[str, str]:
    """Return the bits of an element in a large vector, and the largest error of one."""
    of = "itself" if codec.block == 1 else f"the largest of its block of {codec.block:,}"
    error = f"1/{1 / codec.error:g} of {of}" if codec.error else "none"
    return {"bits": f"{8 * codec.bytes_of(CHUNK) / CHUNK:.3g}", "error": error}


def about_of(cls: type) -> str:
    """Return the first paragraph of the docstring of a dataclass, on one line."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def section_of(cls: type) -> str:
    """Return the name of the section that a dataclass is."""
    return f"{cls.__module__}.{cls.__qualname__}"


def describe_fields(cls: type, sections: dict[str, Any]) -> None:
    """Add the fields of a dataclass, and of those that are in it, to `sections`."""
    if section_of(cls) in sections:
        return
    fields = sections[section_of(cls)] = {}
    hints = get_type_hints(cls)
    for field in in_order(cls):
        if field.init:
            choices = field.metadata.get(CHOICES)
            kind = {CHOICES: list(choices)} if choices else _kind(hints[field.name], sections)
            fields[field.name] = {"type": kind, **_default(field)}


def _default(field: "dataclasses.Field[Any]") -> dict[str, Any]:
    if field.default is not dataclasses.MISSING:
        return {"default": plain(field.default)}
    if field.default_factory is not dataclasses.MISSING:
        return {"default": plain(field.default_factory())}
    return {}


def _kind(hint: Any, sections: dict[str, Any]) -> Any:  # noqa: PLR0911 one return a kind of type
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _ELSEWHERE:
        return "any"
    if dataclasses.is_dataclass(hint):
        describe_fields(hint, sections)  # type: ignore[arg-type]
        return {"section": section_of(hint)}  # type: ignore[arg-type]
    if origin is Literal:
        return {"one of": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"either": [_kind(one, sections) for one in arguments]}
    if origin is Sequence or (origin is tuple and arguments[1:] == (...,)):
        return {"list": _kind(arguments[0], sections)}
    if origin is Mapping:
        return {"map": _kind(arguments[1], sections)}
    return _SCALARS[hint]


if __name__ == "__main__":
    write_known(KNOWN, describe())
