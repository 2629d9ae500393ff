"""One HTML document that asks nobody for anything: style and script are in it, and only ours may run."""

import base64
import hashlib
from importlib.resources import files

from roundelay import __version__
from roundelay.reports.svg import element, esc


def document(title: str, main: str, *, sound: bool = False, script: str = "") -> str:
    """Return the document around `main`.

    Args:
        sound: it may play sound that is in it.
        script: further script, after the one of all pages.
    """
    here = files("roundelay.reports")
    style, own = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    whole = own + script
    # Forbids every request and every script but ours: neither a mistake here nor a name in a record can make one.
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy += "; media-src data:" if sound else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{esc(title)}</title>\n<style>\n{style}</style>\n</head>\n'
        f"<body>\n{main}\n<script>{whole}</script>\n</body>\n</html>\n"
    )


def footer() -> str:
    """Return the line that says what made the page."""
    note = f"Made by Roundelay {esc(__version__)} from the records of these runs alone."
    return element("footer", element("p", note))
