"""Folders that a command is given, told apart by the files in them, before anything large is loaded. The code that
opens them looks closer."""

from pathlib import Path

from roundelay.core.errors import UserError

RECIPE = "recipe.yaml"
"""File that every run directory has."""
RECORDED = "session-*/trace*.jsonl"
"""Pattern of a file that every record of a script (`roundelay.attach(..., record=...)`) has, for each session or host
in it."""
IN_PLACES = f"shard-*/{RECORDED}"
"""Pattern of that file where a learner is several processes that shard its model: one for each place among them."""
PACKED = "packed.json"
"""File that every packed model has."""


def check_run(exp: Path) -> None:
    """Raise a UserError unless `exp` is a run directory."""
    if (exp / RECIPE).is_file():
        return
    if (exp / PACKED).is_file():
        raise UserError(
            f"{exp}: a packed model, not a run directory. `roundelay evaluate` and `roundelay transcribe` take it."
        )
    what = "no such folder" if not exp.exists() else "a file" if exp.is_file() else f"no {RECIPE} in it"
    raise UserError(f"{exp}: not a run directory ({what}). Give the --exp of a `roundelay train`.")


def is_record(folder: Path) -> bool:
    """Return True if `folder` is the record of a script."""
    return any(path for form in (RECORDED, IN_PLACES) for path in folder.glob(form))


def check_recorded(folder: Path) -> None:
    """Raise a UserError unless `folder` is a script's record, or a run directory, which may have a record."""
    if (folder / RECIPE).is_file() or is_record(folder):
        return
    what = "no such folder" if not folder.exists() else f"neither {RECIPE} nor {RECORDED} in it"
    raise UserError(
        f"{folder}: nothing to repeat ({what}). Give the --exp of a `roundelay train --record`, or the folder of a "
        "roundelay.attach(..., record=...)."
    )


def check_packed(folder: Path) -> None:
    """Raise a UserError unless `folder` is a packed model."""
    if (folder / PACKED).is_file():
        return
    if not folder.exists():
        raise UserError(f"{folder}: no such folder. Give one that `roundelay pack` made.")
    if (folder / RECIPE).is_file():
        what = "a run directory, not a packed model. Pack it first: roundelay pack"
        raise UserError(f"{folder}: {what} {folder} --out MODEL")
    raise UserError(f"{folder}: not a packed model (no {PACKED} in it). Give a folder that `roundelay pack` made.")


def check_there(path: Path) -> None:
    """Raise a UserError unless `path` is a file or a folder."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder.")
