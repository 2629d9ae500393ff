"""Boxes, arrows and text as SVG: as much of it as the pictures of the documentation need."""

from collections.abc import Sequence
from html import escape

INK, PALE = "#24292f", "#8c959f"


def text(
    x: float, y: float, words: str, size: int = 13, ink: str = INK, anchor: str = "middle", bold: bool = False
) -> str:
    """One line, with the middle of its small letters near `y`."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y + 0.33 * size:g}" font-size="{size}" fill="{ink}" text-anchor="{anchor}"{weight}>'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, fill: str, lines: Sequence[tuple[str, int]]) -> str:
    """A box around its middle, with lines of text in it, (words, size) each; the first is bold."""
    step = height / (len(lines) + 0.4)
    words = [
        text(x, y - height / 2 + step * (n + 0.7), line, size, INK, bold=not n) for n, (line, size) in enumerate(lines)
    ]
    frame = (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}" rx="7" '
        f'fill="{fill}" stroke="{INK}" stroke-width="1"/>'
    )
    return "\n".join([frame, *words])


def arrow(path: str) -> str:
    """Along an SVG path."""
    return f'<path d="{path}" fill="none" stroke="{PALE}" stroke-width="1.3" marker-end="url(#head)"/>'


def label(x: float, y: float, words: str) -> str:
    """Words on a line, which they hide."""
    width = 6.4 * len(words) + 6
    back = f'<rect x="{x - width / 2:g}" y="{y - 8:g}" width="{width:g}" height="16" fill="white"/>'
    return back + "\n" + text(x, y, words, 12)


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """The whole file."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{PALE}"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif">',
            f"<title>{escape(title)}</title>",
            f"<defs>{head}</defs>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )
