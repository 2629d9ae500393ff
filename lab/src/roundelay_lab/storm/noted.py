"""One learner of a script, with notes of its steps: `python -m roundelay_lab.storm.noted FOLDER SCRIPT [OPTIONS]`.

The script runs as if it had been started itself. Beside it `roundelay.attach` tells this module of its session, and
after every step of an optimizer the learner's file in the folder is written over: a few bytes at once, so that a reader
sees one note or the other.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import roundelay
from roundelay.runtime.clocks import steady_clock
from roundelay_lab.storm.notes import LABEL, NOTE_NAME, Note


def main() -> None:
    """Run the script, with notes of its steps."""
    folder, script, *words = sys.argv[1:]
    leave_notes(Path(folder))
    sys.argv = [script, *words]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def leave_notes(folder: Path) -> None:
    """Have every session that is attached from now on leave notes in `folder`."""
    attach = roundelay.attach

    def noted(*given: Any, **options: Any) -> Any:
        session = attach(*given, **options)
        if session.rank == 0:
            (folder / LABEL).write_text(f"{session.strategy.label}, {session.learners} learners", encoding="utf-8")
        file = os.open(folder / NOTE_NAME.format(rank=session.rank), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

        def leave(*_: Any) -> None:
            if session.open:
                os.pwrite(file, Note(session.steps, session.living, steady_clock()).packed(), 0)

        register_optimizer_step_post_hook(leave)
        return session

    roundelay.attach = noted


if __name__ == "__main__":
    main()
