"""docs/strategies says what there is: a page for every strategy, every option with its default, laws that exist."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from roundelay.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "strategies"


def shown(value: object) -> str:
    """As a recipe would have it."""
    return yaml.safe_dump([] if value == () else value).split("\n")[0]


def page_of(name: str) -> str:
    path = PAGES / f"{name}.md"
    assert path.exists(), f"no {path.relative_to(ROOT)}: write one, like gossip-pga.md beside it"
    return path.read_text()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_page_names_every_option_with_its_default(name: str) -> None:
    page = page_of(name)
    assert page.startswith(f"# {name}\n")
    for field in dataclasses.fields(STRATEGIES[name]):  # type: ignore[arg-type]  # every strategy is a dataclass
        row = f"\n| `{field.name}` | {shown(field.default)} | "
        assert row in page, f"the table of options has no row that begins {row!r}"
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert named == [field.name for field in dataclasses.fields(STRATEGIES[name])]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_page_says_what_people_ask(name: str) -> None:
    page = page_of(name)
    for heading in (
        "**Sent**",
        "**Waits**",
        "**Model**",
        "**Laws**",
        f"--strategy {name}" if name != "sgd" else "train",
    ):
        assert heading in page, f"{name}.md does not have {heading!r}"
    assert page.count("\n") < 60, "one page"


def test_laws_named_on_the_pages_exist() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", tests))
    pages = [*PAGES.glob("*.md"), ROOT / "docs" / "stability.md"]
    for page in pages:
        assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= defined, page.name


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([\w./-]+)\)", page.read_text()):
            assert (PAGES / target).exists(), f"{page.name}: {target}"


def test_the_table_links_every_page_and_no_page_is_without_a_strategy() -> None:
    table = (PAGES / "README.md").read_text()
    missing = [name for name in STRATEGIES if f"| [{name}]({name}.md) |" not in table]
    assert not missing, f"no row in docs/strategies/README.md for {missing}"
    assert {page.stem for page in PAGES.glob("*.md")} == {*STRATEGIES, "README"}
