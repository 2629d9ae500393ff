"""No file and no function is longer than a reader can keep in view."""

from support.source import functions, source_files

MOST_FILE, MOST_FUNCTION = 400, 60
"""Lines."""


def test_no_file_is_too_long() -> None:
    files = [(file.path, file.text.count("\n")) for file in source_files()]
    assert [(path, lines) for path, lines in files if lines > MOST_FILE] == []


def test_no_function_is_too_long() -> None:
    found = []
    for file in source_files():
        for function in functions(file):
            assert function.end_lineno is not None
            found.append((f"{file.path}: {function.name}", function.end_lineno - function.lineno + 1))
    assert found
    assert [(name, lines) for name, lines in found if lines > MOST_FUNCTION] == []
