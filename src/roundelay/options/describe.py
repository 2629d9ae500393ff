"""Writes `options/known.json`: the options of strategies, from the dataclasses that they are. A field's type gives the
values and bounds, and the docstring beneath it, or beneath it in a base, its meaning.

python -m roundelay.options.describe
"""

import ast
import dataclasses
import inspect
import json
import math
import textwrap
import types
from abc import ABC
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from roundelay.algorithms.codecs import CODECS
from roundelay.core.bounds import bounds_of
from roundelay.core.codec import Codec
from roundelay.core.configure import about_of, hints_of, in_order, plain
from roundelay.core.files import write_text
from roundelay.core.flat import CHUNK
from roundelay.core.plugins import OrPlugins
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.strategies import STRATEGIES
from roundelay.strategies.dpsgd import TOPOLOGIES

KNOWN = Path(__file__).with_name("known.json")
_SCALARS = {Any: "any", type(None): "null", bool: "bool", int: "int", float: "float", str: "str", Path: "path"}
_PROPER = ("Gaussians", "Nesterov", "SpecAugment")
"""Words that keep their capital inside a sentence."""
_ELSEWHERE = (VirtualCluster,)  # a file of its own, or a whole section: docs/simulator.md


def describe() -> dict[str, Any]:
    """Return the content of `options/known.json`, from the dataclasses."""
    sections: dict[str, Any] = {}
    strategies: dict[str, Any] = {}
    for name, cls in STRATEGIES.own.items():
        describe_fields(cls, sections)
        strategies[name] = {"section": section_of(cls), "about": about_of(cls)}
    codecs = {name: describe_codec(codec) for name, codec in CODECS.own.items()}
    return {"sections": sections, "strategies": strategies, "codecs": codecs, "topologies": dict(TOPOLOGIES)}


def describe_codec(codec: Codec) -> dict[str, str]:
    """Return a sentence on a codec, its bits for an element of a large vector, and its largest error of an element."""
    of = "itself" if codec.block == 1 else f"the largest of its block of {codec.block:,}"
    error = f"1/{1 / codec.error:g} of {of}" if codec.error else "none"
    return {"about": about_of(type(codec)), "bits": f"{8 * codec.bytes_of(CHUNK) / CHUNK:.3g}", "error": error}


def write_known(file: Path, known: dict[str, Any]) -> None:
    """Write `known` as JSON, one option a line."""
    write_text(file, _laid_out(known) + "\n")


def _laid_out(value: Any, depth: int = 0) -> str:
    if depth > 2 or not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    before = "\n" + " " * depth
    return (
        "{"
        + ",".join(f"{before} {json.dumps(key)}: {_laid_out(one, depth + 1)}" for key, one in value.items())
        + before
        + "}"
    )


def names(union: Any) -> dict[str, Any]:
    """Return, for each class of a union, its section and first sentence, by the value of its first field."""
    found = {}
    for cls in get_args(union):
        (name,) = get_args(get_type_hints(cls)[dataclasses.fields(cls)[0].name])
        found[name] = {"section": section_of(cls), "about": about_of(cls)}
    return found


def section_of(cls: type) -> str:
    """Return the name of the section for a dataclass."""
    return f"{cls.__module__}.{cls.__qualname__}"


def describe_fields(cls: type, sections: dict[str, Any]) -> None:
    """Add the fields of a dataclass, and of dataclasses in it, to `sections`."""
    if section_of(cls) in sections:
        return
    fields = sections[section_of(cls)] = {}
    for field in in_order(cls):
        if field.init:
            kind = _kind(hints_of(cls)[field.name], sections)
            fields[field.name] = {"type": kind, **_default(field), "about": words_of(cls, field.name)}


def words_of(cls: type, name: str) -> str:
    """Return the meaning of a dataclass's field `name`, as a part of a sentence; "" if it has no docstring, as
    sections."""
    texts = (
        _beneath(base).get(name) for base in cls.__mro__ if dataclasses.is_dataclass(base) or issubclass(base, ABC)
    )
    text = " ".join(next(filter(None, texts), "").split()).removesuffix(".")
    return (
        text if text.startswith(_PROPER) or text[1:2].isupper() or text[1:2].isdigit() else text[:1].lower() + text[1:]
    )


@cache
def _beneath(cls: type) -> dict[str, str]:
    """Return the docstrings beneath the fields of a class."""
    if cls.__module__ in ("abc", "typing"):
        return {}
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    found = {}
    for field, below in pairwise(getattr(made, "body", ())):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(text))):
                found[name] = text
    return found


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
    if origin is Annotated and isinstance(arguments[1], OrPlugins):
        return {**_kind(arguments[0], sections), "more": arguments[1].kind}
    if bounds := bounds_of(hint):
        given = {name: value for name, value in dataclasses.asdict(bounds).items() if value not in (None, math.inf)}
        return {"number": _SCALARS[arguments[0]], **given}
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
