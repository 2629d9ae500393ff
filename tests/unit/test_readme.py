"""The README is short, and its numbers are those of committed results."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREEN_AND_A_HALF = 110
"""Lines: a screen of a browser shows about seventy of them."""

_NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)")
_VERSION = re.compile(r"(Python |torch |Apache-|arxiv\.org/abs/)\d+\.\d+")
_RESULTS = re.compile(r"\]\(((?:recipes|docs)/[^)]*\.md|[^)]*\.(?:json|yaml))\)")


def claims(text: str) -> list[tuple[str, list[str], str]]:
    """Lines with measured numbers: the line, its numbers, and the results it names ("" for none)."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = []
    for line in prose.splitlines():
        if numbers := _NUMBER.findall(_VERSION.sub("", re.sub(r"`[^`]*`", "", line))):
            named = _RESULTS.search(line)
            found.append((line, numbers, named[1] if named else ""))
    return found


def test_numbers_are_in_the_results_that_their_line_names() -> None:
    checked = claims(README)
    assert checked
    for line, numbers, results in checked:
        assert results, f"no results are named: {line}"
        text = (ROOT / results).read_text(encoding="utf-8")
        assert [number for number in numbers if number not in _NUMBER.findall(text)] == [], line


@pytest.mark.parametrize("wrong", ["| AN4 | 4.37 % | [RESULTS](recipes/an4/RESULTS.md) |", "It is 3.2 times as fast."])
def test_a_wrong_number_is_noticed(wrong: str) -> None:
    ((_, numbers, results),) = claims(f"# Roundelay\n\nPython 3.11 and `x=0.5` are no claims.\n{wrong}\n")
    text = (ROOT / results).read_text(encoding="utf-8") if results else ""
    assert any(number not in _NUMBER.findall(text) for number in numbers)


def test_it_is_read_in_a_minute() -> None:
    assert README.count("\n") <= SCREEN_AND_A_HALF
    assert len(README.split()) <= 900
    assert max(map(len, README.splitlines())) <= 170
