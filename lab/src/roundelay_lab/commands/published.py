"""Printed speedups and hours beside the cost model: published."""

import argparse

from roundelay.commands.base import Command, add_described
from roundelay.terminal import console, print_table

_PUBLISHED = """
published: check the cost model against published speedups or hours
what {li2017,ibm,speedups} | speedups of Li et al. 2017, hours of IBM's machines, or what these imply for 8 to 128 GPUs
$ roundelay published li2017
$ roundelay published ibm
$ roundelay published speedups
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _show, _PUBLISHED)


def _show(options: argparse.Namespace) -> None:
    {"li2017": show_printed_speedups, "ibm": show_hours, "speedups": show_speedups}[options.what]()


def show_printed_speedups() -> None:
    """Print the speedups of Li et al. 2017 beside those of the fitted cost model."""
    from roundelay_lab.published.speedups import compare, errors

    compared = compare()
    rows = [
        (
            c.row.network,
            c.row.strategy,
            f"{c.row.minibatch}",
            f"{c.row.gpus}",
            f"{c.row.period}",
            c.row.tables,
            c.row.use,
            f"{c.row.speedup:.2f}",
            f"{c.speedup:.2f}",
            f"{round(100 * c.error, 1) + 0:+.1f} %",
        )
        for c in compared
    ]
    print_table(
        ["network", "strategy", "minibatch", "GPUs", "period", "tables", "use", "published", "model", "error"], rows
    )
    median, largest = errors(compared)
    predicted = sum(c.row.use == "predicted" for c in compared)
    console.print(
        f"{predicted} predicted rows: median error {100 * median:.1f} %, largest {100 * largest:.1f} %. "
        "Rows set aside are of table 2, which does not print the number of GPUs (4 assumed)."
    )


def show_hours() -> None:
    """Print training times of IBM's machines beside those of the fitted cost model, and the meaning of the last
    step."""
    from roundelay_lab.published.hours import PEAK_FLOPS, compare_hours, flops, knee, load_printed, machines

    printed = load_printed()
    fitted = machines(printed)
    compared = compare_hours(printed, fitted)
    rows: list[tuple[str, ...]] = []
    for c in compared:
        error = "" if c.row.below and not c.error else f"{round(100 * c.error, 1) + 0:+.1f} %"
        hours = f"{'below ' * c.row.below}{c.row.hours:g}"
        rows.append(
            (c.row.source, f"{c.row.gpus}", c.row.system, c.row.strategy, c.row.use, hours, f"{c.hours:.2f}", error)
        )
    print_table(["source", "GPUs", "system", "strategy", "use", "published h", "model h", "error"], rows)
    console.print("\nA GPU of each system, as fitted:")
    gpus = []
    for name, machine in fitted.items():
        found, peak = flops(printed, machine), PEAK_FLOPS["P100" if "P100" in name else "V100"]
        gpus.append((name, f"{1e3 * machine.sequence:.2f}", f"{found / 1e12:.1f}", f"{100 * found / peak:.0f} %"))
    print_table(["system", "ms a sequence", "Tflop/s", "of its peak"], gpus)
    console.print("\nWhat alone would make 128 GPUs of system D 1.15 times as fast as 64, and the hours it would mean:")
    explanations = knee(printed)
    changes = list(explanations[0].hours)
    rows = [
        (e.name, e.fitted, f"{e.flops / 1e12:.1f}", *(f"{e.hours[change]:.2f}" for change in changes))
        for e in explanations
    ]
    print_table(["explanation", "fitted", "Tflop/s", *changes], rows)
    assumed = printed.assumed
    console.print(
        f"Assumed, for it is not printed: {assumed.epochs} epochs, minibatches of {assumed.minibatch:,} sequences of "
        f"{assumed.sequence_frames} frames in all, {assumed.parameters:,} parameters."
    )


def show_speedups() -> None:
    """Print the predicted speedup of each of IBM's systems on 8 to 128 GPUs."""
    from roundelay_lab.published.hours import load_printed, speedups

    printed = load_printed()
    notes = []
    rows: list[tuple[str, ...]] = []
    for system in printed.systems:
        found, left_out = speedups(printed, system)
        for one in found:
            spans = ["{:.2f} to {:.2f}".format(*one.hours_between), "{:.1f} to {:.1f}".format(*one.times_between)]
            numbers = (f"{one.hours:.2f}{' (printed)' * one.met}", spans[0], f"{one.times:.1f}", spans[1])
            rows.append((system, one.strategy, f"{one.gpus}", *numbers))
        if left_out:
            notes.append(
                f"{system}: no GPU is fast enough for its printed hours, and left out is: {', '.join(left_out)}"
            )
    print_table(["system", "strategy", "GPUs", "model h", "from to", "times one GPU", "from to"], rows)
    for note in notes:
        console.print(note)
    console.print(
        "From to: under the other minibatches, epochs, links and nodes of ibm.yaml, where they are not printed. The "
        "seconds of a sequence are then fitted again to the hours that are. One GPU trains the same minibatches."
    )
