"""Tutorial notebooks run from their first cell to their last, as readers run them, and are kept with what they show."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import load_script

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
SAID = {
    "comparing_strategies": ["ssgd 105.2 0.76 0.0 100 to 100", "bytes of page.html"],
    "recordings_to_words": ["% words wrong", "STAY", "nats per frame"],
    "your_own_loop": ["[0] learner 0 of 2: ", "[1] learner 1 of 2: "],
}
"""Words that a notebook prints: it did what it is about."""


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    pytest.importorskip("nbclient", reason="pip install 'roundelay[dev]'")
    pytest.importorskip("ipykernel", reason="pip install 'roundelay[dev]'")
    return load_script("docs/site/notebooks.py")


@pytest.mark.parametrize("name", SAID)
def test_every_cell_runs(name: str, notebooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):  # nothing is left in the user's folders
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    cells = notebooks.executed(TUTORIALS / f"{name}.ipynb")["cells"]
    outputs = [notebooks.shown(output) for cell in cells for output in cell.get("outputs", ())]
    shown = " ".join("".join(outputs).split())
    assert [words for words in SAID[name] if words not in shown] == []
    assert "Warning" not in shown


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SAID)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_with_outputs(path: Path) -> None:
    """Of its last run from the first cell to the last, with no place of the machine that ran it, and no bars."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell["outputs"]]
    texts = ["".join(output.get("text") or output["data"]["text/plain"]) for output in outputs]
    shown = " ".join(" ".join(texts).split())
    assert [words for words in SAID[path.stem] if words not in shown] == []
    assert [text for text in texts if "█" in text or "/tmp/" in text or "/home/" in text] == []
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    assert path.stat().st_size < 20_000
    assert notebook["cells"][0]["source"][0].startswith("# ")
