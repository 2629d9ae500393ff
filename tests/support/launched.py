"""Scripts started as several learners, and what they report."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.preloaded import environment, run_preloaded

TESTS = Path(__file__).parents[1]
PATIENCE = 300 if os.environ.get("ROUNDELAY_TEST_DEVICE") == "cuda" else 220
"""Seconds that all of them have. A process is slow to begin on a GPU: its context takes seconds."""
LAUNCH = (sys.executable, "-m", "roundelay.cli", "launch", "-n")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")


def run_learners(
    learners: int, *command: str, by: tuple[str, ...] = LAUNCH, expect: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run `command` as `learners` learners, started `by` a module of Python; its exit status must be `expect`."""
    return _run([*by[1:], str(learners), *command], expect, {})


def replay(
    record: Path, *behind: str, expect: int = 0, variables: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[str]":
    """Replay the script that is recorded in `record`, with the command `behind` if given; exit status as expected."""
    return _run(["-m", "roundelay.cli", "replay", str(record), *behind], expect, variables)


def _run(arguments: list[str], expect: int, variables: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    done = run_preloaded(arguments, environment(**variables), timeout=PATIENCE)
    assert done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def report(**facts: Any) -> None:
    """Print a learner's facts as a line for its test, by one write, so that lines of several learners do not mix."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def reports(text: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the reports of learners in `text`, by `law`, which says what each is about, and by rank."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in text.splitlines():
        if said := re.fullmatch(r"(?:\[[\d.]+\] )?({.*})", line):  # `roundelay launch` says whose line it is
            facts = json.loads(said[1])
            found[facts["law"]][facts["rank"]] = facts
    return found
