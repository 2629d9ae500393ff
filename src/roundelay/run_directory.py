"""A run's directory: its recipe, origin and log, and a lock against a second writer."""

import errno
import fcntl
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from roundelay.checkpoint import latest, read_meta
from roundelay.core.configure import read_yaml
from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, parse_json, read_json, unwritable, write_json, write_text
from roundelay.core.folders import RECIPE
from roundelay.core.records import (
    EVENTS,
    LASTING,
    HostLost,
    Record,
    Results,
    Segment,
    from_mapping,
    of_kind,
    read_events,
    to_line,
)

PLACE = "place.json"
"""File that records where the recipe's relative paths begin (`Origin`)."""
CHANGEABLE: tuple[str, ...] = tuple(
    f"training.{name} "
    for name in (
        "on_death",
        "patience_seconds",
        "host_patience",
        "keep_checkpoints",
        "average",
        "checkpoint_minutes",
        "disk_patience",
        "curve_points",
        "encrypt",
        "exchange_share",
        "fragments",
        "wire",
    )
)
RESIZED = ("training.learners ", "training.stragglers ")
"""Options in which recipes of the same run may differ."""
STRATEGY = ("training.strategy ", "training.options")
"""Options in which they may differ too when a run is resumed by name."""


Complete = Callable[[dict[str, Any]], dict[str, Any]]
"""Function that completes a recipe as written: every present option is named."""


def claim_directory(exp: Path, recipe: dict[str, Any], complete: Complete = dict, resume_only: bool = False) -> None:
    """Make `exp` the run directory of `recipe`, or check that it already is. A directory in which nothing was trained
    yet, because something in its recipe was wrong, may change its recipe. A directory begun by an earlier version goes
    on: options it does not know get defaults from `complete`. A run may go on with other patience, with other forms of
    the hosts' messages, and, if it has not finished, with another number of learners and then with other stragglers;
    with `resume_only` also with another strategy.

    Raises:
        UserError: the directory belongs to another configuration (every difference is named), or holds something else.
    """
    path = exp / RECIPE
    if path.exists():
        finished = (exp / Results.FILE).exists()
        begun = finished or latest(exp / "checkpoints") is not None
        old = read_yaml(path)
        with suppress(UserError):  # not even a recipe any more: the differences say more than its first mistake
            old = complete(old)
        differences = _differences(old, recipe)
        may = CHANGEABLE
        shrinks = recipe.get("training", {}).get("on_death") == "shrink"  # and may have, before it finished
        if (shrinks or not finished) and any(d.startswith(RESIZED[0]) for d in differences):
            may += RESIZED
        another = not finished and any(d.startswith(STRATEGY) for d in differences)
        if begun and not all(d.startswith(may + STRATEGY * (another and resume_only)) for d in differences):
            raise UserError(
                f"{exp} belongs to another configuration: {'; '.join(differences)}. "
                "Choose another --exp, or give the options it was started with."
                + " With --resume a run goes on under another strategy."
                * another
            )
        if begun and another and "strategy" not in read_meta(newest := latest(exp / "checkpoints") or path):
            raise UserError(
                f"{newest}: of an earlier version, which did not say the strategy: resume with the one it was started "
                "with, and give another after the next checkpoint."
            )
        if finished or not differences:
            if not differences and read_origin(exp) is None:
                _keep_origin(exp)
            return
    elif exp.is_dir() and any(not p.name.endswith(".part") for p in exp.iterdir()):
        raise UserError(f"{exp} is not empty and not a run directory: choose another --exp.")
    write_text(path, yaml.safe_dump(recipe, sort_keys=False))
    _keep_origin(exp)


