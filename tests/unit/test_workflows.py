"""Workflows and the Dockerfile: whatever they name is there."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    """Steps of all jobs."""
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_targets_and_files_that_are_called_are_there(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = " ".join(step.get("run", "") for step in steps(workflow))
    assert called
    assert set(re.findall(r"\bmake ([a-z-]+)", called)) <= targets
    files = re.findall(r"(?:^|\s)((?:\.ci|examples|benchmarks|docs)/[\w./]+)", called)
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert all(re.search(r"@v\d+$", step["uses"]) for step in steps(workflow) if "uses" in step)


def test_the_image_copies_what_is_there() -> None:
    lines = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert lines
    assert [name for line in lines for name in line.split() if not (ROOT / name).exists()] == []
