"""Makes the site of the pages as they are (`make docs`): MkDocs calls these functions.

Pages outside docs (CONTRIBUTING, CHANGELOG, results of recipes) are taken in; the references of commands, of keys and
of the Python interface are made from the code, so that they cannot be out of date; notebooks become pages, with their
outputs where `run_notebooks` is set. Links to files that are no pages lead to the repository, if `repo_url` names one,
and are plain text otherwise.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from posixpath import join, normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import as_page

import roundelay
from roundelay.cli import command_parsers
from roundelay.options.known import about_strategy, strategies, strategy_options
from roundelay_speech.recipes.known import choices, recipe_options

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
TAKEN_IN = ("CONTRIBUTING.md", "CHANGELOG.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("recipes/*/*.md")))
_LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs and those made from the code."""
    for path in TAKEN_IN:
        files.append(File.generated(config, path, content=(ROOT / path).read_text(encoding="utf-8")))
    for path, content in references().items():
        files.append(File.generated(config, path, content=content))
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        page = as_page(path, run=bool(config.extra["run_notebooks"]))
        files.append(File.generated(config, f"{TUTORIALS.name}/{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mends links, which are written for the repository: there docs is a folder. The first page is the README, with the
    list of all pages behind it."""
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        return markdown
    if uri != "index.md":
        return _mended(markdown, uri if uri in TAKEN_IN else f"docs/{uri}", config, files)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lists = markdown[markdown.index("\n## ") :].replace("\n## ", "\n### ")
    pages = f"\n## All pages\n{_mended(lists, 'docs/index.md', config, files)}"
    return _mended(readme, "README.md", config, files) + pages


def _mended(markdown: str, here: str, config: MkDocsConfig, files: Files) -> str:
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: _link(found, here, config, files), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], here: str, config: MkDocsConfig, files: Files) -> str:
    shown, target, anchor = found[1], found[2], found[3] or ""
    if "://" in target or target.startswith("mailto:"):
        return found[0]
    there = normpath(join(os.path.dirname(here), target))
    there = "docs/index.md" if there == "README.md" else there
    if there.endswith(".ipynb") and (page := there.replace(".ipynb", ".md")) != here:
        there = page  # a notebook is shown as its page; only that has the notebook itself
    uri = there.removeprefix("docs/") if there.startswith("docs/") else there
    page = files.get_file_from_path(uri)
    if page is not None and page.inclusion.is_included() and (there.startswith("docs/") or there in TAKEN_IN):
        start = os.path.dirname(here.removeprefix("docs/") if here.startswith("docs/") else here) or "."
        return f"{shown}({relpath(uri, start)}{'' if there == 'docs/index.md' else anchor})"
    if config.repo_url:
        return f"{shown}({config.repo_url.rstrip('/')}/blob/main/{there}{anchor})"
    return shown[1:-1]


# References -----------------------------------------------------------------------------------------------------------


def references() -> dict[str, str]:
    """Pages made from the code, by their path."""
    return {
        "reference/commands.md": commands_page(),
        "reference/keys.md": keys_page(),
        "reference/python.md": python_page(),
    }


def commands_page() -> str:
    """Every command with its options and examples, as its help has them."""
    parts = ["# Commands\n\nMade from the help of the command line; `roundelay help COMMAND` prints the same.\n"]
    for name, parser in sorted(command_parsers().items()):
        parser.prog = f"roundelay {name}"
        parts.append(f"## {name}\n\n```text\n{_plain(parser.format_help())}```\n")
    return "\n".join(parts)


def keys_page() -> str:
    """Every key of a recipe, and every option of strategies and of what is chosen by name."""
    parts = [
        "# Keys of recipes\n\nMade from the code; `roundelay list options RECIPE` prints them with a recipe's values.\n"
    ]
    parts.append(_table([(o.key, o.value, o.values, o.about) for o in recipe_options({})]))
    parts.append("\n## Strategies\n")
    for name in strategies():
        parts.append(f"\n### `{name}`\n\n{about_strategy(name)}\n\n{_options(strategy_options(name))}")
    for what in ("models", "objectives", "graphs"):
        parts.append(f"\n## {what.capitalize()}\n")
        for name, (about, its) in choices(what).items():
            parts.append(f"\n### `{name}`\n\n{about}\n\n{_options(its)}")
    return "\n".join(parts) + "\n"


def python_page() -> str:
    """The public names of the package, from their docstrings."""
    names = [name for name in sorted(roundelay.__all__) if not name.startswith("__")]
    parts = ["# From Python\n\nThe public names of `import roundelay`, from their docstrings. Others may change.\n"]
    parts += [f"\n::: roundelay.{name}\n" for name in names]
    return "".join(parts)


def _options(options: Any) -> str:
    return _table([(o.key, o.value, o.values, o.about) for o in options]) if options else "No options.\n"


def _table(rows: list[tuple[Any, Any, Any, Any]]) -> str:
    lines = ["| key | default | values | |", "|---|---|---|---|"]
    for key, value, values, about in rows:
        shown = "must be given" if value is None else f"<code>{_cell(value)}</code>"
        lines.append(f"| <code>{_cell(key)}</code> | {shown} | {_cell(values)} | {_cell(about)} |")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    text = str(value)
    for special in "|<[]*":
        text = text.replace(special, f"&#{ord(special)};")
    return text or " "


def _plain(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def on_config(config: MkDocsConfig) -> Mapping[str, Any]:
    """Help texts are wrapped for a page, not for the terminal that happens to build it."""
    os.environ["COLUMNS"] = "100"
    return config
