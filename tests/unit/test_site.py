"""The site: every page is in its navigation and on its first page, and it builds without a warning."""

import os
import re
from pathlib import Path

import pytest

from support.processes import run_python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
OFF_SITE = {"log.md", "claims.md"}
"""For developers, and long: files of the repository, which no reader of the site has to pass."""
NOTEBOOKS = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.ipynb")}


def test_every_page_is_on_the_first_page_and_in_the_navigation() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = {link for link in re.findall(r"\]\(([^)#\s]+\.(?:md|ipynb))\)", index) if not link.startswith("../")}
    assert linked == PAGES | NOTEBOOKS
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    outside = {"CONTRIBUTING.md", "CHANGELOG.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("recipes/*/*.md"))}
    made = {name for name in listed if name.startswith("reference/")}
    made |= {name.replace(".ipynb", ".md") for name in NOTEBOOKS}
    assert len(listed) == len(set(listed))
    assert made <= set(listed)
    assert set(listed) - made == (PAGES - OFF_SITE) | outside | {"index.md"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install 'roundelay[docs]'")
    pytest.importorskip("mkdocstrings", reason="pip install 'roundelay[docs]'")
    out = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", str(out), where=ROOT, env=environment)
    return out


def test_the_references_are_made_from_the_code(site: Path) -> None:
    commands = (site / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    for said in ("roundelay inspect data/mine", "--on-missing-words", "roundelay help train"):
        assert said in commands
    keys = (site / "reference" / "keys" / "index.html").read_text(encoding="utf-8")
    assert "training.minibatch_per_learner" in keys
    assert "adpsgd" in keys
    assert "roundelay.attach" in (site / "reference" / "python" / "index.html").read_text(encoding="utf-8")


def test_files_for_developers_are_not_on_the_site(site: Path) -> None:
    """Links of pages to them do not lead to pages that are not there."""
    stems = [name.removesuffix(".md") for name in sorted(OFF_SITE)]
    assert not [stem for stem in stems if (site / stem).exists()]
    leading = re.compile(rf"href=\"(?!https?://)([^\"#]*/)?({'|'.join(stems)})(/|\.md|\.html)?[\"#]")
    assert not [str(page) for page in site.rglob("*.html") if leading.search(page.read_text(encoding="utf-8"))]


def test_notebooks_are_pages_that_lead_to_each_other(site: Path) -> None:
    page = (site / "tutorials" / "recordings_to_words" / "index.html").read_text(encoding="utf-8")
    assert "roundelay" in page
    assert 'href="../comparing_strategies/"' in page
    assert 'href="../recordings_to_words.ipynb"' in page
    assert 'href="../tutorials/your_own_loop/"' in (site / "attach" / "index.html").read_text(encoding="utf-8")


def test_no_page_of_the_site_asks_others_for_anything(site: Path) -> None:
    asking = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="https?://')
    found = [str(page) for page in site.rglob("*.html") if asking.search(page.read_text(encoding="utf-8"))]
    assert found == []
