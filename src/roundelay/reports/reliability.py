"""A picture of how true confidences are, which stands by itself: on the card of a packed model."""

import math
from collections.abc import Sequence

from roundelay.reports.markup import render

_Z = 1.96  # standard deviations of a 95 % interval


def reliability_picture(bins: Sequence[tuple[float, int, int]], label: str) -> str:
    """Return an SVG file: the share of right words over confidence, with 95 % intervals (Wilson), beside the diagonal
    on which true confidences lie.

    Args:
        bins: mean confidence, right words and words of each.
        label: what a screen reader says instead of it.
    """
    found = [(confidence, right, words, *_wilson(right, words)) for confidence, right, words in bins]
    return str(render("reliability.svg", bins=found, label=label)) + "\n"


def _wilson(right: int, words: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927, equation 6)."""
    share, z2 = right / words, _Z**2 / words
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(share * (1 - share) / words + z2 / (4 * words)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)
