"""From a YAML mapping to frozen dataclasses, with every mistake named by its dotted key."""

import contextlib
import dataclasses
import difflib
import json
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from roundelay.core.bounds import check_number
from roundelay.core.errors import UserError
from roundelay.core.files import parse_yaml
from roundelay.core.plugins import OrPlugins, WithPlugins, find_plugins, load_plugin
from roundelay.core.strategy_text import did_you_mean

C = TypeVar("C")
Overrides = Mapping[str, Any] | Sequence[str]
"""Options that differ: `{"training.learners": 2}`, or `["training.learners=2"]` as on the command line."""
CHOICES = "one of"
"""Key of a field's metadata: its type, where it is a word of a registry."""


class _NoSuchName(UserError):
    """A word, or the name of a section, is not one of those allowed."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        UserError: no such file, not YAML (names line and column), or not a mapping.
    """
    try:
        value = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a recipe is a mapping of sections, this is {type(value).__name__}.")
    return value


def override(mapping: dict[str, Any], assignment: str) -> None:
    """Apply one `section.key=value` from the command line; the value is read as YAML."""
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise UserError(f"override {assignment!r}: write it as section.key=value, for example schedule.max_epochs=5.")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"override {assignment!r}: {text!r} is not a value ({error}).") from error
    *sections, last = key.split(".")
    for section in sections:
        mapping = mapping.setdefault(section, {})
        if not isinstance(mapping, dict):
            raise UserError(f"override {assignment!r}: {section} is a value, not a section.")
    mapping[last] = value


def build(cls: type[C], value: object, where: str = "") -> C:
    """Return an instance of dataclass `cls` from a mapping; fields that are dataclasses are built from sections. Where
    a field may be one of several (A | B), their first field, of the same name in all, says which: `rule: anneal`; a
    word in place of the section is that field.

    Raises:
        UserError: an unknown key (with the nearest known one), a missing key, or a value of the wrong type.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{where or 'the recipe'}: expected a section of key: value lines, found {value!r}.")
    fields = {field.name: field for field in in_order(cls) if field.init}
    for key in value:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(fields)}."
            raise UserError(f"unknown option {_join(where, key)}{hint}")
    required = dataclasses.MISSING
    missing = [
        n for n, f in fields.items() if f.default is required and f.default_factory is required and n not in value
    ]
    if missing:
        raise UserError(f"missing option {', '.join(_join(where, name) for name in missing)}.")
    values: dict[str, Any] = {}
    hints = hints_of(cls)

    def convert(key: str) -> None:
        values[key] = _convert(hints[key], value[key], _join(where, key))

    _for_all(value, convert)
    return cls(**values)


def _for_all(keys: Iterable[str], check: Callable[[str], None]) -> None:
    """Check every key; raise one error that names all that are wrong."""
    problems = []
    for key in keys:
        try:
            check(key)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))


def hints_of(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, with bounds of numbers, and the words of registries."""
    chosen = {field.name: field.metadata[CHOICES] for field in in_order(cls) if CHOICES in field.metadata}
    return {**get_type_hints(cls, include_extras=True), **chosen}


def check_values(options: Any, where: str) -> None:
    """Check the numbers and words of a dataclass that may have been made by hand, and of dataclasses in it; `where` is
    the section of its options.

    Raises:
        UserError: a number is outside its bounds, or a word is not one of those allowed; names the option.
    """
    hints = hints_of(type(options))

    def check(name: str) -> None:
        hint, value, path = hints[name], getattr(options, name), _join(where, name)
        more = any(isinstance(one, OrPlugins) for one in get_args(hint))
        hint = get_args(hint)[0] if more and get_origin(get_args(hint)[0]) is not Literal else hint
        for kind in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
            inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, int | float) and not isinstance(one, bool):
                    check_number(inner, one, path)
                elif isinstance(one, str) and (more or get_origin(inner) is Literal):
                    _convert(inner, one, path)
                elif isinstance(inner, type) and isinstance(one, inner) and dataclasses.is_dataclass(one):
                    check_values(one, path)

    _for_all([field.name for field in in_order(type(options))], check)


def one_of(names: WithPlugins[Any], default: str) -> Any:
    """Return a dataclass field for a word: one of `names`, which a type cannot list, and `default` unless given."""
    words = (*([] if default in names.own else [default]), *names.own)
    return dataclasses.field(default=default, metadata={CHOICES: Annotated[Literal[words], OrPlugins(names.kind)]})


