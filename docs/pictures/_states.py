"""Boxes of states, and arcs between them."""

from collections.abc import Sequence

from _ink import box as frame
from _ink import element, text

HEAD = element(
    "defs",
    element(
        "marker",
        element("path", d="M0,0 L8,4 L0,8 z", class_="head"),
        id="head",
        viewBox="0 0 8 8",
        refX=7,
        refY=4,
        markerWidth=8,
        markerHeight=8,
        orient="auto",
    ),
)
"""The head of an arrow; a picture with arrows has it once."""


def state(x: float, y: float, width: float, height: float, hue: str, lines: Sequence[str]) -> str:
    """A box around its middle, with lines of text in it; the first is the name."""
    step = 15.5
    first = y + 4.5 - step * (len(lines) - 1) / 2
    words = [
        text(said, x, first + step * n, "small quiet" if n else "strong", "middle") for n, said in enumerate(lines)
    ]
    return frame(x - width / 2, y - height / 2, width, height, hue, 7) + "".join(words)


def arc(path: str) -> str:
    """An arrow along an SVG path."""
    return element("path", d=path, class_="line", marker_end="url(#head)")


def label(x: float, y: float, words: str) -> str:
    """Words on a line, which they hide."""
    width = 6.2 * len(words) + 8
    back = element("rect", x=x - width / 2, y=y - 8, width=width, height=16.0, class_="paper bare")
    return back + text(words, x, y + 4, "small", "middle")
