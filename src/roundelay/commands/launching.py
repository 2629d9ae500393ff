"""A script as learners: launch; and what was recorded again: replay."""

import argparse
import os
from pathlib import Path

from roundelay.commands.arguments import count, positive, whole
from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.folders import check_recorded, is_record
from roundelay.terminal import complain, console


def add(command: Command) -> None:
    """Add their options."""
    _add_launch(command("launch", _launch, "start a script as the learners of this host, for roundelay.attach"))
    sub = command("replay", _replay, "repeat a recorded training, event by event, bit for bit")
    sub.add_argument(
        "exp",
        type=Path,
        check=check_recorded,
        help="the folder of a roundelay.attach(..., record=...), whose script is started again, as many learners as it "
        "had; or the run directory of a `train --record`, which is repeated in one process",
    )
    sub.set_defaults(behind=[])
    sub.epilog = (
        f"{sub.epilog}\n\nA script is run by its recorded command, in the folder it ran in, or by the command behind "
        "--.\nIt does everything again: whatever it writes, it writes again (docs/replay.md)."
    )


def _add_launch(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-n", "--learners", type=count, required=True, help="how many learners")
    sub.add_argument("-m", "--module", action="store_true", help="the command is a module, as for `python -m`")
    sub.add_argument(
        "--torchrun-names",
        action="store_true",
        help="set RANK, WORLD_SIZE and the like too, for a script that looks at them (docs/attach.md)",
    )
    sub.add_argument(
        "--group",
        type=count,
        default=0,
        metavar="N",
        help="processes of each learner, which shard its model by fully_shard (default: 0, one alone; docs/attach.md)",
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
    from roundelay.runtime.launch.start import Endings, TorchNames, launch
    from roundelay.runtime.launch.world import LIVE

    if options.group and options.torchrun_names:
        raise UserError("--torchrun-names is of learners, and --group of the processes of each: leave one of them out.")
    if options.live is not None:
        os.environ[LIVE] = str(options.live.absolute())
    return launch(
        options.learners,
        options.command,
        complain,
        module=options.module,
        torch_names=TorchNames(options.group) if options.group or options.torchrun_names else None,
        prefix=not options.no_prefix,
        endings=Endings(options.restarts, options.grace),
    )


def _replay(options: argparse.Namespace) -> int:
    if is_record(options.exp):
        return _replay_script(options.exp, options.behind)
    if options.behind:
        raise UserError(f"{' '.join(options.behind)}: {options.exp} is a run directory, which is repeated without it.")
    training = load("roundelay_speech.commands.training", "speech", "replay of a run directory")
    return int(training.replay_run(options.exp))


def _replay_script(record: Path, command: list[str]) -> int:
    from roundelay.runtime.replay.scripts import replay_script

    found = replay_script(record, command, complain)
    done = f"{found.gradients:,} gradients, {found.events:,} events of {found.learners} learners"
    if found.differences:
        console.print(f"{record}: differs after {done}.", markup=False)
        for difference in found.differences:
            console.print(f"The first difference: {difference}", markup=False)
        return 1
    if not (found.whole or found.cut_short):
        complain(f"{record}: {done} as recorded; then the script ended with status {found.status}.")
        return 1
    end = "to the same rows" if found.whole else "up to the end of a record that was cut short"
    console.print(f"{record}: {done}, repeated {end}, bit for bit.", markup=False)
    return 0
