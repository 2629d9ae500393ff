"""No file and no function is longer than a reader can keep in view."""

from pathlib import Path

import pytest

from support.source import functions, source_files

MOST_FILE, MOST_FUNCTION = 600, 60
"""Lines."""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples", "docs"])
def test_no_file_is_too_long(folder: str) -> None:
    lines = {path: path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py")}
    assert lines
    assert [(str(path), length) for path, length in lines.items() if length > MOST_FILE] == []


def test_no_function_is_too_long() -> None:
    found = []
    for file in source_files():
        for function in functions(file):
            assert function.end_lineno is not None
            found.append((f"{file.path}: {function.name}", function.end_lineno - function.lineno + 1))
    assert found
    assert [(name, lines) for name, lines in found if lines > MOST_FUNCTION] == []
