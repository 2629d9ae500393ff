"""Docstrings say what a thing is, subject first, in words of the trade."""

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
