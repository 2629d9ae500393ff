"""A docstring's `Args:` names arguments that there are: none is left behind when one is renamed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(ROOT / place for place in ("src/roundelay", "speech/src/roundelay_speech", "lab/src/roundelay_lab"))

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def named(docstring: str) -> list[str]:
    """Names under `Args:`; an explanation may go on in deeper lines."""
    found = re.search(r"^Args:\n((?:    .*\n?|\n)*)", docstring, re.MULTILINE)
    lines = re.findall(r"^    (\w+(?:, \*{0,2}\w+)*): ", found[1], re.MULTILINE) if found else []
    return [name.strip(" *") for line in lines for name in line.split(",")]


def taken(definition: Definition) -> set[str]:
    """Arguments of a function, or of a class's construction."""
    if isinstance(definition, ast.ClassDef):
        makers = [n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        fields = {
            n.target.id for n in definition.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        }
        return fields.union(*(taken(maker) for maker in makers))
    arguments = definition.args
    several = [arguments.vararg, arguments.kwarg]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *(one for one in several if one)]
    return {argument.arg for argument in every}


def definitions(source: str) -> Iterator[Definition]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Definition):
            yield node


def left_behind(source: str) -> list[str]:
    """Names in docstrings that are no arguments. A class without arguments of its own has its base's."""
    return [
        f"{definition.name}: {name}"
        for definition in definitions(source)
        if taken(definition)
        for name in named(ast.get_docstring(definition) or "")
        if name not in taken(definition)
    ]


def test_arguments_in_docstrings_are_arguments() -> None:
    files = [path for package in PACKAGES for path in package.rglob("*.py")]
    lost = [(str(path.relative_to(ROOT)), left_behind(path.read_text(encoding="utf-8"))) for path in files]
    assert not [found for found in lost if found[1]]


def test_one_that_is_left_behind_is_found() -> None:
    docstring = "Does it.\n\n    Args:\n        old: first.\n        other: second\n            line.\n    "
    source = f'def f(new, other):\n    """{docstring}"""\n'
    assert left_behind(source) == ["f: old"]
