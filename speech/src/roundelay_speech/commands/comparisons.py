"""Strategies side by side on a recipe: compare."""

import argparse
from functools import partial
from pathlib import Path

from roundelay.commands.arguments import count, counts, parse_learners, straggler
from roundelay.commands.base import DEFAULT_LEARNERS, Command
from roundelay.commands.comparisons import add_target
from roundelay.stopping import status
from roundelay.terminal import Bar, complain, console
from roundelay_speech.commands.examples import EXAMPLES


def add(command: Command) -> None:
    """Add its options."""
    _add_compare(
        command(
            "compare",
            _compare,
            "train a grid of strategies, or go on with it, and print their table",
            EXAMPLES["compare"],
        )
    )


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
        partial(console.print, markup=False),
        console.width if console.is_terminal else TABLE_WIDTH,
    )
    console.print(f"\n{compared.table}\n\n{compared.files}", markup=False)
    for failure in compared.failed:
        complain(failure)
    if interrupt.asked:
        complain(f"interrupted; everything so far is in {grid.folder}. The same command goes on from there.")
        return status(interrupt.why)
    return 1 if compared.failed else 0


def _add_compare(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("recipe", help="a YAML file, or the name of a packaged recipe")
    sub.add_argument(
        "overrides",
        nargs="*",
        default=[],
        help="section.key=value, for every training; with several values, as training.minibatch=256,1024 or "
        "strategy.period=5,20, each of them is trained",
    )
    sub.add_argument(
        "--strategies",
        nargs="+",
        required=True,
        metavar="NAME[:TOPOLOGY][,KEY=VALUE]",
        help="strategies beside the baseline: for example ssgd adpsgd:random-ring bmuf,period=20,nesterov=true",
    )
    sub.add_argument(
        "--learners",
        type=counts,
        default=f"1,{DEFAULT_LEARNERS}",
        metavar="L,L,...",
        help=f"numbers of learners; 1 is the baseline, sgd, and always there (default: 1,{DEFAULT_LEARNERS})",
    )
    sub.add_argument("--seeds", type=count, default=3, help="how many seeds, counted up from the recipe's (default: 3)")
    sub.add_argument(
        "--tune",
        action="append",
        default=[],
        metavar="KEY=V,V,...",
        help="choose a value for every strategy, on dev under one seed, and judge it under others; may be repeated",
    )
    sub.add_argument(
        "--straggler",
        type=straggler,
        action="append",
        default=[],
        metavar="RANK:3x|RANK:+0.4",
        help="train everything a second time with this learner slow; may be repeated",
    )
    sub.add_argument(
        "--runtime",
        choices=["procs", "sim"],
        help="procs: a process for each learner; sim: simulated in one process (default: the recipe's)",
    )
    sub.add_argument("--exp", type=Path, metavar="DIR", help="the folder for all runs (default: exp/RECIPE/compare)")
    sub.add_argument("--no-decode", action="store_true", help="losses and seconds only, no word error rates")
    add_target(sub)
