"""Looks at every page of the built site in a browser, under axe: in the light at a desk, in the dark on a telephone.

    python docs/site/look.py site        after `mkdocs build`; status 1 where something serious is found, and what it is

Without a browser or axe nothing is looked at, and that is said.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.browser import axe_source, chromium  # the tests' own

SERIOUS = ("serious", "critical")
LOOKS = ((False, 1200), (True, 390))
"""In the dark or not, and pixels of width."""


def pages_of(folder: Path) -> list[Path]:
    """Return the pages of a site, but for that of what is not there: its scripts are found by a server alone."""
    return sorted(path for path in folder.rglob("*.html") if path.name != "404.html")


def found_on(folder: Path) -> Iterator[str]:
    """Look at all pages below a folder: a line for each serious thing that axe complains of."""
    axe = axe_source()
    with tempfile.TemporaryDirectory() as own, chromium(Path(own)) as browser:
        page = browser.page("about:blank")
        for dark, width in LOOKS:
            page.look(dark=dark, width=width)
            for path in pages_of(folder):
                page.ask("Page.navigate", url=path.resolve().as_uri())
                browser.event("Page.loadEventFired")
                for problem in page.problems(axe, SERIOUS):
                    yield f"{path} ({'dark' if dark else 'light'}, {width} pixels): {problem}"
                browser.events.clear()


def main(folder: Path) -> int:
    """Print what is found; return 1 if it is anything."""
    try:
        found = list(found_on(folder))
    except pytest.skip.Exception as lacking:
        print(f"pages are not looked at: {lacking}")
        return 0
    for line in found:
        print(line)
    print(f"{len(pages_of(folder))} pages, {len(found)} things to mend")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
