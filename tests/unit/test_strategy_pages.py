"""docs/strategies says what there is: a section for every strategy, every option with its default, laws that exist."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from roundelay.strategies import STRATEGIES
from roundelay.strategies.base import Strategy

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "strategies"


def shown(value: object) -> str:
    """As a recipe would have it."""
    return yaml.safe_dump([] if value == () else value).split("\n")[0]


def sections() -> dict[str, tuple[Path, str]]:
    """Section headed by a strategy's name -> its page and its text. A page holds a family."""
    found: dict[str, tuple[Path, str]] = {}
    for page in sorted(PAGES.glob("*.md")):
        for name, text in re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL):
            assert name not in found, f"{name} has a section on {found[name][0].name} and on {page.name}"
            found[name] = (page, text)
    return found


def section_of(name: str) -> str:
    assert name in sections(), f"no page of docs/strategies has a section `## {name}`: write one, like gossip-pga"
    return sections()[name][1]


def shared_options(name: str) -> dict[str, str]:
    """Options that stand once, in the first page's table: option -> default."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| .+ \|$", (PAGES / "README.md").read_text(), re.MULTILINE)
    return {option: default for option, default, of in rows if name in of.split(", ")}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_section_names_every_option_with_its_default(name: str) -> None:
    listed = re.search(r"^- \*\*Options\*\*: (.*?)(?=^- \*\*|\Z)", section_of(name), re.MULTILINE | re.DOTALL)
    own = dict(re.findall(r"(?:^|;\n  )`(\w+)=([^`]+)`", listed[1])) if listed else {}
    shared = shared_options(name)
    assert not own.keys() & shared.keys()
    fields = {field.name: shown(field.default) for field in dataclasses.fields(STRATEGIES[name])}  # type: ignore[arg-type]  # every strategy is a dataclass
    assert {**own, **shared} == fields
    assert fields or "No options." in section_of(name)


def test_shared_options_are_those_of_strategies() -> None:
    rows = re.findall(r"^\| `\w+` \| .*? \| (.*?) \| .+ \|$", (PAGES / "README.md").read_text(), re.MULTILINE)
    assert {name for of in rows for name in of.split(", ")} <= set(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_that_declares_a_distance_explains_it(name: str) -> None:
    assert ("**Distance**" in section_of(name)) == (STRATEGIES[name].distance is not Strategy.distance)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_section_says_what_people_ask(name: str) -> None:
    text = section_of(name)
    for said in ("**Sent**", "**Waits**", "**Model**", "**Bears**", "**Laws**"):
        assert said in text, f"{name} does not have {said!r}"
    assert f"--strategy {name}" in text if name != "sgd" else "train" in text
    assert re.search(r"^    \S", text, re.MULTILINE), f"{name} has no equation"
    assert text.count("\n") < 60, "a screen"


def test_laws_named_on_the_pages_exist() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", tests))
    pages = [*PAGES.glob("*.md"), ROOT / "docs" / "stability.md"]
    for page in pages:
        assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= defined, page.name


def test_the_table_links_every_section_and_no_page_is_without_a_strategy() -> None:
    table = (PAGES / "README.md").read_text()
    there = {name: page for name, (page, _) in sections().items() if name in STRATEGIES}
    missing = [name for name, page in there.items() if f"| [{name}]({page.name}#{name}) |" not in table]
    assert not missing, f"no row in docs/strategies/README.md for {missing}"
    assert {page.name for page in PAGES.glob("*.md")} == {"README.md", *(page.name for page in there.values())}
