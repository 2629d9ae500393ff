"""A run's directory: whose it is, that nobody else writes it, and what was made where."""

import fcntl
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml

from roundelay.checkpoint import latest
from roundelay.core.configure import read_yaml
from roundelay.core.errors import UserError
from roundelay.core.files import unwritable, write_text
from roundelay.core.records import Record, Results, to_line

RECIPE = "recipe.yaml"
EVENTS = "events.jsonl"


Complete = Callable[[dict[str, Any]], dict[str, Any]]
"""From a recipe as it was written to one that names every option of today."""


def claim_directory(exp: Path, recipe: dict[str, Any], complete: Complete = dict) -> None:
    """Make `exp` the directory of this recipe, or check that it is already.

    One in which nothing was trained yet, because something in its recipe was wrong, may change it. A directory begun
    by an earlier version goes on: options it does not know have the defaults `complete` gives them.

    Raises:
        UserError: it belongs to another configuration (every difference is named), or holds something else.
    """
    path = exp / RECIPE
    if path.exists():
        begun = latest(exp / "checkpoints") is not None or (exp / Results.FILE).exists()
        old = read_yaml(path)
        with suppress(UserError):  # not even a recipe any more: the differences say more than its first mistake
            old = complete(old)
        differences = _differences(old, recipe)
        if differences and begun:
            raise UserError(
                f"{exp} belongs to another configuration: {'; '.join(differences)}. "
                "Choose another --exp, or give the options it was started with."
            )
        if not differences:
            return
    elif exp.is_dir() and any(exp.iterdir()):
        raise UserError(f"{exp} is not empty and not a run directory: choose another --exp.")
    write_text(path, yaml.safe_dump(recipe, sort_keys=False))


def _differences(old: Any, new: Any, where: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new), key=str)
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{where}.{k}" if where else str(k))]
    return [] if old == new else [f"{where} was {old!r}, now {new!r}"]


@contextmanager
def alone(exp: Path) -> Iterator[None]:
    """Keep every other process out of `exp` meanwhile; the kernel lets go with us, however we end.

    Raises:
        UserError: another process is training there.
    """
    with open(exp / RECIPE) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{exp}: another process is training here. Wait for it, or choose another --exp.") from None
        yield


def append(exp: Path, record: Record) -> None:
    """Add a line to the run's log.

    Raises:
        UserError: the disk is full or not writable; names the file.
    """
    path = exp / EVENTS
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(to_line(record) + "\n")
    except OSError as error:
        raise unwritable(path, error) from error


def commit() -> str:
    """The commit this program was installed from, with a plus sign if files differ from it; "unknown" outside a
    checkout."""
    here = Path(__file__)
    # An installed copy may lie inside a checkout of something else, whose commit would say nothing of us.
    ours = _git("ls-files", "--error-unmatch", here.name, folder=here.parent)
    described = _git("describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*", folder=here.parent)
    return described if ours and described else "unknown"


def _git(*arguments: str, folder: Path) -> str:
    try:
        run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""


def machine() -> str:
    """Processor, cores and torch version, for people who compare seconds."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    if torch.cuda.is_available():
        model += f", {torch.cuda.get_device_name()}"
    return f"{model}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}"
