"""The source of the packages as text, for tests that hold it to rules of form."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import roundelay
import roundelay_lab
import roundelay_speech


@dataclass(frozen=True)
class SourceFile:
    """One file: its path below the package, behind `speech/` or `lab/` below those packages, and its syntax."""

    path: str
    text: str
    tree: ast.Module

    def below(self, folders: tuple[str, ...]) -> bool:
        """Return True if the file is one of `folders`, or in one of them."""
        return any(self.path == folder or self.path.startswith(f"{folder}/") for folder in folders)


@cache
def source_files() -> tuple[SourceFile, ...]:
    """Return all Python files of the three packages."""
    found = []
    for package, before in ((roundelay, ""), (roundelay_speech, "speech/"), (roundelay_lab, "lab/")):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found.append(SourceFile(before + path.relative_to(root).as_posix(), text, ast.parse(text)))
    return tuple(found)


def functions(file: SourceFile) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods of a file."""
    yield from (node for node in ast.walk(file.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
