"""Ink of the pictures of the documentation: quiet colours for light and dark pages, boxes, lines, text.

Coordinates are in pixels, y downwards. A picture has its own background, since a page does not tell it which it has.
"""

import html
from collections.abc import Sequence

HUES = {
    "grey": ("#f3f4f6", "#a7aeb8", "#1a2028", "#56606d"),
    "blue": ("#e7f0fb", "#7397c4", "#14263b", "#5580b4"),
    "green": ("#e6f4ea", "#6fa583", "#13291d", "#4f8a66"),
    "violet": ("#f0ebf9", "#9a86c4", "#241d3a", "#8470b3"),
    "amber": ("#fbf1dc", "#c6a258", "#2f2713", "#a6843f"),
    "red": ("#fbe6e1", "#c96a56", "#381a14", "#d9806c"),
}
"""Fill and edge on a light page, fill and edge on a dark one."""
PAPER, INK, QUIET, RULE = ("#ffffff", "#0f141a"), ("#1f2328", "#e6edf3"), ("#5b6572", "#9aa4b0"), ("#d5dae0", "#333b45")
FONT = "font-family: system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
MONO = "font-family: ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def _colours(dark: bool) -> str:
    rules = [
        f".paper {{ fill: {PAPER[dark]}; stroke: {RULE[dark]} }}",
        f"text {{ fill: {INK[dark]} }}",
        f".quiet {{ fill: {QUIET[dark]} }}",
        f".rule {{ stroke: {RULE[dark]} }}",
        f".line {{ stroke: {QUIET[dark]} }}",
        f".head {{ fill: {QUIET[dark]} }}",
    ]
    for name, hues in HUES.items():
        fill, edge = hues[2 * dark : 2 * dark + 2]
        rules.append(f".{name} {{ fill: {fill}; stroke: {edge} }}")
        rules.append(f".{name}-line {{ stroke: {edge} }}")
        rules.append(f".{name}-mark {{ fill: {edge} }}")
    return "\n".join(rules)


STYLE = f"""
text {{ {FONT}; font-size: 13px }}
.small {{ font-size: 11.5px }}
.title {{ font-size: 16px; font-weight: 600 }}
.strong {{ font-weight: 600 }}
.mono {{ {MONO}; font-size: 12.5px }}
.line, .rule, [class$="-line"] {{ fill: none; stroke-width: 1.4 }}
.faint {{ opacity: 0.45 }}
rect.bare {{ stroke: none }}
.dashed {{ stroke-dasharray: 4 4 }}
{_colours(False)}
@media (prefers-color-scheme: dark) {{
{_colours(True)}
}}
"""


def element(tag: str, *content: str, **attributes: object) -> str:
    """`<tag ...>content</tag>`. Content is markup already; attributes are escaped, `class_` is `class`."""
    text = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{tag}{text}>{''.join(content)}</{tag}>"


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else html.escape(str(value))


def text(content: str, x: float, y: float, class_: str = "", anchor: str = "start") -> str:
    """Return a line of text; `y` is its baseline."""
    return element("text", html.escape(content), x=x, y=y, class_=class_, text_anchor=anchor)


def picture(width: float, height: float, title: str, *content: str) -> str:
    """A whole file: paper, title and content. `title` is also said by screen readers."""
    frame = {"x": 0.5, "y": 0.5, "width": width - 1, "height": height - 1, "rx": 10}
    return (
        element(
            "svg",
            element("style", STYLE),
            element("rect", **frame, class_="paper"),
            text(title, 28, 38, "title"),
            *content,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:.0f} {height:.0f}",
            width=width,
            height=height,
            role="img",
            aria_label=title,
        ).replace("><", ">\n<")
        + "\n"
    )


def box(x: float, y: float, width: float, height: float, hue: str, rx: float = 6) -> str:
    """A filled box."""
    return element("rect", x=x, y=y, width=width, height=height, rx=rx, class_=hue)


def line(*points: tuple[float, float], class_: str = "line") -> str:
    """A line through points."""
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)


def arrow(x: float, y: float, to_x: float, to_y: float, class_: str = "line", head: str = "head") -> str:
    """A straight line with a head at its end."""
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    ux, uy = (to_x - x) / length, (to_y - y) / length
    bx, by = to_x - 8 * ux, to_y - 8 * uy
    corners = [(to_x, to_y), (bx - 3.5 * uy, by + 3.5 * ux), (bx + 3.5 * uy, by - 3.5 * ux)]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners)
    return line((x, y), (bx, by), class_=class_) + element("polygon", points=points, class_=head)


def paragraph(lines: Sequence[str], x: float, y: float, class_: str = "", step: float = 17.0) -> str:
    """Lines of text below each other; `y` is the first baseline."""
    return "".join(text(said, x, y + step * n, class_) for n, said in enumerate(lines))


def wide(said: str, size: float = 12.5) -> float:
    """About how many pixels a line takes."""
    return 0.6 * size * len(said)
