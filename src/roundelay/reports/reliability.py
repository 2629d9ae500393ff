"""A picture of how true confidences are, which stands by itself: on the card of a packed model."""

import math
from collections.abc import Sequence

from roundelay.reports.svg import element, text

_SIZE, _LEFT, _TOP, _BOTTOM = 280.0, 50.0, 12.0, 46.0  # pixels: of the square of the plot, and around it
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_Z = 1.96  # standard deviations of a 95 % interval
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.frame{fill:#fff;stroke:#bbb}.true{stroke:#999;stroke-dasharray:4 4}"
    ".bar{stroke:#1f6f8b;stroke-width:2}.dot{fill:#1f6f8b}"
)


def reliability_picture(bins: Sequence[tuple[float, int, int]], label: str) -> str:
    """Return an SVG file: the share of right words over confidence, with 95 % intervals (Wilson), beside the diagonal
    on which true confidences lie.

    Args:
        bins: mean confidence, right words and words of each.
        label: what a screen reader says instead of it.
    """

    def x(value: float) -> float:
        return _LEFT + _SIZE * value

    def y(value: float) -> float:
        return _TOP + _SIZE * (1 - value)

    parts = [
        element("style", _STYLE),
        element("rect", x=_LEFT, y=_TOP, width=_SIZE, height=_SIZE, class_="frame"),
        element("line", x1=x(0), y1=y(0), x2=x(1), y2=y(1), class_="true"),
    ]
    for tick in _TICKS:
        parts += [
            text(f"{tick:g}", x(tick), y(0) + 16, anchor="middle"),
            text(f"{tick:g}", _LEFT - 6, y(tick) + 4, anchor="end"),
        ]
    parts.append(text("confidence", x(0.5), y(0) + 36, anchor="middle"))
    parts.append(
        element(
            "g",
            text("share of right words", 0, 0, anchor="middle"),
            transform=f"translate(14 {y(0.5):.0f}) rotate(-90)",
        )
    )
    for confidence, right, words in bins:
        low, high = _wilson(right, words)
        said = element("title", f"confidence {confidence:.2f}: {right} of {words} words are right")
        parts.append(element("line", x1=x(confidence), y1=y(low), x2=x(confidence), y2=y(high), class_="bar"))
        parts.append(element("circle", said, cx=x(confidence), cy=y(right / words), r=4.0, class_="dot"))
    width, height = _LEFT + _SIZE + 16, _TOP + _SIZE + _BOTTOM
    attributes = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": width, "height": height, "role": "img"}
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", aria_label=label, **attributes) + "\n"


def _wilson(right: int, words: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927, equation 6)."""
    share, z2 = right / words, _Z**2 / words
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(share * (1 - share) / words + z2 / (4 * words)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)
