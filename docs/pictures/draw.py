"""Draws the pictures of the documentation: `python docs/pictures/draw.py`, run from anywhere, writes every SVG anew.

A picture is a module beside this file with a function `draw() -> str`; its SVG has the same name.
"""

import importlib
from pathlib import Path

HERE = Path(__file__).resolve().parent


def pictures() -> dict[str, str]:
    """File name -> SVG, of every picture there is."""
    modules = {
        path.stem: importlib.import_module(path.stem) for path in sorted(HERE.glob("*.py")) if path.stem != "draw"
    }
    return {f"{name}.svg": module.draw() for name, module in modules.items() if hasattr(module, "draw")}


def main() -> None:
    """Write them."""
    for name, svg in pictures().items():
        (HERE / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
