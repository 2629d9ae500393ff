"""A recorded script again: its learners are started once more, repeat the sessions that they recorded
(attached/repeating.py), and report the results."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.folders import IN_PLACES, RECORDED
from roundelay.runtime.launch.start import TorchNames, launch
from roundelay.runtime.launch.world import REPLAY, REPLAYED
from roundelay.runtime.trace import read_entries, recorded_learners


@dataclass(frozen=True)
class ReplayedScript:
    """Result of repeating a recorded script."""

    learners: int
    gradients: int  # computed again
    events: int
    whole: bool  # all learners came to the end of all sessions
    cut_short: bool  # the record has no end
    differences: Sequence[str]  # by learner, the first of each, in words; none: all is as recorded
    status: int  # exit status of the learners


def replay_script(record: Path, command: Sequence[str], say: Callable[[str], None]) -> ReplayedScript:
    """Run again the script whose sessions are recorded in `record`, with as many learners and in its folder.

    Args:
        command: runs in place of the recorded command; empty: that one.
        say: gets a sentence on the command and on failures.

    Raises:
        UserError: the record is missing or damaged; the folder of the command is gone; or no session was repeated.
    """
    sessions = sorted({path.parent for form in (RECORDED, IN_PLACES) for path in record.glob(form)}, key=_number)
    each = [recorded_learners(session, read_entries(session)) for session in sessions]
    recorded = each[0]
    first = recorded[min(recorded)]
    ends = [entry for entry in read_entries(sessions[-1]) if entry["what"] == "left"]
    environment = {REPLAY: str(record.absolute()), "OMP_NUM_THREADS": str(first["threads"])}
    handle, results = tempfile.mkstemp(prefix="roundelay-replay-")
    try:
        os.close(handle)
        os.environ.update(environment | {REPLAYED: results})
        status = _run(record, first, command, len(recorded), say)
        lines = Path(results).read_text().splitlines()
    finally:
        os.unlink(results)
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    if not found:
        raise UserError(
            f"{record}: the script has repeated no session (exit status {status}): it must call roundelay.attach(..., "
            "record=...), as it did when it was recorded."
        )
    return ReplayedScript(
        len(recorded),
        sum(one["gradients"] for one in found),
        sum(one["events"] for one in found),
        sum(one["closed"] for one in found) == sum(map(len, each)),
        not any(entry["digests"] for entry in ends),
        [one["difference"] for one in sorted(found, key=lambda one: one["rank"]) if one["difference"]],
        status,
    )


def _number(session: Path) -> int:
    """Return the number of the session that a folder records; 0 if its name has none."""
    return int("".join(filter(str.isdecimal, session.name)) or 0)


def _run(
    record: Path, first: Mapping[str, Any], command: Sequence[str], learners: int, say: Callable[[str], None]
) -> int:
    """Run `command`, or the recorded one where it ran; return its exit status."""
    if not command:
        command = first["command"]
        say(f"runs again, in {first['directory']}: {shlex.join(command)}")
        try:
            os.chdir(first["directory"])
        except OSError as error:
            raise UserError(
                f"{first['directory']}, where the recorded script ran, cannot be entered ({error.strerror}): give the "
                f"command behind --, as `roundelay replay {record} -- {shlex.join(command)}`."
            ) from error
    group, processes = first.get("group", 1), first.get("processes", 1)
    if group > 1:
        return launch(learners, command, say, torch_names=TorchNames(group))
    names = TorchNames() if first["torchrun_names"] else None
    return launch(learners * processes, command, say, torch_names=names)
