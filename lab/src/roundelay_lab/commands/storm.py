"""A training under random faults: storm."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import picked
from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.terminal import Bar, console, print_table

if TYPE_CHECKING:
    from roundelay_lab.storm.both import StormResult
    from roundelay_lab.storm.story import Recovery

_STORM = """
storm: train on several hosts of one machine with and without random faults
recipe ? | a YAML file, or the name of a packaged recipe; its corpus is ready
overrides * | section.key=value, for example schedule.max_epochs=5; with --script, behind --, its own options
--script FILE | a script that calls roundelay.attach, instead of a recipe
--out DIR <path> ! | folder of both runs and the page
--strategy NAME[:TOPOLOGY][,KEY=VALUE...] = | the strategy (default: the recipe's)
--hosts <count> =2 | network namespaces that stand for hosts
--learners <count> =1 | on each host
--every SECONDS <positive> =60 | mean time between faults
--lasting SECONDS <positive> =3 | mean time that a fault lasts, and after which a command that ended is given again
--faults KIND {kill,crash,stop,cut,slow} + =kill,crash,stop,cut,slow | of kill (a learner), crash (a host), stop (a
    learner, for a while), cut (a host off the network), slow (a link) (default: all); crash and cut spare the first
    host, which leads, unless ROUNDELAY_PEERS is set
--most N <whole> =0 | no more faults than so many (default: 0, no limit)
--seed <whole> =0 | of the schedule of faults
--pace SECONDS <non_negative> =0 | every gradient takes so much longer: for more learners than cores
--link RATE =10gbit | of every host, as tc takes it
--decode | decode both models, and print their word error rates
$ roundelay storm demo --out exp/demo/storm --strategy adpsgd --every 15
$ roundelay storm an4 --out exp/an4/storm --hosts 3 --strategy ssgd --faults crash stop --decode
$ roundelay storm --script train.py --out exp/storm --every 15 --faults stop cut slow -- --epochs 20
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _storm, _STORM)


def _storm(options: argparse.Namespace) -> None:
    need("hosts", "storm")
    _check(options)
    from roundelay.runtime.launch.addresses import PEERS
    from roundelay_lab.storm.both import STORM, UNDISTURBED, StormOptions, run_storm
    from roundelay_lab.storm.page import write_page

    words = [] if options.recipe is None else [options.recipe, *options.overrides]
    chosen = StormOptions(
        recipe="" if options.script else options.recipe,
        overrides=() if options.script else tuple(options.overrides),
        script=(str(Path(options.script).resolve()), *words) if options.script else (),
        kinds=tuple(dict.fromkeys(options.faults)),
        peers=bool(os.environ.get(PEERS)),
        **picked(options, "out", "strategy", "hosts", "learners", "every", "lasting", "seed", "most", "pace", "link"),
    )
    found = run_storm(chosen, Bar())
    if options.decode:
        from roundelay_speech.api.recognition import decode

        for name in (UNDISTURBED, STORM):
            decode(options.out / name, progress=Bar())
        found = run_storm(chosen, Bar())  # nothing is run again; the results have word errors now
    _print(found)
    page = write_page(found, chosen, options.out / "storm.html")
    console.print(f"the page, with a film of it: {page}")


def _check(options: argparse.Namespace) -> None:
    """Raise a UserError unless there is a recipe, or a script and nothing that only recipes have."""
    from roundelay.options.known import check_strategy
    from roundelay_speech.recipes.known import check_recipe

    if not options.script:
        if options.recipe is None:
            raise UserError("storm needs a recipe, or --script FILE.")
        check_recipe(options.recipe, options.overrides)
        if options.strategy:
            check_strategy(options.strategy)
        return
    if not Path(options.script).is_file():
        raise UserError(f"--script {options.script}: there is no such file.")
    only = {"--strategy": options.strategy, "--pace": options.pace, "--decode": options.decode}
    if given := [name for name, value in only.items() if value]:
        raise UserError(f"{given[0]} is for recipes: give the script its own options behind --.")


def _print(found: "StormResult") -> None:
    from roundelay_lab.storm.story import middle_and_worst

    rows = []
    calm, stormy = found.results
    runs = (("undisturbed", found.undisturbed, calm), ("storm", found.storm, stormy), ("after", found.after, None))
    for name, story, results in runs:
        speed = f"{story.frames_per_second:,.{0 if found.counted == 'frames' else 1}f}"
        row = [name, f"{story.seconds:.0f}", speed, f"{len(story.struck)}", f"{story.starts}"]
        if results is None:
            rows.append((*row, "", ""))
            continue
        loss = results.losses.get("dev")
        wer = "  ".join(f"{split} {one.wer:.2f} %" for split, one in results.wer.items())
        rows.append((*row, "" if loss is None else f"{loss:.4f}", wer))
    print_table(["", "seconds", f"{found.counted}/s", "faults", "starts", "dev loss", "WER"], rows)
    by_kind: dict[str, list[Recovery]] = {}
    for one in found.storm.recoveries():
        by_kind.setdefault(one.struck.kind, []).append(one)
    lines = []
    for kind, some in by_kind.items():
        pairs = (middle_and_worst([one.others for one in some]), middle_and_worst([one.victim for one in some]))
        cells = ["" if pair is None else f"{pair[0]:.1f} (at most {pair[1]:.1f})" for pair in pairs]
        lines.append((kind, f"{len(some)}", *cells))
    if lines:
        print_table(["fault", "times", "s until others go on", "s until all are back"], lines)
    console.print(found.whole + (f"; {found.storm.left} processes are left" if found.storm.left else ""))
    if (calmed := found.storm.since_training().calmed) is not None:
        console.print(
            f"with more faults the run would not have ended: there were none after {calmed:.0f} s, so that is the most "
            "it can be"
        )
