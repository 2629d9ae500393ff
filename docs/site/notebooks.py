"""Tutorial notebooks as pages of the site. They are kept without outputs; `make docs` runs them, so that a page shows
their output of today."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]

SECONDS = 100
"""Limit for one cell."""
_WRITTEN_OVER = re.compile(r"[^\n]*\r(?!\n)")


def executed(path: Path) -> Mapping[str, Any]:
    """The notebook with the outputs of all its cells, run in an empty folder.

    Raises:
        CellExecutionError: a cell raised an exception; names the cell and the exception.
    """
    import nbformat  # noqa: PLC0415 an extra
    from nbclient import NotebookClient  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        talk = Config(KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel.json"})  # opens no port
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, config=talk, timeout=SECONDS, resources=resources).execute()
    found: Mapping[str, Any] = notebook
    return found


def as_page(path: Path, *, run: bool) -> str:
    """The notebook as Markdown; with its outputs, if it is run."""
    notebook = executed(path) if run else json.loads(path.read_text(encoding="utf-8"))
    parts = [part for cell in notebook["cells"] for part in _cell(cell)]
    parts.append(f"This page is a notebook: [{path.name}]({path.name}) to run it yourself.\n")
    return "\n".join(parts)


def _cell(cell: Cell) -> Iterator[str]:
    source = _text(cell["source"])
    if cell["cell_type"] != "code":
        yield f"{source}\n"
        return
    yield f"```python\n{source}\n```\n"
    if printed := "".join(map(shown, cell["outputs"])).rstrip("\n"):
        yield f"```text\n{printed}\n```\n"


def shown(output: Cell) -> str:
    """Text of an output: of a stream, or of a value, whose other forms are left out."""
    if output["output_type"] == "stream":
        return _WRITTEN_OVER.sub("", _text(output["text"]))
    text = _text(output.get("data", {}).get("text/plain", ""))
    return text if text.endswith("\n") else f"{text}\n"


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
