"""Strategies ranked for a cluster: advise."""

import argparse
from typing import TYPE_CHECKING

from roundelay.commands.arguments import picked
from roundelay.commands.base import Command, add_described
from roundelay.core.files import json_text
from roundelay.terminal import complain, console, duration, print_table, write

if TYPE_CHECKING:
    from roundelay.advice.advise import Advice, Ranked


_ADVISE = """
advise: rank strategies for a cluster and a model, by predicted seconds to a loss
cluster <path> <is-there> ? | a virtual cluster, YAML (docs/simulator.md)
--probe RECIPE|N | time the recipe's model on this machine, or a network of so many parameters, instead of a file
--run DIR <path> ->records_of | take speeds and links from a run's records instead
--target-loss NATS <positive> | --run: examples are counted to this loss
--learners <count> | --probe: on each machine (default: one a core)
--machines <count> | --probe: machines like this one (default: 1)
--link RATE | --probe, --run: between machines, for example 100mbit
--hosts ADDRESS:PORT + | --probe: measure the links to hosts where `roundelay doctor --listen` waits; they are like this
    one
--listen ADDRESS[:PORT] | --hosts: where they reach this host
--parameters N <positive> | of the model (default: the cluster's model_bytes / 4)
--examples N <positive> | frames, or other examples of a minibatch, that one learner needs to the loss (default: 1e6)
--frames N <count> | of a learner's minibatch (default: 256)
--momentum M <share> | of the local optimizer (default: 0.9)
--learning-rate R <positive> | that suits one learner; strategies are compared with it
--top N <count> =10 | strategies that are printed
--format {text,json} =text | of the reply
$ roundelay advise cluster.yaml --parameters 12.5e6
$ roundelay advise cluster.yaml --learning-rate 0.04 --format json
$ roundelay advise --probe an4 --machines 2 --link 100mbit
$ roundelay advise --run exp/an4/adpsgd --target-loss 1.4
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _advise, _ADVISE)


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
    """Print an advice: the table of its first `top` candidates, notes, and the gain of other machines."""
    task = advice.task
    console.print(
        f"{advice.cluster}: {advice.learners} learner{'s' * (advice.learners > 1)}, {task.parameters:,.0f} parameters, "
        f"minibatches of {task.frames}, {task.examples:,.0f} examples of one learner to the loss"
    )
    columns = ["", "strategy", "examples/s", "of never talking", "rate it bears", "examples", "time to the loss"]
    print_table(columns, [_line(number, one, task.rate) for number, one in enumerate(advice.ranked[:top], 1)], left=2)
    for one in advice.ranked[:top]:
        if one.outside:
            console.print(f"* {one.candidate.strategy}: {'; '.join(one.outside)}")
    console.print(
        f"The first without *, in its plainest form within 1 %: roundelay train RECIPE {advice.first.candidate.flags}"
    )
    if advice.beside_alone is not None:
        console.print(advice.beside_alone.said())
    if advice.said_of_rows():
        console.print(advice.said_of_rows())
    if task.share is not None and task.share.said():
        console.print(task.share.said())
    for line in advice.what_if:
        console.print(
            f"{line.change}: {line.best.candidate.flags} in {duration(line.best.seconds)}, "
            f"{line.gain:.2f} times as fast"
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
