"""Pages and pictures from templates: values put into one are escaped, and only our own script may run on a page.

Templates lie beside the code that fills them (`page.html`, `charts.svg`; Markdown in `.md`, where nothing is escaped).
A page loads nothing from elsewhere: style and script are in it, and the fonts are the reader's own.
"""

import base64
import hashlib
import math
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from roundelay import __version__
from roundelay.reports.numbers import percent, plain, seconds, short

CHARACTER = 6.7  # width of an average character of 12-pixel system sans-serif; labels are placed, not measured


def render(template: str, **values: object) -> Markup:
    """Fill a template, named `PACKAGE/FILE`, or `FILE` of this package, with `values`.

    Raises:
        UndefinedError: the template names a value that is not given.
    """
    return Markup(_environment().get_template(template).render(values))


def draw(macro: str, *values: object, template: str = "charts.svg", **named: object) -> Markup:
    """Return the text that a macro of a template makes of `values`."""
    found: Markup = getattr(_environment().get_template(template).module, macro)(*values, **named)
    return found


def page(template: str, title: str, *, script: str = "", sound: bool = False, **values: object) -> str:
    """Return a whole page, one of those that extend `page.html`.

    Args:
        script: a script that follows the one of all pages.
        sound: True if the page may play sound that is in it.
    """
    style, own = (_read(name) for name in ("page.css", "page.js"))
    whole = own + script
    # Forbids every request and every script but ours: neither a mistake here nor a name in a record can make one.
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy += "; media-src data:" if sound else ""
    parts = {"policy": Markup(policy), "style": Markup(style), "script": Markup(whole), "version": __version__}
    return str(render(template, title=title, **parts, **values))


def joined(sentence: str) -> str:
    """Return a sentence with no-break blanks between numbers and per cent signs."""
    return sentence.replace(" %", "\u00a0%")


def clip(content: str, width: float) -> str:
    """Return text cut to about `width` pixels of a picture."""
    fits = max(1, int(width / CHARACTER))
    return content if len(content) <= fits else content[: fits - 1] + "…"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FunctionLoader(_source),
        autoescape=lambda name: name is None or not name.endswith(".md"),
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {one.__name__: one for one in (clip, joined, percent, plain, seconds, short)}
    made.tests["finite"] = math.isfinite
    made.filters["points"] = lambda points: " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    made.filters["base64"] = lambda content: base64.b64encode(content).decode()
    return made


def _read(name: str) -> str:
    package, _, file = name.rpartition("/")
    return files(package or __package__).joinpath(file).read_text(encoding="utf-8")


def _source(name: str) -> str:
    """Read a template without line ends after tags, which a browser would show as gaps; comments in their place keep
    line numbers of errors true."""
    return _read(name) if name.endswith(".md") else re.sub(r"(?<=[>}])\n\s*", "{#\n#}", _read(name))


def _printed(value: Any) -> Any:
    """Return a value as a template prints it: coordinates with at most two digits, and without characters that no page
    may hold (control characters, surrogates)."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, Markup):
        return value
    text = "".join(c if c in "\t\n" or (c >= " " and not "\x7f" <= c <= "\x9f") else "\ufffd" for c in str(value))
    return text.encode("utf-8", "replace").decode()
