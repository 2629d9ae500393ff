"""Commands about files kept on disk, and whether they are whole: checkpoints, verify."""

import argparse
from pathlib import Path

from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.files import json_text
from roundelay.terminal import console, print_table, write

_CHECKPOINTS = """
checkpoints: list the checkpoints of a run, and which of them are whole
exp <path> <is-exp> | the run directory
--json | one JSON object instead, for programs
$ roundelay checkpoints exp/demo/four
"""
_VERIFY = """
verify: hold files to the checksums that were written with them
folder <path> + | of runs, alignments, graphs or prepared data; and all below
--json | one JSON object instead, for programs
$ roundelay verify exp/demo/four
$ roundelay verify data exp --json
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    add_described(command, _checkpoints, _CHECKPOINTS, is_exp=_check_exp)
    add_described(command, _verify, _VERIFY)


def _check_exp(exp: Path) -> None:
    if not exp.is_dir():
        raise UserError(f"{exp}: no such folder. Give the directory that `roundelay train --exp DIR` writes.")


def _checkpoints(options: argparse.Namespace) -> int:
    from roundelay.saving import FOLDER, listed

    found = listed(options.exp)
    if options.json:
        write(json_text({"folder": str(options.exp), "checkpoints": [one.to_json() for one in found]}))
    elif not found:
        console.print(f"{options.exp / FOLDER}: no checkpoints.")
    else:
        rows = [(one.name, one.shown(), f"{one.size / 1e6:,.1f} MB", *one.numbers()) for one in found]
        print_table(["checkpoint", "", "size", "learners", "epochs", "frames"], rows, left=2)
    return 0 if any(one.next for one in found) else 1


def _verify(options: argparse.Namespace) -> int:
    from roundelay.core.checksums import verify
    from roundelay.core.records import verify_events

    if missing := [folder for folder in options.folder if not folder.is_dir()]:
        raise UserError(f"{missing[0]}: no such folder.")
    found = [verdict for folder in options.folder for verdict in (*verify(folder), *verify_events(folder))]
    faults = [verdict for verdict in found if verdict.fault]
    if options.json:
        files = [{"file": str(verdict.path), "fault": verdict.fault or None} for verdict in found]
        write(json_text({"whole": not faults, "files": files}))
    else:
        for verdict in faults:
            console.print(verdict.fault)
        told = f"{len(found)} files with checksums, {len(faults)} damaged or missing."
        console.print(told if found else "No file here has a checksum.")
    return 1 if faults else 0
