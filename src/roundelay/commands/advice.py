"""Strategies ranked for a cluster: advise."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import count, picked, positive, share
from roundelay.commands.base import Command
from roundelay.core.files import json_text
from roundelay.core.folders import check_there
from roundelay.terminal import complain, console, duration, print_table, write

if TYPE_CHECKING:
    from roundelay.advice.advise import Advice, Ranked


def add(command: Command) -> None:
    """Add its options."""
    sub = command("advise", _advise, "rank strategies for a cluster and a model, by predicted seconds to a loss")
    sub.add_argument(
        "cluster", nargs="?", type=Path, check=check_there, help="a virtual cluster, YAML (docs/simulator.md)"
    )
    sub.add_argument(
        "--probe",
        metavar="RECIPE|N",
        help="time the recipe's model on this machine, or a network of so many parameters, instead of a file",
    )
    sub.add_argument(
        "--run", dest="records_of", type=Path, metavar="DIR", help="take speeds and links from a run's records instead"
    )
    sub.add_argument("--target-loss", type=positive, metavar="NATS", help="--run: examples are counted to this loss")
    sub.add_argument("--learners", type=count, help="--probe: on each machine (default: one a core)")
    sub.add_argument("--machines", type=count, help="--probe: machines like this one (default: 1)")
    sub.add_argument("--link", metavar="RATE", help="--probe, --run: between machines, for example 100mbit")
    sub.add_argument(
        "--hosts",
        nargs="+",
        default=[],
        metavar="ADDRESS:PORT",
        help="--probe: measure the links to hosts where `roundelay doctor --listen` waits; they are like this one",
    )
    sub.add_argument("--listen", metavar="ADDRESS[:PORT]", help="--hosts: where they reach this host")
    sub.add_argument(
        "--parameters", type=positive, metavar="N", help="of the model (default: the cluster's model_bytes / 4)"
    )
    sub.add_argument(
        "--examples",
        type=positive,
        metavar="N",
        help="frames, or whatever a minibatch has, that one learner needs to the loss (default: 1e6)",
    )
    sub.add_argument("--frames", type=count, metavar="N", help="of a learner's minibatch (default: 256)")
    sub.add_argument("--momentum", type=share, metavar="M", help="of the local optimizer (default: 0.9)")
    sub.add_argument(
        "--learning-rate", type=positive, metavar="R", help="that suits one learner: what others bear is said of it"
    )
    sub.add_argument("--top", type=count, default=10, metavar="N", help="strategies that are printed (default: 10)")
    sub.add_argument("--format", choices=["text", "json"], default="text", help="of the reply (default: text)")


def _advise(options: argparse.Namespace) -> None:
    from roundelay.advice.wanted import Wanted

    wanted = Wanted(
        rate=options.learning_rate,
        run=options.records_of,
        hosts=tuple(options.hosts),
        **picked(options, "cluster", "parameters", "examples", "frames", "momentum", "probe", "target_loss"),
        **picked(options, "machines", "learners", "link", "listen"),
    )
    wanted.check()
    from roundelay.advice.sources import advise_on

    advice = advise_on(wanted, complain)
    if options.format == "json":
        write(json_text(advice.to_json()))
        return
    print_advice(advice, options.top)


def print_advice(advice: "Advice", top: int) -> None:
    """Print the table, what is to be known of it, and the gain of other machines."""
    task = advice.task
    console.print(
        f"{advice.cluster}: {advice.learners} learner{'s' * (advice.learners > 1)}, {task.parameters:,.0f} parameters, "
        f"minibatches of {task.frames}, {task.examples:,.0f} examples of one learner to the loss",
        markup=False,
    )
    columns = ["", "strategy", "examples/s", "of never talking", "rate it bears", "examples", "time to the loss"]
    print_table(columns, [_line(number, one, task.rate) for number, one in enumerate(advice.ranked[:top], 1)], left=2)
    for one in advice.ranked[:top]:
        if one.outside:
            console.print(f"* {one.candidate.strategy}: {'; '.join(one.outside)}", markup=False)
    console.print(
        f"The first without *, in its plainest form within 1 %: roundelay train RECIPE {advice.first.candidate.flags}",
        markup=False,
    )
    if advice.beside_alone is not None:
        console.print(advice.beside_alone.said(), markup=False)
    if advice.said_of_rows():
        console.print(advice.said_of_rows(), markup=False)
    if task.share is not None and task.share.said():
        console.print(task.share.said(), markup=False)
    for line in advice.what_if:
        console.print(
            f"{line.change}: {line.best.candidate.flags} in {duration(line.best.seconds)}, "
            f"{line.gain:.2f} times as fast",
            markup=False,
        )


def _line(number: int, one: "Ranked", rate: float | None) -> tuple[str, ...]:
    low, high = one.range
    bears = f"{one.bears:.2f}" if rate is None else f"{rate * min(1, one.bears):.3g}"
    return (
        f"{number}{'*' * bool(one.outside)}",
        one.candidate.flags.removeprefix("--strategy "),
        f"{one.throughput:,.0f}",
        f"{one.of_never_talking:.3f}",
        bears,
        f"x {one.factor:.2f}",
        f"{duration(one.seconds)} ({duration(low)} to {duration(high)})",
    )
