"""A script as learners: launch; and a recorded run again: replay."""

import argparse
import os
from pathlib import Path

from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.folders import check_recorded, is_record
from roundelay.terminal import complain, console

_LAUNCH = """
launch: start a script as the learners of this host, for roundelay.attach
-n,--learners <count> ! | how many learners
-m,--module | the command is a module, as for `python -m`
--torchrun-names | set RANK, WORLD_SIZE and the like too, for a script that looks at them (docs/attach.md)
--group N <count> =0 | processes of each learner, which shard its model by fully_shard (default: 0, one alone;
    docs/attach.md)
--no-prefix | let learners print as they like, without their rank before each line
--restarts N <whole> =0 | start learners that fail again, so often in all
--grace SECONDS <positive> =10 | learners that were told to end, by SIGTERM for example, may take so long to save
--live DIR <path> | a folder in which the script's session says how it is, for `roundelay status DIR`
$ roundelay launch -n 4 train.py --epochs 3
"""
_REPLAY = """
replay: repeat a recorded training, event by event, bit for bit
exp <path> <is-recorded> | the folder of a roundelay.attach(..., record=...), whose script is started again, as many
    learners as it had; or the run directory of a `train --record`, which is repeated in one process
$ roundelay replay exp/demo/four
$ roundelay replay out/record
$ roundelay replay out/record -- python train.py --device cpu
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    sub = add_described(command, _launch, _LAUNCH)
    sub.add_argument("command", nargs=argparse.REMAINDER, help="a Python script, or any command, and its arguments")
    sub = add_described(command, _replay, _REPLAY, is_recorded=check_recorded)
    sub.set_defaults(behind=[])
    sub.epilog = (
        f"{sub.epilog}\n\nA script is run by its recorded command, in the folder it ran in, or by the command behind "
        "--.\nIt does everything again, writing files included (docs/replay.md)."
    )


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
        console.print(f"{record}: differs after {done}.")
        for difference in found.differences:
            console.print(f"The first difference: {difference}")
        return 1
    if not (found.whole or found.cut_short):
        complain(f"{record}: {done} as recorded; then the script ended with status {found.status}.")
        return 1
    end = "to the same rows" if found.whole else "up to the end of a record that was cut short"
    console.print(f"{record}: {done}, repeated {end}, bit for bit.")
    return 0
