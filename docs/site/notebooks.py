"""Tutorial notebooks as pages of the site. They are kept with their outputs, for those who read them where they lie;
`make docs` runs them again, so that a page shows their output of today.

    python docs/site/notebooks.py        run them all, and keep what they show
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]

SECONDS = 100
"""Limit for one cell."""
_BAR = re.compile("[█░]{8}")
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


def with_outputs(path: Path) -> str:
    """Return the file of the notebook with what its cells show as text, without bars and paths of the machine."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell, ran in zip(notebook["cells"], executed(path)["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["execution_count"] = ran["execution_count"]
            cell["outputs"] = [kept for output in ran["outputs"] if (kept := _kept(output, ran["execution_count"]))]
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _kept(output: Cell, count: int) -> Cell | None:
    text = shown(output)
    lines = [line for line in text.splitlines(keepends=True) if line.strip() and not _BAR.search(line)]
    if not lines or output.get("name") == "stderr" or output["output_type"] == "display_data":
        return None
    if output["output_type"] == "stream":
        return {"name": "stdout", "output_type": "stream", "text": lines}
    plain = {"text/plain": text.rstrip("\n").splitlines(keepends=True)}
    return {"data": plain, "execution_count": count, "metadata": {}, "output_type": "execute_result"}


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


if __name__ == "__main__":
    for notebook in sorted((Path(__file__).resolve().parents[1] / "tutorials").glob("*.ipynb")):
        notebook.write_text(with_outputs(notebook), encoding="utf-8")
