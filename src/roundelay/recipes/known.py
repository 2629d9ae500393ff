"""Options of recipes and strategies and their types, known without loading torch or any model.

`options/known.json` is taken from the dataclasses that the options are (`python -m roundelay.recipes.describe` writes
it, and a test holds it to them); `options/explained.yaml` says in plain words what each option is. So a wrong name is
found in the time it takes to read a small file, before seconds are spent on loading torch.
"""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union

import yaml

from roundelay.core.configure import build, override, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.strategy_text import check_choice, did_you_mean, parse_strategy

ONE_OF_TWO = (("training", "minibatch", "minibatch_per_learner"), ("init", "model", "first"))
"""Sections, and two options of each of which a recipe has one."""
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


def known_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(
        p.name.removesuffix(".yaml") for p in resources.files(__package__).iterdir() if p.name.endswith(".yaml")
    )


def about_recipe(name: str) -> str:
    """The first paragraph of the comment at the top of a packaged recipe, on one line."""
    text = (resources.files(__package__) / f"{name}.yaml").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def read_recipe(source: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe in file `source`, or the packaged one of that name, with `section.key=value` applied.

    A recipe with `base: OTHER` begins with that one, a packaged recipe or a file beside it, and says what differs.

    Raises:
        UserError: no such recipe, not YAML, or an override that is none.
    """
    mapping = _with_base(_file_of(source), ())
    apply_overrides(mapping, overrides)
    return mapping


def _file_of(source: str, beside: Path = Path()) -> Path:
    path = beside / source
    if not path.is_file():
        names = known_recipes()
        if source not in names:
            near = did_you_mean(source, names)
            choices = "the name of one (`roundelay list recipes`)" if near else f"one of {', '.join(names)}"
            raise UserError(f"no recipe {source!r}.{near} Give a YAML file, or {choices}.")
        path = Path(str(resources.files(__package__) / f"{source}.yaml"))
    return path


def _with_base(path: Path, begun: tuple[Path, ...]) -> dict[str, Any]:
    mapping = read_yaml(path)
    other = mapping.pop("base", None)
    if other is None:
        return mapping
    if not isinstance(other, str) or path in begun:
        raise UserError(
            f"{path}: base is {other!r}: give the name or file of another recipe, which does not need this one."
        )
    made = _merged(_with_base(_file_of(other, path.parent), (*begun, path)), mapping)
    for name, *two in ONE_OF_TWO:
        _leave_one_of_two(made.get(name), two, mapping.get(name) or ())
    return made


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `changes` in place of its own. A section that is of another kind (another `name` or
    `rule`) is taken whole."""
    made = {**base}
    for key, value in changes.items():
        old = base.get(key)
        made[key] = value
        if isinstance(old, dict) and isinstance(value, dict):
            alike = all(value.get(tag, old.get(tag)) == old.get(tag) for tag in ("name", "rule"))
            made[key] = _merged(old, value) if alike else value
    return made


def apply_overrides(mapping: dict[str, Any], overrides: Sequence[str]) -> None:
    """Apply `section.key=value` from the command line. One of two options of which a recipe may have one takes the
    place of the other.

    Raises:
        UserError: an override that is none.
    """
    for assignment in overrides:
        override(mapping, assignment)
    given = {tuple(text.partition("=")[0].split(".")[:2]) for text in overrides}
    for name, *two in ONE_OF_TWO:
        _leave_one_of_two(mapping.get(name), two, {key[1] for key in given if key[0] == name and key[1:]})


def _leave_one_of_two(section: object, two: Sequence[str], given: Collection[str]) -> None:
    """Drop the one of two options that another, given later, takes the place of."""
    for one, other in (two, two[::-1]):
        chosen = one in given and other not in given
        if chosen and isinstance(section, dict) and section.get(one) is not None:
            section.pop(other, None)


def check_recipe(source: str, overrides: Sequence[str] = ()) -> None:
    """Find names and types in a recipe that cannot be right, its strategy's included.

    Whether the values fit together is for `recipe.load_recipe` to say.

    Raises:
        UserError: as `read_recipe`; an unknown option, a missing one, a value of the wrong type; names the dotted key.
    """
    check_mapping(read_recipe(source, overrides))


def check_overrides(overrides: Sequence[str]) -> None:
    """`check_recipe` for overrides of a recipe that is read later.

    Raises:
        UserError: as `check_recipe`.
    """
    mapping: dict[str, Any] = {"name": "", "corpus": "", "alignment": ""}
    apply_overrides(mapping, overrides)
    check_mapping(mapping)


def check_mapping(mapping: Mapping[str, Any]) -> None:
    """`check_recipe` for what a recipe says."""
    build(_sections()["Recipe"], mapping)
    training = mapping.get("training") or {}
    check_strategy(training.get("strategy", "sgd"), training.get("options") or {})


def check_strategy(text: str, options: Mapping[str, Any] | None = None) -> None:
    """Check a strategy as it is written, and further options.

    Raises:
        UserError: as `make_strategy`, for all that needs no strategy to be seen.
    """
    name, written = parse_strategy(text)
    given = {**(options or {}), **written}
    check_choice(name, given, strategies())
    build(_sections()[_known()["strategies"][name]["section"]], given, name)


def strategies() -> dict[str, list[str]]:
    """Names of options by strategy."""
    return {name: [*_fields(entry["section"])] for name, entry in _known()["strategies"].items()}


def about_strategy(name: str) -> str:
    """A strategy in one sentence."""
    return str(_known()["strategies"][name]["about"])


def strategy_options(name: str) -> list[Option]:
    """The options of a strategy, with their plain names as keys."""
    texts = _explained()["strategies"]
    fields = _fields(_known()["strategies"][name]["section"])
    return [
        Option(key, _values(field["type"]), _yaml(field), texts.get(f"{name}.{key}") or texts.get(key, ""))
        for key, field in fields.items()
    ]


def corpora() -> dict[str, str]:
    """Corpora that `roundelay prepare` knows by name, and what each is, in words."""
    return {
        name: f"{entry['about']}{' Free to load.' if entry['free'] else ''}"
        f"{' Licence: ' if entry['licence'] else ''}{entry['licence']}"
        for name, entry in _known()["corpora"].items()
    }


def codecs() -> dict[str, tuple[str, str, str]]:
    """By name, of all forms in which vectors travel: what it is, bits of an element, and the largest error of one."""
    return {name: (entry["about"], entry["bits"], entry["error"]) for name, entry in _known()["codecs"].items()}


def choices(what: str) -> dict[str, tuple[str, list[Option]]]:
    """Everything in an open set of a recipe, by name: a sentence on it, and its options with their plain names as keys.
    `what` is models, objectives, graphs or units."""
    found, section = {}, _known()["choices"][what]
    for name, entry in section["names"].items():
        key = section["key"]
        options = [
            dataclasses.replace(option, key=option.key.removeprefix(f"{key}."))
            for option in _options(entry["section"], {}, key)
        ]
        found[name] = (str(entry["about"]), options[1:])  # the first is the name itself
    return found


def topologies() -> list[tuple[str, str, list[str]]]:
    """(name, what it is, the strategies that know it) of all topologies."""
    users: dict[str, list[str]] = {}
    for name, entry in _known()["strategies"].items():
        for topology in _fields(entry["section"]).get("topology", {"type": {"one of": ()}})["type"]["one of"]:
            users.setdefault(topology, []).append(name)
    texts = _explained()["topologies"]
    return [(topology, texts.get(topology, ""), some) for topology, some in sorted(users.items())]


def recipe_options(mapping: Mapping[str, Any] | None = None) -> list[Option]:
    """All options of a recipe in order, with the values they have in `mapping` or else by default.

    Of a section that may be one of several (model, optimizer, schedule), the options of the one that `mapping` has.
    """
    return [*_options("Recipe", mapping or {}, "")]


def _options(section: str, given: Mapping[str, Any], where: str) -> Iterator[Option]:
    for name, field in _fields(section).items():
        key, kind = f"{where}.{name}" if where else name, field["type"]
        value = given.get(name, field.get("default"))
        if chosen := _section_of(kind, value):
            tag = {next(iter(_fields(chosen))): value} if isinstance(value, str) else {}
            yield from _options(chosen, value if isinstance(value, Mapping) else tag, key)
            continue
        texts = _explained()["recipe"]
        about = texts.get(f"{section.rpartition('.')[2]}:{key}") or texts.get(key, "")
        yield Option(key, _values(kind), _yaml({**field, "default": given[name]} if name in given else field), about)


def _yaml(field: Mapping[str, Any]) -> str | None:
    """The default, on one line."""
    if "default" not in field:
        return None
    text = yaml.safe_dump(field["default"], default_flow_style=True, width=1_000_000, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _section_of(kind: Any, given: Any) -> str | None:
    """The section a value is, if it is one; of several the one whose tag, its first field, has the given value."""
    if not isinstance(kind, dict):
        return None
    if "section" in kind:
        return str(kind["section"])
    several = [str(some["section"]) for some in kind.get("either", ()) if isinstance(some, dict) and "section" in some]
    for section in several:
        tag, field = next(iter(_fields(section).items()))
        value = given.get(tag) if isinstance(given, Mapping) else given
        choices = field["type"].get("one of") if isinstance(field["type"], dict) else None
        if value is None or choices is None or value in choices:
            return section
    return several[0] if several else None


def _values(kind: Any) -> str:
    """The values of a type, in words."""
    if isinstance(kind, str):
        return _NAMES[kind]
    match kind:
        case {"one of": choices}:
            return ", ".join(map(str, choices))
        case {"either": kinds}:
            return " or ".join(_values(one) for one in kinds)
        case {"list": inner}:
            return f"list of: {_values(inner)}"
        case {"map": inner}:
            return f"key: value ({_values(inner)})"
        case _:
            return "section"


@cache
def _known() -> dict[str, Any]:
    return json.loads((resources.files(__package__) / "options" / "known.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@cache
def _explained() -> dict[str, dict[str, str]]:
    return read_yaml(Path(str(resources.files(__package__) / "options" / "explained.yaml")))


def _fields(section: str) -> dict[str, Any]:
    return _known()["sections"][section]  # type: ignore[no-any-return]


@cache
def _sections() -> dict[str, type]:
    """A dataclass for each section, with the fields and types of the one that a recipe is built from, and no more."""
    made: dict[str, type] = {}

    def make(section: str) -> type:
        if section not in made:
            fields = []
            for name, field in _fields(section).items():
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

    for section in _known()["sections"]:
        make(section)
    return made
