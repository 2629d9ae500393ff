"""Links between pages, and from pages to files, lead somewhere."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").rglob("*.md")])
PAGES += sorted((ROOT / "docs").rglob("*.ipynb"))


def prose(page: Path) -> str:
    """Text of a page, or of a notebook's cells of Markdown."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    bare = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in found]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in bare}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", prose(page))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in headings(there)):
            lost.append(f"{target}#{anchor}" if anchor else target)
    assert not lost
