"""Numbers as people read them; anything that is not a finite number says so."""

import math

MISSING = "–"


def short(value: float) -> str:
    """Return a number in short, 1234567 as 1.23M: at most four characters of digits and a letter."""
    if not math.isfinite(value):
        return plain(value)
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return "%.3g%s" % (value / size, letter) if abs(value) < 1e15 else f"{value:.1e}"  # noqa: UP031
    return f"{value:.3g}"


def plain(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` digits after the point, or an exponent where those would be unreadable."""
    if value is None:
        return MISSING
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite"
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent, 0.551 as 55.1 %."""
    return MISSING if share is None else f"{plain(100 * share, digits)} %" if math.isfinite(share) else plain(share)


def seconds(value: float) -> str:
    """Return a length of time in a short form: 41.2 s, 12 min, 3.1 h."""
    if not math.isfinite(value):
        return plain(value)
    if value < 100:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.1f} min" if value < 7200 else f"{short(value / 3600)} h"
