"""Options as known without torch are those that their dataclasses say, and is said in the same words."""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from roundelay.algorithms.codecs import CODECS
from roundelay.cli import main
from roundelay.core.configure import build, override
from roundelay.core.errors import UserError
from roundelay.options import describe as describing
from roundelay.options import known as strategies_known
from roundelay.strategies import STRATEGIES, make_strategy
from roundelay.strategies.dpsgd import TOPOLOGIES
from roundelay_speech.corpus.readers import READERS
from roundelay_speech.recipes import known
from roundelay_speech.recipes.describe import OPEN_SETS, OPTIONS_FILE, describe
from roundelay_speech.recipes.recipe import Recipe, load_recipe

MINIMAL = {"name": "x", "corpus": "data", "alignment": "ali"}


def test_the_file_is_what_the_dataclasses_say() -> None:
    assert json.loads(OPTIONS_FILE.read_text()) == json.loads(json.dumps(describe())), (
        "an option has changed: run `python -m roundelay_speech.recipes.describe`"
    )
    assert json.loads(describing.KNOWN.read_text()) == json.loads(json.dumps(describing.describe())), (
        "an option has changed: run `python -m roundelay.options.describe`"
    )


def test_every_option_is_explained() -> None:
    """Of every section of a recipe and every strategy; and every topology."""
    for options in (known.RECIPE_OPTIONS, strategies_known.STRATEGIES):
        for section, fields in options.known["sections"].items():
            silent = [
                name
                for name, field in fields.items()
                if not field["about"] and "section" not in json.dumps(field["type"])
            ]
            assert not silent, f"{section}: no docstring beneath {silent}"
    for name in strategies_known.strategies():
        assert strategies_known.about_strategy(name)
    assert {name for name, _, _ in strategies_known.topologies()} == set(TOPOLOGIES)


def test_a_default_of_its_own_keeps_the_bounds_of_an_option() -> None:
    """A strategy that declares a field of its base again, for another default, declares its type again as well."""
    for kind in STRATEGIES.values():
        bounds = get_type_hints(kind, include_extras=True)
        for base in kind.__mro__[1:]:
            above = get_type_hints(base, include_extras=True)
            for name in vars(base).get("__annotations__", {}).keys() & above.keys() & bounds.keys():
                assert ("Bounds" in str(above[name])) <= ("Bounds" in str(bounds[name])), f"{kind.__name__}.{name}"


@pytest.mark.parametrize("what", OPEN_SETS)
def test_what_is_found_by_name_says_what_it_is(what: str) -> None:
    for name, (about, options) in known.choices(what).items():
        assert about.endswith("."), name
        assert all(option.about for option in options), name


