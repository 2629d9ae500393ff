"""Strategies side by side on a recipe: compare."""

import argparse
from functools import partial

from roundelay.commands.arguments import parse_learners
from roundelay.commands.base import Command, add_described
from roundelay.stopping import status
from roundelay.terminal import Bar, complain, console

_COMPARE = """
compare: train a grid of strategies, or go on with it, and print their table
recipe | a YAML file, or the name of a packaged recipe
overrides * | section.key=value, for every training; with several values, as training.minibatch=256,1024 or
    strategy.period=5,20, each of them is trained
--strategies NAME[:TOPOLOGY][,KEY=VALUE] + ! | strategies beside the baseline: for example ssgd adpsgd:random-ring
    bmuf,period=20,nesterov=true
--learners L,L,... <counts> =1,4 | numbers of learners; 1 is the baseline, sgd, and always there
--seeds <count> =3 | how many seeds, counted up from the recipe's, or from training.seed=N
--tune KEY=V,V,... ... | choose a value for every strategy, on dev under one seed, and judge it under others; may be
    repeated
--straggler RANK:3x|RANK:+0.4 <straggler> ... | train everything a second time with this learner slow; may be repeated
--runtime {procs,sim} | procs: a process for each learner; sim: simulated in one process (default: the recipe's)
--exp DIR <path> | the folder for all runs (default: exp/RECIPE/compare)
--no-decode | losses and seconds only, no word error rates
--target-loss NATS <positive> | held-out loss, in nats, to compare times to (default: one that all runs reached)
$ roundelay compare demo --strategies ssgd adpsgd:random-ring --learners 1,2,4 --seeds 3
$ roundelay compare an4 --strategies bmuf,period=10 --runtime sim --no-decode schedule.max_epochs=4
$ roundelay compare an4 --strategies asgd bmuf strategy.period=5,20 --tune schedule.learning_rate=0.01,0.02
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _compare, _COMPARE)


def _compare(options: argparse.Namespace) -> int:
    from roundelay.grids.axes import check_axes, is_override, read_axes
    from roundelay_speech.recipes.known import check_recipe

    strategies = [text for text in options.strategies if not is_override(text)]
    overrides = [*options.overrides, *(text for text in options.strategies if is_override(text))]
    overrides += [f"training.runtime={options.runtime}"] if options.runtime else []
    check = partial(check_recipe, options.recipe)
    check_axes(read_axes(overrides, options.tune), strategies, check)  # names a slip before torch is loaded
    from roundelay.grids.grid import Contenders
    from roundelay.grids.summary import TABLE_WIDTH
    from roundelay_speech.api.comparing import Judging, run_plan
    from roundelay_speech.grids.grid import plan

    contenders = Contenders(
        strategies, parse_learners(options.learners), options.seeds, options.straggler, tune=options.tune
    )
    grid = plan(options.recipe, overrides, contenders, options.exp)
    compared, interrupt = run_plan(
        grid,
        Judging(not options.no_decode, options.target_loss),
        Bar(quiet=True),
        console.print,
        console.width if console.is_terminal else TABLE_WIDTH,
    )
    console.print(f"\n{compared.table}\n\n{compared.files}")
    for failure in compared.failed:
        complain(failure)
    if interrupt.asked:
        complain(f"interrupted; everything so far is in {grid.folder}. The same command goes on from there.")
        return status(interrupt.why)
    return 1 if compared.failed else 0