def plain(value: object) -> Any:
    """Convert `value` to mappings, lists and scalars, ready for YAML or JSON: the inverse of `build`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in in_order(type(value)) if field.init}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def texts(overrides: Overrides) -> list[str]:
    """Return overrides as the command line writes them."""
    if isinstance(overrides, str):
        raise TypeError(f"overrides are a mapping or a list, not the text {overrides!r}: write [{overrides!r}].")
    if not isinstance(overrides, Mapping):
        return [*overrides]
    return [f"{key}={json.dumps(plain(value))}" for key, value in overrides.items()]


def about_of(part: Any) -> str:
    """Return the first paragraph of the docstring of a class or function, on one line."""
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())


def in_order(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass in reading order: its own, then the keyword-only ones of its bases."""
    own = vars(cls).get("__annotations__", {})
    return sorted(dataclasses.fields(cls), key=lambda field: bool(field.kw_only) and field.name not in own)


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _convert(hint: Any, value: object, where: str) -> Any:  # noqa: PLR0911 one return a kind of type
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated and isinstance(arguments[1], OrPlugins):
        return _own_or_plugin(arguments[0], arguments[1].kind, value, where)
    if origin is Annotated:
        value = _convert(arguments[0], value, where)
        check_number(hint, value, where)
        return value
    if dataclasses.is_dataclass(hint):
        return build(hint, {} if value is None else value, where)  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        return _of_several(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            near = did_you_mean(value, map(str, arguments)) if isinstance(value, str) else ""
            raise _NoSuchName(f"{where} is {value!r}: choose one of {', '.join(map(str, arguments))}.{near}")
        return value
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} is {value!r}: expected a list.")
        alike = origin is Sequence or (len(arguments) == 2 and arguments[1] is ...)
        kinds = [arguments[0]] * len(value) if alike else list(arguments)
        if len(kinds) != len(value):
            raise UserError(f"{where} is {value!r}: expected {len(kinds)} values.")
        return tuple(
            _convert(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
        )
    if origin in (dict, Mapping) or (origin is not None and issubclass(origin, Mapping)):
        if not isinstance(value, Mapping):
            raise UserError(f"{where} is {value!r}: expected key: value pairs.")
        return {str(key): _convert(arguments[1], item, _join(where, key)) for key, item in value.items()}
    return _scalar(hint, value, where)


def _own_or_plugin(own: Any, kind: str, value: object, where: str) -> Any:
    """Check a word, or build a section of one of several classes: ours, or those of other packages."""
    try:
        return _convert(own, value, where)
    except _NoSuchName as error:
        others, given = find_plugins(kind), value.get("name") if isinstance(value, Mapping) else value
        if (found := others.get(str(given))) is None:
            hint = f" Other packages bring {', '.join(others)}." if others else ""
            raise UserError(f"{error}{hint}") from error
        if get_origin(own) is Literal:
            return given
        return build(load_plugin(found), value if isinstance(value, Mapping) else {"name": value}, where)


def _of_several(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    """Check a value of one of several types: null, a section, one of some words, or a value of the first other type."""
    if value is None and type(None) in kinds:
        return None
    if len(sections := [kind for kind in kinds if dataclasses.is_dataclass(kind)]) > 1:
        return _build_one_of(sections, {} if value is None else value, where)
    words = [kind for kind in kinds if get_origin(kind) is Literal]
    if words and isinstance(value, str):
        return _convert(words[0], value, where)
    return _convert(next(kind for kind in kinds if kind is not type(None) and kind not in words), value, where)


def _build_one_of(kinds: list[Any], value: object, where: str) -> Any:
    """Return a section that may be one of several dataclasses: the first field of each, of the same name in all, is
    the tag that tells them apart. The first class whose tag may have that value is built; without a tag, the first
    class."""
    tag = dataclasses.fields(kinds[0])[0].name
    if isinstance(value, str):
        value = {tag: value}
    if not isinstance(value, Mapping):
        return build(kinds[0], value, where)
    hints = [get_type_hints(kind)[tag] for kind in kinds]
    given = value.get(tag, get_args(hints[0])[0])
    fits = [k for k, h in zip(kinds, hints, strict=True) if get_origin(h) is not Literal or given in get_args(h)]
    if not fits:
        raise _NoSuchName(f"{where}.{tag} is {given!r}: choose one of {', '.join(get_args(h)[0] for h in hints)}.")
    known = [{field.name for field in dataclasses.fields(kind)} for kind in (fits[0], *kinds)]
    for key in value:
        if key not in known[0] and any(key in names for names in known):
            raise UserError(
                f"{_join(where, key)} is no option of {tag} {given}. Leave it out or choose another "
                f"{_join(where, tag)}; on the command line {where}={{{tag}: {given}}} replaces the whole section."
            )
    return build(fits[0], value, where)


def _scalar(kind: type, value: object, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, float) and math.isnan(value):
        raise UserError(f"{where} is not a number (nan): expected {_NAMES.get(kind, kind.__name__)}.")
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise UserError(f"{where} is {value!r}: expected {_NAMES.get(kind, kind.__name__)}.")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", Path: "a path"}