def test_corpora_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(known.corpora()) == list(READERS)
    assert main(["list", "corpora"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in READERS)
    page = (Path(__file__).parents[2] / "docs" / "corpora_named.md").read_text()
    own = {"kaldi", "lhotse", "recordings", "demo"}
    assert re.findall(r"^\| `([\w-]+)` \|", page.split("## Splits")[0], re.MULTILINE) == [
        name for name in READERS if name not in own
    ], "the table of docs/corpora_named.md has other corpora than READERS, or in another order"


def test_codecs_are_listed_with_what_the_docs_say_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(strategies_known.codecs()) == list(CODECS)
    assert main(["list", "codecs"]) == 0
    listed = capsys.readouterr().out
    text = (Path(__file__).parents[2] / "docs" / "exchanges.md").read_text()
    for name, (about, bits, error) in strategies_known.codecs().items():
        assert re.search(rf"^\| `{name}` \|.*{error}", text, re.MULTILINE), (
            f"docs/exchanges.md has no row of {name} that says {error}"
        )
        assert about.endswith(".")
        assert all(fact in listed for fact in (name, about, bits, error))


@pytest.mark.parametrize("what", OPEN_SETS)
def test_names_are_listed_and_in_the_docs(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = {"models": "models.md", "objectives": "models.md", "graphs": "decoding.md", "units": "objectives.md"}[what]
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    assert main(["list", what]) == 0
    listed = capsys.readouterr().out
    for name, (_, options) in known.choices(what).items():
        assert f"{name}: " in listed
        assert re.search(rf"^\| (\[)?`{name}`", text, re.MULTILINE), f"{page} has no row of {name}"
        assert all(f"    {option.key}=" in listed for option in options)


SCHEMA = Draft202012Validator(known.recipe_schema())


@pytest.mark.parametrize(
    "assignment", ["training.minibach=3", "model.layers=0", "training.runtime=simm", "decode.beams=3"]
)
def test_the_schema_finds_slips(assignment: str) -> None:
    mapping = known.read_recipe("demo", [assignment])
    assert not SCHEMA.is_valid(mapping)
    assert said(known.check_mapping, mapping)


@pytest.mark.parametrize("name", known.known_recipes())
def test_packaged_recipes(name: str) -> None:
    known.check_recipe(name)
    SCHEMA.validate(known.read_recipe(name))
    assert known.about_recipe(name).endswith((".", ":"))


@pytest.mark.parametrize("name", STRATEGIES)
def test_values_are_the_defaults(name: str) -> None:
    given = ",".join(f"{option.key}={option.value}" for option in strategies_known.strategy_options(name))
    strategies_known.check_strategy(f"{name},{given}" if given else name)
    assert make_strategy(f"{name},{given}" if given else name) == STRATEGIES[name]()


def test_values_of_a_recipe_make_the_recipe() -> None:
    """Written out as overrides, the listed values of a recipe are that recipe."""
    for name in known.known_recipes():
        mapping: dict[str, Any] = {}
        for option in known.recipe_options(known.read_recipe(name)):
            override(mapping, f"{option.key}={option.value}")
        assert build(Recipe, mapping) == load_recipe(name)


def said(call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except UserError as error:
        return str(error)
    return ""


# cost.cluster is a file or a whole section: it is checked where it is read.
KEYS = [option.key for option in known.recipe_options() if option.key != "cost.cluster"] + [
    "training",
    "model",
    "x",
    "training.x",
    "decode.beams.x",
]
VALUES = ["1", "0.5", "-1", "true", "null", "word", "[1]", "[a, 2]", "{a: 1}", "sgd", "adam", "anneal", "blstm", "sim"]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=3))
def test_wrong_names_and_types_are_named_in_the_same_words(assignments: list[tuple[str, str]]) -> None:
    """Mistakes found without torch are those that building the recipe finds; no wrong name or type gets past it."""
    mapping: dict[str, Any] = dict(MINIMAL)
    try:
        for key, value in assignments:
            override(mapping, f"{key}={value}")
    except UserError:
        return
    early, late = said(known.check_mapping, mapping), said(build, Recipe, mapping)
    kinds = ("unknown option", "expected", "missing option", "is no option", "give a number", "give a whole")
    assert {line for line in late.splitlines() if any(kind in line for kind in kinds)} <= {*early.splitlines()}
    if early and not late:
        assert early.startswith(("there is no strategy", "strategy "))  # the recipe leaves that to make_strategy
        with pytest.raises(UserError):
            make_strategy(mapping["training"]["strategy"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("bmuf,period=soon", "bmuf.period is 'soon': expected a whole number"),
        ("bmuf,nesterov=1", "bmuf.nesterov is 1: expected true or false"),
        ("bmuf,speed=1", "bmuf has no option speed: it has period, local_momentum, momentum, rate"),
        ("bmuf,momentun=1", "Did you mean momentum?"),
        ("bnuf,period=1", "there is no strategy 'bnuf'.* Did you mean bmuf?"),
        ("adpsgd:ring", "adpsgd.topology is 'ring': choose one of"),
    ],
)
def test_strategies(text: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as error:
        strategies_known.check_strategy(text)
    assert said(make_strategy, text) == str(error.value)
