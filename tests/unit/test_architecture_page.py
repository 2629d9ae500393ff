"""docs/architecture.md shows the folders as they are: its trees are those that docs/tree.py writes from docstrings."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from support.scripts import load_script

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = [ROOT / place for place in ("src/roundelay", "speech/src/roundelay_speech", "lab/src/roundelay_lab")]


@pytest.fixture(scope="module")
def tree() -> ModuleType:
    return load_script("docs/tree.py")


def shown(lines: list[str]) -> dict[str, str]:
    """Lines of a tree: path below the package (a folder ends in /) -> its words."""
    found: dict[str, str] = {}
    above: list[str] = [""]
    for line in lines:
        parts = re.fullmatch(r"((?:│   |    )*)[├└]── (\S+) +(\S.*)", line)
        assert parts, f"{line!r} is no line of a tree: does its module have a docstring?"
        depth = len(parts[1]) // 4 + 1
        path = above[depth - 1] + parts[2]
        found[path] = parts[3]
        above[depth:] = [path]
    return found


def test_the_trees_are_as_written(tree: ModuleType) -> None:
    assert PAGE.read_text(encoding="utf-8") == tree.page(), "python docs/tree.py writes the trees anew"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_folder_and_every_file_beside_them_is_shown(tree: ModuleType, package: Path) -> None:
    folders = {f"{path.parent.relative_to(package)}/" for path in package.rglob("*.py") if path.parent != package}
    files = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    assert shown(tree.lines(package)).keys() == folders | files


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_line_says_more_than_its_name(tree: ModuleType, package: Path) -> None:
    lines = shown(tree.lines(package)).items()
    assert not [path for path, words in lines if words.strip("` .") in path or len(words) > 130]


def test_files_that_the_text_names_are_there() -> None:
    """A file in backticks is one of the repository, by its path, or of the package, by the end of its path."""
    files = [f"/{path.relative_to(package)}" for package in PACKAGES for path in package.rglob("*.py")]
    text = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = [name for name in re.findall(r"`([\w/]+\.py)`", text) if name != "__init__.py"]
    assert named
    for name in named:
        assert (ROOT / name).exists() or any(path.endswith(f"/{name}") for path in files), name
