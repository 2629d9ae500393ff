"""Docstrings say what a thing is, subject first, in words of the trade; `Args:` names arguments that there are: none is
left behind when one is renamed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source import source_files

ROOT = Path(__file__).parents[2]
NOUN_CLAUSE = re.compile(
    r"(What|Who|Whom|Whose|Where|How|Which|When|Why|Whether|Whoever|Whatever|Wherever|Whenever|Whichever|However)\b"
)
NO_VERB = re.compile(
    r"(The|A|An|All|Its|Their|It|They|This|That|These|Those|One|Every|Everything|Nothing|Nobody|Of|By|For|From|In|On|At"
    r"|To|With|Under|Until|After|Before|While|As|If|Is|Are|Does|Has|Can|May|Might|Could|True|False|Names|Bytes|Seconds)\b"
)


def docstrings() -> list[tuple[str, str]]:
    """Place and text of every docstring of the package, those of constants and attributes too."""
    return [one for file in source_files() for one in docstrings_of(file.path, file.tree)]


def docstrings_beside() -> list[tuple[str, str]]:
    """The same of tests, benchmarks, examples and the scripts of docs."""
    files = [path for folder in ("tests", "benchmarks", "examples", "docs") for path in (ROOT / folder).rglob("*.py")]
    return [one for path in files for one in docstrings_of(str(path), ast.parse(path.read_text(encoding="utf-8")))]


def docstrings_of(path: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield f"{path}:{value.lineno}", value.value.strip()


def test_no_docstring_begins_with_a_noun_clause() -> None:
    found = [*docstrings(), *docstrings_beside()]
    assert [(where, text) for where, text in found if NOUN_CLAUSE.match(text)] == []


def test_functions_begin_with_a_verb() -> None:
    functions = [
        (f"{file.path}:{node.lineno}", ast.get_docstring(node) or "")
        for file in source_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any(re.search(r"property|setter", ast.unparse(decorator)) for decorator in node.decorator_list)
    ]
    assert len(functions) > 1000
    assert [(where, text) for where, text in functions if NO_VERB.match(text)] == []


@pytest.mark.parametrize("text", ["What is counted now.", "Whether it fits.", "How many there are."])
def test_the_rule_knows_a_noun_clause(text: str) -> None:
    assert NOUN_CLAUSE.match(text)


@pytest.mark.parametrize("text", ["Whole numbers.", "Number of rows; how many is known later.", "Whenceforth."])
def test_the_rule_leaves_other_sentences(text: str) -> None:
    assert not NOUN_CLAUSE.match(text)


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


def left_behind(tree: ast.Module) -> list[str]:
    """Names in docstrings that are no arguments. A class without arguments of its own has its base's."""
    return [
        f"{definition.name}: {name}"
        for definition in ast.walk(tree)
        if isinstance(definition, Definition) and taken(definition)
        for name in named(ast.get_docstring(definition) or "")
        if name not in taken(definition)
    ]


def test_arguments_in_docstrings_are_arguments() -> None:
    lost = [(file.path, left_behind(file.tree)) for file in source_files()]
    assert lost
    assert not [found for found in lost if found[1]]


def test_one_that_is_left_behind_is_found() -> None:
    docstring = "Does it.\n\n    Args:\n        old: first.\n        other: second\n            line.\n    "
    source = f'def f(new, other):\n    """{docstring}"""\n'
    assert left_behind(ast.parse(source)) == ["f: old"]
