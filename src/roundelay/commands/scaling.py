"""Ratios of seconds to a loss, of one learner to several: scaling."""

import argparse
from functools import partial
from pathlib import Path

from roundelay.commands.arguments import count, counts, parse_learners, positive, positives, slowdown, whole
from roundelay.commands.base import Command
from roundelay.commands.examples import EXAMPLES
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.script import is_script
from roundelay.grids.axes import USUAL_STRATEGIES
from roundelay.stopping import status
from roundelay.terminal import Bar, complain, console


def add(command: Command) -> None:
    """Add its options."""
    about = "measure how much sooner several learners are at a loss than one, each at its best rate"
    sub = command("scaling", _scaling, about, EXAMPLES["scaling"])
    sub.add_argument(
        "recipe",
        help="a YAML file, the name of a packaged recipe, or a Python script with roundelay.attach in it, whose "
        "arguments stand behind --, with {strategy}, {rate} and {seed} where these go",
    )
    sub.set_defaults(behind=[])
    sub.add_argument("overrides", nargs="*", default=[], help="section.key=value, for every training")
    sub.add_argument(
        "--strategies",
        nargs="+",
        default=list(USUAL_STRATEGIES),
        metavar="NAME[:TOPOLOGY][,KEY=VALUE]",
        help=f"strategies of several learners (default: {' '.join(USUAL_STRATEGIES)})",
    )
    sub.add_argument(
        "--learners",
        type=counts,
        metavar="L,L,...",
        help="numbers of learners; 1 is always there (default: 1,2; on several hosts 1 and all of them)",
    )
    sub.add_argument(
        "--hosts",
        type=count,
        metavar="N",
        help="N hosts of one learner, which this machine plays; real ones need no option: start the same command on "
        "each, as `roundelay train` (docs/hosts.md)",
    )
    _add_trainings(sub)
    _add_targets(sub)
    sub.add_argument("--exp", type=Path, metavar="DIR", help="the folder for all runs (default: exp/RECIPE/scaling)")


def _add_trainings(sub: argparse.ArgumentParser) -> None:
    """Add options of what is trained besides."""
    sub.add_argument(
        "--simulated",
        type=counts,
        metavar="L,L,...",
        help="numbers of learners that are simulated besides, at the costs that processes measured",
    )
    sub.add_argument(
        "--slower",
        type=slowdown,
        metavar="FACTOR",
        help="train everything a second time with learner 1 so many times slower",
    )
    sub.add_argument(
        "--rates",
        type=positives,
        metavar="R,R,...",
        help="learning rates tried for each way (default: 1/2, 1, 2 and 4 times the recipe's)",
    )
    sub.add_argument(
        "--wider",
        type=whole,
        default=3,
        metavar="N",
        help="rates tried beyond an end of them, where the best is at that end (default: 3)",
    )
    sub.add_argument("--seeds", type=count, default=3, help="how many seeds judge (default: 3)")
    sub.add_argument(
        "--runtime",
        choices=["procs", "sim"],
        help="procs: a process for each learner; sim: simulated, at the costs of the recipe (default: the recipe's)",
    )


def _add_targets(sub: argparse.ArgumentParser) -> None:
    """Add options of what seconds are counted to."""
    sub.add_argument(
        "--target-loss",
        type=positive,
        metavar="NATS",
        help="held-out loss, in nats, that seconds are counted to (default: the one that one learner ends with)",
    )
    sub.add_argument(
        "--wer",
        action="store_true",
        help="count seconds to a word error rate too: after all trainings the models of every epoch are decoded",
    )
    sub.add_argument(
        "--target-wer",
        type=positive,
        metavar="PERCENT",
        help="word error rate, in percent, that they are counted to, with --wer (default: the one that one learner "
        "ends with)",
    )


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
    found, interrupt = measure(
        options.recipe, given, wanted, options.exp, Bar(quiet=True), partial(console.print, markup=False), width
    )
    if not found.files:
        console.print(found.table, markup=False)
        return status(interrupt.why) if interrupt.asked else 0
    folder = found.files[0].parent
    console.print(f"\n{found.table}\n\nwritten: {', '.join(map(str, found.files))}", markup=False)
    for note in found.notes:
        complain(note)
    if interrupt.asked:
        complain(f"interrupted; everything so far is in {folder}. The same command goes on from there.")
        return status(interrupt.why)
    return 1 if found.failed else 0


def _checked(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the strategies; and overrides of a recipe, or arguments of a script.

    Raises:
        UserError: as `check_axes`; what is given is for the other of the two.
    """
    from roundelay.grids.axes import check_axes, is_override, read_axes
    from roundelay.options.known import check_strategy

    strategies = [text for text in options.strategies if not is_override(text)]
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
