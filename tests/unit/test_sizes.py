"""No file and no function is longer than a reader can keep in view; what starts a file stands last in it."""

import ast
from pathlib import Path

import pytest

from support.source import functions, source_files

MOST_FILE, MOST_FUNCTION = 600, 60
"""Lines."""
MOST_ARGUMENTS, MOST_OF_A_CONSTRUCTOR = 7, 10
"""Arguments. Those that belong together are a frozen dataclass; a registry or a record may have more."""
FREE = {
    "algorithms/one_pass_kernel.py: _step",  # a kernel takes its numbers one by one
    "runtime/hosts/exchange/row_format.py: apply_remote",
    "runtime/hosts/exchange/row_format.py: apply_reply",
}
"""Functions that may have more: their arguments have no name together."""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["src", "speech", "lab", "tests", "benchmarks", "examples", "docs"])
def test_no_file_is_too_long(folder: str) -> None:
    lines = {path: path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py")}
    assert lines
    assert [(str(path), length) for path, length in lines.items() if length > MOST_FILE] == []


@pytest.mark.parametrize("folder", ["src", "speech", "lab", "benchmarks", "docs"])
def test_nothing_stands_behind_what_starts_a_file(folder: str) -> None:
    """It would not be defined yet."""
    behind = {
        path: path.read_text().partition('\nif __name__ == "__main__":\n')[2] for path in (ROOT / folder).rglob("*.py")
    }
    assert [str(path) for path, text in behind.items() if any(line[:1].strip() for line in text.splitlines())] == []


def test_no_function_is_too_long() -> None:
    found = []
    for file in source_files():
        for function in functions(file):
            assert function.end_lineno is not None
            found.append((f"{file.path}: {function.name}", function.end_lineno - function.lineno + 1))
    assert found
    assert [(name, lines) for name, lines in found if lines > MOST_FUNCTION] == []


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of arguments but `self` and `cls`."""
    arguments = function.args
    named = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    return len(named) - (named[:1] in (["self"], ["cls"])) + len(arguments.kwonlyargs)


def test_no_function_has_too_many_arguments() -> None:
    found = [(f"{file.path}: {function.name}", function) for file in source_files() for function in functions(file)]
    limits = {"__init__": MOST_OF_A_CONSTRUCTOR}
    counted = [(name, _arguments(function), limits.get(function.name, MOST_ARGUMENTS)) for name, function in found]
    assert [(name, count) for name, count, most in counted if count > most and name not in FREE] == []
    assert {name for name, _ in found} >= FREE
