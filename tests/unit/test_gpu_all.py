"""benchmarks/gpu_all.py: steps with time limits, of which those that were done are not done again."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from support.scripts import load_script
from support.until import until

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu_all.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load_script("benchmarks/gpu_all.py")


def options(out: Path, **others: object) -> argparse.Namespace:
    usual = {"out": out, "device": "cpu", "only": None, "again": False, "seconds": 1e9}
    return argparse.Namespace(**usual | others)


def test_a_step_that_fails_or_hangs_does_not_stop_the_others(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a hanging step has started ends with it, and only what was not done is done again."""
    monkeypatch.setattr(program, "GRACE_SECONDS", 0.1)
    note, child = tmp_path / "note", tmp_path / "child"
    hangs = (
        "import subprocess, time; "
        f"open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '1000']).pid)); "
        "print('begun', flush=True); time.sleep(1000)"
    )
    steps = [
        program.Step("fails", ("-c", "print('why'); raise SystemExit(3)"), 60),
        program.Step("hangs", ("-c", hangs), 5.0),
        program.Step("works", ("-c", f"import sys; open({str(note)!r}, 'a').write(sys.argv[1])"), 60, ("small",)),
    ]
    monkeypatch.setattr(program, "LEAST_SECONDS", 0.0)
    for again in (False, True):
        if again:  # it has shown what it starts
            steps[1] = replace(steps[1], seconds=0.5)
        state = program.go_through(steps, options(tmp_path / "out"))
        assert {name: one["ended"] for name, one in state.items()} == {
            "fails": "failed",
            "hangs": "too long",
            "works": "done",
        }
        command = Path("/proc", child.read_text(), "cmdline")
        until(lambda at=command: not at.exists() or not at.read_bytes())  # type: ignore[misc]
    assert note.read_text() == "small"
    assert "why" in (tmp_path / "out" / "fails.log").read_text()
    assert json.loads((tmp_path / "out" / "steps.json").read_text()) == state


def test_no_step_begins_when_time_is_over(program: ModuleType, tmp_path: Path) -> None:
    steps = [program.Step("one", ("-c", ""), 60), program.Step("other", ("-c", ""), 60)]
    assert program.go_through(steps, options(tmp_path, seconds=5.0)) == {}
    assert program.go_through(steps, options(tmp_path, only=["oth"])).keys() == {"other"}


def test_every_step_is_a_file_that_is_there(program: ModuleType) -> None:
    for step in program.STEPS:
        files = [part for part in step.command if part.endswith(".py")]
        assert files
        assert all((PROGRAM.parents[1] / file).is_file() for file in files), step.name
    assert len({step.name for step in program.STEPS}) == len(program.STEPS)
