"""Options and their types, known without loading torch or any model.

`known.json` is taken from the dataclasses that the options are (`python -m roundelay.options.describe` writes that of
strategies, and a test holds it to them); `explained.yaml` says in plain words what each option is. So a wrong name is
found in the time it takes to read a small file, before seconds are spent on loading torch.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, final

import yaml

from roundelay.core.configure import build, read_yaml
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
    """One option: its dotted key, the values it takes in words, and what it is."""

    key: str
    values: str
    value: str | None  # that it has, as it would be written in YAML; None: it must be given
    about: str


@final
class KnownOptions:
    """Options as a folder of a package has them.

    Attributes:
        known: content of the folder's `known.json`; its `sections` are fields and types by the name of a dataclass.
    """

    def __init__(self, package: str) -> None:
        self._folder = Path(str(resources.files(package) / "options"))

    @cached_property
    def known(self) -> dict[str, Any]:
        return json.loads((self._folder / "known.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    @cached_property
    def explained(self) -> dict[str, dict[str, str]]:
        """Sentences on options, from `explained.yaml`."""
        return read_yaml(self._folder / "explained.yaml")

    def fields(self, section: str) -> dict[str, Any]:
        """Return fields of a section by name."""
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
            texts = self.explained["recipe"]
            about = texts.get(f"{section.rpartition('.')[2]}:{key}") or texts.get(key, "")
            yield Option(
                key, values_of(kind), yaml_of({**field, "default": given[name]} if name in given else field), about
            )

    def _section_of(self, kind: Any, given: Any) -> str | None:
        """Return the section a value is, if it is one; of several the one whose tag, its first field, has the given
        value."""
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
        return several[0] if several else None

    @cached_property
    def sections(self) -> dict[str, type]:
        """A dataclass for each section, with the fields and types of the one that it describes, and no more."""
        made: dict[str, type] = {}

        def make(section: str) -> type:
            if section not in made:
                fields = []
                for name, field in self.fields(section).items():
                    default = None if "default" in field else dataclasses.MISSING
                    fields.append((name, hint(field["type"]), dataclasses.field(default=default, kw_only=True)))
                made[section] = make_dataclass(section.rpartition(".")[2], fields)
            return made[section]

        def hint(kind: Any) -> Any:
            if isinstance(kind, str):
                return _SCALARS[kind]
            match kind:
                case {"one of": choices}:
                    return Literal[tuple(choices)]
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
"""Options of strategies."""


def check_strategy(text: str, options: Mapping[str, Any] | None = None) -> None:
    """Check a strategy as it is written, and further options.

    Raises:
        UserError: as `make_strategy`, for all that needs no strategy to be seen.
    """
    name, written = parse_strategy(text)
    given = {**(options or {}), **written}
    check_choice(name, given, strategies())
    build(STRATEGIES.sections[STRATEGIES.known["strategies"][name]["section"]], given, name)


def strategies() -> dict[str, list[str]]:
    """Return names of options by strategy."""
    return {name: [*STRATEGIES.fields(entry["section"])] for name, entry in STRATEGIES.known["strategies"].items()}


def about_strategy(name: str) -> str:
    """Return a strategy in one sentence."""
    return str(STRATEGIES.known["strategies"][name]["about"])


def strategy_options(name: str) -> list[Option]:
    """Return the options of a strategy, with their plain names as keys."""
    texts = STRATEGIES.explained["strategies"]
    fields = STRATEGIES.fields(STRATEGIES.known["strategies"][name]["section"])
    return [
        Option(key, values_of(field["type"]), yaml_of(field), texts.get(f"{name}.{key}") or texts.get(key, ""))
        for key, field in fields.items()
    ]


def codecs() -> dict[str, tuple[str, str, str]]:
    """Return, by name, all forms in which vectors travel: a sentence, bits of an element, and the largest error of
    one."""
    return {name: (entry["about"], entry["bits"], entry["error"]) for name, entry in STRATEGIES.known["codecs"].items()}


def topologies() -> list[tuple[str, str, list[str]]]:
    """Return (name, sentence, the strategies that know it) of all topologies."""
    users: dict[str, list[str]] = {}
    for name, entry in STRATEGIES.known["strategies"].items():
        for topology in STRATEGIES.fields(entry["section"]).get("topology", {"type": {"one of": ()}})["type"]["one of"]:
            users.setdefault(topology, []).append(name)
    texts = STRATEGIES.explained["topologies"]
    return [(topology, texts.get(topology, ""), some) for topology, some in sorted(users.items())]


def yaml_of(field: Mapping[str, Any]) -> str | None:
    """Return the default, on one line."""
    if "default" not in field:
        return None
    text = yaml.safe_dump(field["default"], default_flow_style=True, width=1_000_000, sort_keys=False)
    return text.removesuffix("...\n").strip()


def values_of(kind: Any) -> str:
    """Return the values of a type, in words."""
    if isinstance(kind, str):
        return _NAMES[kind]
    match kind:
        case {"one of": choices}:
            return ", ".join(map(str, choices))
        case {"either": kinds}:
            return " or ".join(values_of(one) for one in kinds)
        case {"list": inner}:
            return f"list of: {values_of(inner)}"
        case {"map": inner}:
            return f"key: value ({values_of(inner)})"
        case _:
            return "section"
