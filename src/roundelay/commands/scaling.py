"""Ratios of seconds to a loss, of one learner to several: scaling."""

import argparse
from functools import partial

from roundelay.commands.arguments import parse_learners
from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.script import is_script
from roundelay.grids.axes import USUAL_STRATEGIES
from roundelay.stopping import status
from roundelay.terminal import Bar, complain, console

_SCALING = """
scaling: measure how much sooner several learners are at a loss than one, each at its best rate
recipe | a YAML file, the name of a packaged recipe, or a Python script with roundelay.attach in it, whose arguments
    stand behind --, with {strategy}, {rate} and {seed} where these go
overrides * | section.key=value, for every training
--strategies NAME[:TOPOLOGY][,KEY=VALUE] + | strategies of several learners (default: @usual)
--learners L,L,... <counts> | numbers of learners; 1 is always there (default: 1,2; on several hosts 1 and all of them)
--hosts N <count> | N hosts of one learner, which this machine plays; real ones need no option: start the same command
    on each, as `roundelay train` (docs/hosts.md)
--simulated L,L,... <counts> | numbers of learners that are simulated besides, at the costs that processes measured
--slower FACTOR <slowdown> | train everything a second time with learner 1 so many times slower
--rates R,R,... <positives> | learning rates tried for each way (default: 1/2, 1, 2 and 4 times the recipe's)
--wider N <whole> =3 | rates tried beyond an end of them, where the best is at that end
--seeds <count> =3 | how many seeds judge
--runtime {procs,sim} | procs: a process for each learner; sim: simulated, at the costs of the recipe (default: the
    recipe's)
--target-loss NATS <positive> | held-out loss, in nats, that seconds are counted to (default: the one that one learner
    ends with)
--wer | count seconds to a word error rate too: after all trainings the models of every epoch are decoded
--target-wer PERCENT <positive> | word error rate, in percent, that they are counted to, with --wer (default: the one
    that one learner ends with)
--exp DIR <path> | the folder for all runs (default: exp/RECIPE/scaling)
$ roundelay scaling demo --strategies adpsgd:random-ring --learners 1,2 --slower 3
$ roundelay scaling an4 --learners 1,2 --simulated 4,8,16 --rates 0.01,0.02,0.04,0.08
$ roundelay scaling an4 --runtime sim --learners 1,2,4,8 --seeds 5
$ roundelay scaling an4 --hosts 2 --strategies adpsgd --wer
$ roundelay scaling train.py --rates 0.01,0.02,0.04 -- --strategy {strategy} --lr {rate} --seed {seed}
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    sub = add_described(command, _scaling, _SCALING, usual=" ".join(USUAL_STRATEGIES))
    sub.set_defaults(behind=[])


def _scaling(options: argparse.Namespace) -> int:
    strategies, given = _checked(options)  # names a slip before torch is loaded
    from roundelay.api.scaling import measure
    from roundelay.grids.hosts import read_hosts
    from roundelay.grids.scaling import WantedWays
    from roundelay.grids.summary import TABLE_WIDTH

    place = read_hosts(options.hosts)
    several = options.hosts or 2 if place is None else place.learners
    wanted = WantedWays(
        strategies,
        parse_learners(options.learners) if options.learners else (1, max(2, several)),
        parse_learners(options.simulated) if options.simulated else (),
        options.slower,
        options.rates or (),
        options.wider,
        options.seeds,
        options.target_loss,
        options.wer,
        options.target_wer,
        options.hosts,
    )
    width = console.width if console.is_terminal else TABLE_WIDTH
    found, interrupt = measure(options.recipe, given, wanted, options.exp, Bar(quiet=True), console.print, width)
    if not found.files:
        console.print(found.table)
        return status(interrupt.why) if interrupt.asked else 0
    folder = found.files[0].parent
    console.print(f"\n{found.table}\n\nwritten: {', '.join(map(str, found.files))}")
    for note in found.notes:
        complain(note)
    if interrupt.asked:
        complain(f"interrupted; everything so far is in {folder}. The same command goes on from there.")
        return status(interrupt.why)
    return 1 if found.failed else 0


def _checked(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Check the options of `scaling`. Return the strategies, and overrides of a recipe or arguments of a script.

    Raises:
        UserError: as `check_axes`; or an option of recipes is given with a script, or the reverse.
    """
    from roundelay.grids.axes import check_axes, is_override, read_axes
    from roundelay.options.known import check_strategy

    strategies = [text for text in options.strategies if not is_override(text)] or list(USUAL_STRATEGIES)
    overrides = [*options.overrides, *(text for text in options.strategies if is_override(text))]
    if not is_script(options.recipe):
        if options.behind:
            raise UserError(f"{' '.join(options.behind)}: words behind -- are arguments of a script, *.py.")
        overrides += [f"training.runtime={options.runtime}"] if options.runtime else []
        of_recipes = load("roundelay_speech.recipes.known", "speech", "scaling of a recipe")
        check_axes(read_axes(overrides), strategies, partial(of_recipes.check_recipe, options.recipe))
        return strategies, overrides
    if overrides or options.runtime:
        what = overrides[0] if overrides else f"--runtime {options.runtime}"
        raise UserError(f"{what} is for recipes. Arguments of {options.recipe} stand behind --.")
    for text in strategies:
        check_strategy(text)
    return strategies, options.behind
