"""Options and their types, known without loading torch or any model.

`known.json` is taken from the dataclasses that the options are (`python -m roundelay.options.describe` writes that of
strategies, and a test holds it to them): types, bounds, defaults, and the meaning of each option. So a wrong name is
found in the time it takes to read a small file, before seconds are spent on loading torch.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from importlib import import_module, resources
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Literal, Union, final

import yaml

from roundelay.core.bounds import Bounds
from roundelay.core.configure import about_of, build
from roundelay.core.plugins import OrPlugins, WithPlugins, find_plugins, load_plugin
from roundelay.core.strategy_text import check_choice, parse_strategy

_SCALARS: dict[str, Any] = {
    "any": Any,
    "null": type(None),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "path": Path,
}
_JSON = {
    "null": "null",
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "path": "string",
    "least": "minimum",
    "above": "exclusiveMinimum",
    "most": "maximum",
    "below": "exclusiveMaximum",
}
"""Types and bounds as JSON Schema has them."""
_NAMES = {
    "any": "anything",
    "null": "null",
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "str": "word",
    "path": "path",
}


@dataclass(frozen=True)
class Option:
    """One option: its dotted key, the values it takes in words, and its meaning."""

    key: str
    values: str
    value: str | None  # that it has, as it would be written in YAML; None: it must be given
    about: str


@final
class KnownOptions:
    """The described options of a package.

    Args:
        source: package whose folder `options` has the description in `known.json`, or the description itself.

    Attributes:
        known: the description; its `sections` are fields and types by the name of a dataclass.
    """

    def __init__(self, source: str | dict[str, Any]) -> None:
        self._source = source

    @cached_property
    def known(self) -> dict[str, Any]:
        if isinstance(self._source, dict):
            return self._source
        file = resources.files(self._source) / "options" / "known.json"
        return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def fields(self, section: str) -> dict[str, Any]:
        """Return the fields of a section, by name."""
        return self.known["sections"][section]  # type: ignore[no-any-return]

    def options(self, section: str, given: Mapping[str, Any], where: str) -> Iterator[Option]:
        """Yield the options of a section in order, with the values they have in `given` or else by default; their keys
        begin with `where`."""
        for name, field in self.fields(section).items():
            key, kind = f"{where}.{name}" if where else name, field["type"]
            value = given.get(name, field.get("default"))
            if chosen := self._section_of(kind, value):
                tag = {next(iter(self.fields(chosen))): value} if isinstance(value, str) else {}
                yield from self.options(chosen, value if isinstance(value, Mapping) else tag, key)
                continue
            shown = {**field, "default": given[name]} if name in given else field
            yield Option(key, values_of(kind), yaml_of(shown), field["about"])

    def schema(self, section: str) -> dict[str, Any]:
        """Return a JSON Schema of a section, by which editors complete and check a YAML file."""
        sections = {
            name: {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    key: {**schema_of(field["type"]), "description": field["about"]} for key, field in fields.items()
                },
            }
            for name, fields in self.known["sections"].items()
        }
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": f"#/$defs/{section}",
            "$defs": sections,
        }

    def _section_of(self, kind: Any, given: Any) -> str | None:
        """Return the section that a field of type `kind` is, if it is one; of several, the one whose first field, the
        tag, has the value `given`."""
        if not isinstance(kind, dict):
            return None
        if "section" in kind:
            return str(kind["section"])
        several = [
            str(some["section"]) for some in kind.get("either", ()) if isinstance(some, dict) and "section" in some
        ]
        for section in several:
            tag, field = next(iter(self.fields(section).items()))
            value = given.get(tag) if isinstance(given, Mapping) else given
            choices = field["type"].get("one of") if isinstance(field["type"], dict) else None
            if value is None or choices is None or value in choices:
                return section
        name = given.get("name") if isinstance(given, Mapping) else given
        if several and (found := find_plugins(kind.get("more", "")).get(str(name))):
            return self.of_plugin(found)["section"]
        return several[0] if several else None

    def of_plugin(self, found: EntryPoint) -> dict[str, str]:
        """Load and describe a class of another package, which needs torch; return its section, and a sentence on it."""
        describing, cls = import_module("roundelay.options.describe"), load_plugin(found)  # by name: it loads torch
        describing.describe_fields(cls, self.known["sections"])
        vars(self).pop("sections", None)
        return {"section": describing.section_of(cls), "about": about_of(cls)}

    @cached_property
    def sections(self) -> dict[str, type]:
        """A dataclass for each section, with the fields and types of the class that it describes, and nothing else."""
        made: dict[str, type] = {}

        def make(section: str) -> type:
            if section not in made:
                fields = []
                for name, field in self.fields(section).items():
                    default = None if "default" in field else dataclasses.MISSING
                    fields.append((name, hint(field["type"]), dataclasses.field(default=default, kw_only=True)))
                made[section] = make_dataclass(section.rpartition(".")[2], fields)
            return made[section]

        def hint(kind: Any) -> Any:  # noqa: PLR0911 one return a kind of type
            if isinstance(kind, str):
                return _SCALARS[kind]
            match kind:
                case {"more": more, **own}:
                    return Annotated[hint(own), OrPlugins(more)]
                case {"one of": choices}:
                    return Literal[tuple(choices)]
                case {"number": number}:
                    return Annotated[_SCALARS[number], bounds(kind)]
                case {"either": kinds}:
                    return Union[tuple(map(hint, kinds))]  # noqa: UP007 made of a list
                case {"list": inner}:
                    return tuple[hint(inner), ...]  # type: ignore[misc]
                case {"map": inner}:
                    return Mapping[str, hint(inner)]  # type: ignore[misc]
                case _:
                    return make(kind["section"])

        for section in self.known["sections"]:
            make(section)
        return made


STRATEGIES = KnownOptions("roundelay")
"""The described options of strategies."""


def check_strategy(text: str, options: Mapping[str, Any] | None = None) -> None:
    """Check a strategy as it is written, and further options of it.

    Raises:
        UserError: as `make_strategy`, as far as that shows without making the strategy.
    """
    name, written = parse_strategy(text)
    given = {**(options or {}), **written}
    check_choice(name, given, strategies(), lambda: strategies()[name])
    section = strategy_entry(name)["section"]
    build(STRATEGIES.sections[section], given, name)


def strategies() -> Mapping[str, list[str]]:
    """Return the names of the options of each strategy; those of other packages are loaded at a look-up."""
    own = {name: [*STRATEGIES.fields(entry["section"])] for name, entry in STRATEGIES.known["strategies"].items()}
    return WithPlugins("strategies", own, lambda found: [option.key for option in strategy_options(found.name)])


def about_strategy(name: str) -> str:
    """Return one sentence on a strategy."""
    return str(strategy_entry(name)["about"])


def strategy_options(name: str) -> list[Option]:
    """Return the options of a strategy, with their plain names as keys."""
    return [*STRATEGIES.options(strategy_entry(name)["section"], {}, "")]


def strategy_entry(name: str) -> dict[str, Any]:
    """Return the section of a strategy, and a sentence on it."""
    own: Mapping[str, dict[str, Any]] = STRATEGIES.known["strategies"]
    return WithPlugins("strategies", own, STRATEGIES.of_plugin)[name]


def codecs() -> dict[str, tuple[str, str, str]]:
    """Return for each codec, by name, a sentence, the bits of an element, and the largest error of an element."""

    def told(found: EntryPoint) -> dict[str, str]:
        entry: dict[str, str] = import_module("roundelay.options.describe").describe_codec(load_plugin(found)())
        return entry

    entries = WithPlugins("codecs", STRATEGIES.known["codecs"], told)
    return {name: (entry["about"], entry["bits"], entry["error"]) for name, entry in entries.items()}


def topologies() -> list[tuple[str, str, list[str]]]:
    """Return (name, sentence, the strategies that know it) of all topologies."""
    users: dict[str, list[str]] = {}
    for name, entry in STRATEGIES.known["strategies"].items():
        for topology in STRATEGIES.fields(entry["section"]).get("topology", {"type": {"one of": ()}})["type"]["one of"]:
            users.setdefault(topology, []).append(name)
    return [(topology, STRATEGIES.known["topologies"][topology], some) for topology, some in sorted(users.items())]


def bounds(kind: Mapping[str, Any]) -> Bounds:
    """Return the bounds in the description of a number's type."""
    return Bounds(**{name: bound for name, bound in kind.items() if name != "number"})


