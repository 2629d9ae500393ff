"""Pictures of the documentation are what their scripts draw from the code as it is."""

import importlib
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
AGAIN = "python docs/pictures/draw.py draws them anew"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    sys.path.insert(0, str(PICTURES))
    try:
        pictures: dict[str, str] = importlib.import_module("draw").pictures()
    finally:
        sys.path.remove(str(PICTURES))
    return pictures


def test_pictures_are_as_drawn(drawn: dict[str, str]) -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert kept.keys() == drawn.keys(), AGAIN
    assert not [name for name in kept if kept[name] != drawn[name]], AGAIN


def test_every_picture_is_shown_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PICTURES.parent.glob("*.md"))
    shown = set(re.findall(r"!\[[^\]]+\]\(pictures/(\w+\.svg)\)", pages))
    assert shown == {path.name for path in PICTURES.glob("*.svg")}


def test_a_picture_says_what_it_is_to_those_who_do_not_see_it(drawn: dict[str, str]) -> None:
    for name, svg in drawn.items():
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label") or root.findtext("{http://www.w3.org/2000/svg}title"), name
