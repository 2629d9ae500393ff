"""A script as learners: launch."""

import argparse
import os
from pathlib import Path

from roundelay.commands.arguments import count, positive, whole
from roundelay.commands.base import Command
from roundelay.terminal import complain


def add(command: Command) -> None:
    """Its options."""
    sub = command("launch", _launch, "start a script as the learners of this host, for roundelay.attach")
    sub.add_argument("-n", "--learners", type=count, required=True, help="how many learners")
    sub.add_argument("-m", "--module", action="store_true", help="the command is a module, as for `python -m`")
    sub.add_argument(
        "--torchrun-names",
        action="store_true",
        help="set RANK, WORLD_SIZE and the like too, for a script that looks at them (docs/attach.md)",
    )
    sub.add_argument(
        "--no-prefix", action="store_true", help="let learners print as they like, without their rank before each line"
    )
    sub.add_argument(
        "--restarts",
        type=whole,
        default=0,
        metavar="N",
        help="start learners that fail again, so often in all (default: 0)",
    )
    sub.add_argument(
        "--grace",
        type=positive,
        default=10.0,
        metavar="SECONDS",
        help="learners that were told to end, by SIGTERM for example, may take so long to save (default: 10)",
    )
    sub.add_argument(
        "--live",
        type=Path,
        metavar="DIR",
        help="a folder in which the script's session says how it is, for `roundelay status DIR`",
    )
    sub.add_argument("command", nargs=argparse.REMAINDER, help="a Python script, or any command, and its arguments")


def _launch(options: argparse.Namespace) -> int:
    from roundelay.runtime.launch.start import Endings, launch
    from roundelay.runtime.launch.world import LIVE

    if options.live is not None:
        os.environ[LIVE] = str(options.live.absolute())
    return launch(
        options.learners,
        options.command,
        complain,
        module=options.module,
        torchrun_names=options.torchrun_names,
        prefix=not options.no_prefix,
        endings=Endings(options.restarts, options.grace),
    )
