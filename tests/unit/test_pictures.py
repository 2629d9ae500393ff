"""The pictures of the documentation are drawn from the code that they show."""

import runpy
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def test_pictures_show_what_the_code_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw them again: `python docs/pictures/draw.py`."""
    monkeypatch.syspath_prepend(PICTURES)
    drawn = runpy.run_path(str(PICTURES / "draw.py"))["PICTURES"]
    assert {path.name for path in PICTURES.glob("*.svg")} == set(drawn)
    for name, draw in drawn.items():
        assert (PICTURES / name).read_text(encoding="utf-8") == draw(), f"{name} is not what the code says"
