"""docs/architecture.md shows the folders as they are: every file of the package has a line, and every line a file."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = {"src/roundelay/": "", "lab/src/roundelay_lab/": "lab/"}
"""Roots of trees, and the beginning of their paths here."""


def shown() -> dict[str, str]:
    """Lines of the page's trees: path below a package (a folder ends in /) -> what it is."""
    lines: dict[str, str] = {}
    trees = r"^```\n(src/roundelay/|lab/src/roundelay_lab/)(\S*)\n(.*?)^```"
    for package, root, tree in re.findall(trees, PAGE.read_text(), re.MULTILINE | re.DOTALL):
        above: list[str] = [PACKAGES[package] + root]
        for line in tree.splitlines():
            found = re.fullmatch(r"((?:│   |    )*)[├└]── (\S+) +(\S.*)", line)
            assert found, f"{line!r} is no line of a tree: branch, name, two or more spaces, a few words"
            depth = len(found[1]) // 4 + 1
            path = above[depth - 1] + found[2]
            assert path not in lines, f"{path} is shown twice"
            lines[path] = found[3]
            above[depth:] = [path]
    return lines


def there() -> set[str]:
    """Files and folders of the packages as the trees write them. `__init__.py` is its folder."""
    found = set()
    for package, before in PACKAGES.items():
        files = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
        folders = [path.parent for path in (ROOT / package).rglob("*.py") if path.parent != ROOT / package]
        found |= {f"{before}{path.relative_to(ROOT / package)}" for path in files}
        found |= {f"{before}{path.relative_to(ROOT / package)}/" for path in folders}
    return found


def test_nothing_is_shown_that_is_not_there() -> None:
    gone = set(shown()) - there()
    assert not gone, f"docs/architecture.md has lines for what is not there: {sorted(gone)}"


def test_every_folder_and_file_is_shown() -> None:
    """A folder is shown by its line alone, or with all that is in it."""
    lines = set(shown())
    folders = {path for path in lines if path.endswith("/")}
    opened = {folder for folder in folders if any(line != folder and line.startswith(folder) for line in lines)}
    opened |= set(PACKAGES.values())
    expected = {path for path in there() if re.sub(r"[^/]+/?$", "", path) in opened}
    missing = expected - lines
    assert not missing, f"no line in the trees of docs/architecture.md for {sorted(missing)}"


def test_a_line_says_more_than_its_name() -> None:
    short = [path for path, words in shown().items() if words.strip("` .") in path or len(words) > 100]
    assert not short


def test_files_that_the_text_names_are_there() -> None:
    """A file in backticks is one of the repository, by its path, or of the package, by the end of its path."""
    files = {f"/{path}" for path in there()}
    text = re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.DOTALL)
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert (ROOT / name).exists() or any(path.endswith(f"/{name}") for path in files), name