def yaml_of(field: Mapping[str, Any]) -> str | None:
    """Return the default of a field as YAML on one line; None if it has none."""
    if "default" not in field:
        return None
    text = yaml.safe_dump(field["default"], default_flow_style=True, width=1_000_000, sort_keys=False)
    return text.removesuffix("...\n").strip()


def schema_of(kind: Any) -> dict[str, Any]:  # noqa: PLR0911 one return a kind of type
    """Return the JSON Schema of a type; a section may be a word, the name of the one that is meant."""
    if isinstance(kind, str):
        return {} if kind == "any" else {"type": _JSON[kind]}
    match kind:
        case {"one of": choices}:
            return {"enum": choices}
        case {"number": number}:
            said = dataclasses.asdict(bounds(kind))
            return {"type": _JSON[number], **{_JSON[name]: one for name, one in said.items() if one is not None}}
        case {"either": kinds}:
            words = {"type": "string"} if sum("section" in one for one in kinds) > 1 else None
            return {"anyOf": [*map(schema_of, kinds), *([words] if words else [])]}
        case {"list": inner}:
            return {"type": "array", "items": schema_of(inner)}
        case {"map": inner}:
            return {"type": "object", "additionalProperties": schema_of(inner)}
        case _:
            return {"$ref": f"#/$defs/{kind['section']}"}


def values_of(kind: Any) -> str:  # noqa: PLR0911 one return a kind of type
    """Return the values that a type allows, in words."""
    if isinstance(kind, str):
        return _NAMES[kind]
    match kind:
        case {"one of": choices}:
            return ", ".join(map(str, choices))
        case {"number": number}:
            return bounds(kind).words(_SCALARS[number])
        case {"either": kinds}:
            return " or ".join(values_of(one) for one in kinds)
        case {"list": inner}:
            return f"list of: {values_of(inner)}"
        case {"map": inner}:
            return f"key: value ({values_of(inner)})"
        case _:
            return "section"
