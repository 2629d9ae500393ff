"""Writes the trees of folders in docs/architecture.md anew, from docstrings: `python docs/tree.py`, run from anywhere.

A folder has the first sentence of its `__init__.py`, a file beside a package's folders the first sentence of its own.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(ROOT / place for place in ("src/roundelay", "speech/src/roundelay_speech", "lab/src/roundelay_lab"))
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree: python docs/tree.py -->\n", "<!-- end of tree -->\n"


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, without its full stop; empty where there is none."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?=\s|$)", " ".join(text.split("\n\n")[0].split()))[0]


def entries(folder: Path) -> list[tuple[str, Path]]:
    """Return what is shown below a folder, in order: names (a folder's ends in /), and the file that describes each."""
    folders = [(f"{path.name}/", path / "__init__.py") for path in folder.iterdir() if (path / "__init__.py").exists()]
    files = [(path.name, path) for path in folder.glob("*.py") if folder in PACKAGES and path.name != "__init__.py"]
    return sorted(folders) + sorted(files)


def lines(folder: Path, indent: str = "") -> list[str]:
    """Return a line for every folder below `folder`, and for every file beside the folders of a package."""
    found = []
    shown = entries(folder)
    for number, (name, described) in enumerate(shown, 1):
        last = number == len(shown)
        branch = f"{indent}{'└' if last else '├'}── {name}"
        found.append(f"{branch:<26} {first_sentence(described)}")
        if name.endswith("/"):
            found += lines(described.parent, indent + ("    " if last else "│   "))
    return found


def page() -> str:
    """Return the page with the trees as the code has them."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    trees = "\n\n".join("\n".join(["```", f"{one.relative_to(ROOT)}/", *lines(one), "```"]) for one in PACKAGES)
    return f"{before}{BEGIN}\n{trees}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