def same_training(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return True if two recipes, complete ones, differ only in options that may change while a run trains."""
    return all(difference.startswith(CHANGEABLE) for difference in _differences(old, new))


@dataclass(frozen=True)
class Origin:
    """Absolute paths of a run directory, and of the folder where its recipe's relative paths begin, when it was
    begun."""

    run: Path
    working_directory: Path


def read_origin(exp: Path) -> Origin | None:
    """Return the place where the run in `exp` was begun; None for a run of a version that did not record it.

    Raises:
        UserError: the run's place.json is damaged.
    """
    path = exp / PLACE
    if not path.is_file():
        return None
    value = read_json(path)
    try:
        return Origin(Path(str(value["run"])), Path(str(value["working_directory"])))
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not what `roundelay train` writes ({error!r}). Delete it.") from error


def _keep_origin(exp: Path) -> None:
    write_json(exp / PLACE, {"run": os.path.realpath(exp), "working_directory": os.path.realpath(os.getcwd())})


def _differences(old: Any, new: Any, where: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new), key=str)
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{where}.{k}" if where else str(k))]
    return [] if old == new else [f"{where} was {old!r}, now {new!r}"]


@contextmanager
def alone(exp: Path) -> Iterator[None]:
    """Lock the folder `exp`, made if need be, against other processes; the kernel releases the lock when this process
    ends. The lock is on the folder, since files in it are replaced.

    Raises:
        UserError: another process is training there, or the folder cannot be made.
    """
    try:
        exp.mkdir(parents=True, exist_ok=True)
        folder = os.open(exp, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unwritable(exp, error) from error
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{exp}: another process is training here. Wait for it, or choose another --exp.") from None
        yield
    finally:
        os.close(folder)


def append(exp: Path, record: Record) -> None:
    """Append a record to the run's log: the whole line, or nothing.

    Raises:
        UserError: the disk is full or not writable; names the file.
    """
    path = exp / EVENTS
    try:
        with open(path, "ab", buffering=0) as file:
            before = file.tell()
            line = to_line(record).encode() + b"\n"
            try:
                written = file.write(line)
                if written != len(line):  # the disk was full in the middle of the line
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                file.truncate(before)
                raise
    except OSError as error:
        raise unwritable(path, error) from error


def cut(exp: Path, size: int) -> None:
    """Drop from the run's log the records after its first `size` bytes that will come again. Those of events of
    processes, hosts and files stay (`records.LASTING`); but frames missing then are trained again."""
    path = exp / EVENTS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    end = data[:size].rfind(b"\n") + 1  # it may also be shorter than it was: only checkpoints are synced to disk
    lasting = b"".join(map(_lasting, data[end:].splitlines(keepends=True)))
    if data != (kept := data[:end] + lasting):
        with atomic_write(path) as file:
            file.write(kept)


def _lasting(line: bytes) -> bytes:
    """Return a line of the log as `cut` leaves it; empty if it is dropped."""
    try:
        record = from_mapping(parse_json(line)) if line.endswith(b"\n") else None
    except (ValueError, TypeError, AttributeError):
        return b""
    if isinstance(record, HostLost) and record.missing:
        return to_line(replace(record, missing=0)).encode() + b"\n"
    return line if isinstance(record, LASTING) else b""


def has_trained(exp: Path) -> bool:
    """Return True if the run's log has a segment of training. A damaged log counts as one that has."""
    try:
        return bool(of_kind(read_events(exp / EVENTS), Segment)) if (exp / EVENTS).exists() else False
    except UserError:
        return True


def put_away(exp: Path) -> Path | None:
    """Rename the run's log, so that a new one can begin; return its new path, or None if there was no log."""
    path = exp / EVENTS
    if not path.exists():
        return None
    number = 1
    while (away := exp / f"events.before-{number}.jsonl").exists():
        number += 1
    path.rename(away)
    return away


def commit() -> str:
    """Return the commit of this program's checkout, with a plus sign if files differ; "unknown" outside a checkout."""
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
    """Return processor, cores and torch version, for people who compare seconds."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    if torch.cuda.is_available():
        model += f", {torch.cuda.get_device_name()}"
    return f"{model}, {cores()} cores, torch {torch.__version__}"
