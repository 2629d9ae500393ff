"""Draws docs/report.png and docs/compare.png, the first screens of pages.

    python docs/pictures/screens.py FOLDER report compare

report is the page of the demo, run in FOLDER/demo: its seconds are those of this machine. compare trains its corpus
under virtual time, so that it does not depend on the machine; called again, it trains what is missing. Where nothing
else runs, report takes some minutes and compare a quarter of an hour. Needs chromium.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from roundelay.cli import main as roundelay

DOCS = Path(__file__).resolve().parents[1]
SLOWED = ["--straggler", "1:3x"]
GRID = ["--strategies", "ssgd", "adpsgd:random-ring", "--learners", "1,4", "--seeds", "3", *SLOWED]
SIZE = "1100,1180"
"""Pixels of a picture."""


def run(*words: str) -> None:
    """A command of Roundelay; its failure ends this script."""
    if status := roundelay(words):
        raise SystemExit(status)


def prepared(folder: Path) -> list[str]:
    """Overrides that say where the corpus and its alignment are, which are made if they are not there."""
    paths = [f"corpus={folder / 'data'}", f"alignment={folder / 'alignment'}"]
    if not (folder / "data").exists():
        run("prepare", "demo", "--data", str(folder / "data"))
    run("align", "demo", *paths)
    return paths


def report(folder: Path) -> Path:
    """Make the page of `make demo` itself, in the seconds of the machine that draws it."""
    page = folder / "demo" / "report.html"
    if not page.exists():
        run("demo", "--folder", str(folder / "demo"))
    return page


def compare(folder: Path) -> Path:
    """The page of the grid in docs/grids.md."""
    runs = folder / "compare"
    run("compare", "demo", *GRID, "--runtime", "sim", "--exp", str(runs), *prepared(folder))
    return runs / "compare.html"


PICTURES: Mapping[str, Callable[[Path], Path]] = {"report": report, "compare": compare}


def photograph(page: Path, picture: Path) -> None:
    """Write the first screen of a page as PNG."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("chromium is not installed")
    how = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
    subprocess.run([browser, *how, f"--screenshot={picture}", page.resolve().as_uri()], check=True, capture_output=True)


def main() -> None:
    """Train, and draw."""
    if len(sys.argv) < 3 or not set(sys.argv[2:]) <= set(PICTURES):
        raise SystemExit(f"usage: python docs/pictures/screens.py FOLDER {' '.join(PICTURES)}")
    for name in sys.argv[2:]:
        photograph(PICTURES[name](Path(sys.argv[1])), DOCS / f"{name}.png")


if __name__ == "__main__":
    main()
