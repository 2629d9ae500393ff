"""Commands that pages print are commands there are: names, options, values, overrides and scripts."""

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from roundelay.cli import _parse
from roundelay.core.errors import UserError
from roundelay.grids.axes import check_axes, is_override, read_axes
from roundelay.options.known import check_strategy
from roundelay_speech.commands.training import _overrides
from roundelay_speech.recipes.known import check_recipe, known_recipes

ROOT = Path(__file__).parents[2]
PAGES = [page for folder in ("docs", "recipes", "examples") for page in (ROOT / folder).rglob("*.md")]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = sorted(page for page in PAGES if page.name != "log.md")  # which says what was run, by the options of its day
INSTALLED = "doubling"
"""The strategy of examples/plugin, which is there once that package is installed."""
LEFT_OPEN = re.compile(r"'[A-Z$][\w-]*'|'\.\.\.'")
"""A value that a message complains about, and that stands for one of the reader's."""
MISSING = re.compile(r"arguments are required|expected (one|at least one) argument|there is \.\.\.")
SCRIPT = re.compile(r"(?:python|sh|bash) ((?:benchmarks|examples|docs)/[\w/-]+\.(?:py|sh))([^`\n]*)")


def commands(text: str) -> Iterator[tuple[str, bool]]:
    """Commands of a page, and whether each is whole: one in a block is, unless it ends in dots; one in a line of text
    may name a part."""
    text = re.sub(r"^.*\n *roundelay: .*$", "", re.sub(r"\s*\\\n\s*", " ", text), flags=re.MULTILINE)  # shown errors
    fenced = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = [*"\n".join(fenced).splitlines(), *re.findall(r"^ {4,}(.*)$", prose, re.MULTILINE)]
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^ {4,}.*$", "", prose, flags=re.MULTILINE))
    for line, whole in [*((one, True) for one in blocks), *((one.replace("\n", " "), False) for one in inline)]:
        for part in re.split(r" && | \| |; ", re.sub(r"\s+#.*$|\s{2,}.*$|\s[<>].*$", "", line.strip())):
            if found := re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:sh \S+/by_hand\.sh |roundelay )(.*)", part):
                yield re.sub(r"\[(--[^]]*)\]", r"\1", found[1]).removesuffix("...").strip(), whole and "..." not in part


def check(command: str, whole: bool) -> None:
    """Find what cannot be in a command.

    Raises:
        UserError: a name, an option, a value or an override that there is not.
    """
    try:
        options = _parse(shlex.split(command))
    except UserError as error:
        if LEFT_OPEN.search(str(error)) or (not whole and MISSING.search(str(error))):
            return
        raise
    if "$" in command or "{" in getattr(options, "strategies", ""):
        return
    given = getattr(options, "strategies", None) or (options.strategy if command.startswith("simulate") else [])
    strategies = [text for text in given if not is_override(text) and text != "NAME" and INSTALLED not in text]
    for text in strategies:
        check_strategy(text)
    if getattr(options, "recipe", None) not in known_recipes():
        return
    if command.startswith("train "):
        check_recipe(options.recipe, _overrides(options))
    elif hasattr(options, "overrides"):
        axes = read_axes([*options.overrides, *filter(is_override, given)], getattr(options, "tune", None) or [])
        check_axes(axes, strategies, partial(check_recipe, options.recipe))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_pages(page: Path) -> None:
    wrong = []
    for command, whole in commands(page.read_text(encoding="utf-8")):
        try:
            check(command, whole)
        except UserError as error:
            wrong.append(f"roundelay {command}: {error}")
    for name, rest in SCRIPT.findall(re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))):
        source = (ROOT / name).read_text(encoding="utf-8") if (ROOT / name).exists() else ""
        options = [] if name.endswith("by_hand.sh") else re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.split(" -- ")[0])
        wrong += [f"{name} {option}" for option in ["", *options] if not source or option not in source]
    assert not wrong


@pytest.mark.parametrize(
    "command",
    [
        "trian demo",
        "train an4 --exp x --stratgy ssgd",
        "train an4",
        "train an4 --exp x model.wdth=3",
        "list nothing",
        "compare an4 --strategies asgd,perod=5",
        "train an4 --exp x --strategy adpsg",
        "simulate --learners 0",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    with pytest.raises(UserError):
        check(command, True)
