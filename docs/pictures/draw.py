"""Draws the pictures of the documentation from the code that they show, so that they cannot say anything else.

    python docs/pictures/draw.py

A picture is a module beside this one whose `draw` returns the text of an SVG file.
"""

from pathlib import Path

import exchange_states

PICTURES = {"exchange_states.svg": exchange_states.draw}
"""By the name of the file."""

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / name).write_text(draw(), encoding="utf-8")
