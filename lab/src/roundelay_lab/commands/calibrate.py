"""Costs taken from recorded runs: calibrate."""

import argparse

from roundelay.commands.base import Command, add_described
from roundelay.terminal import console, print_table

_CALIBRATE = """
calibrate: take costs from recorded runs, and predict each run from the others
exp <path> + | run directories, all of one host
$ roundelay calibrate exp/ssgd-2 exp/adpsgd-2 exp/sgd-1
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _calibrate, _CALIBRATE)


def _calibrate(options: argparse.Namespace) -> None:
    from roundelay_lab.calibrate import calibrate

    costs, lines = calibrate(options.exp)
    milliseconds = [
        (
            run.name,
            f"{run.learners}",
            f"{run.frames:.0f}",
            f"{1e3 * run.gradient:.2f}",
            f"{1e3 * run.update:.2f}",
            "" if run.exchange is None else f"{1e3 * run.exchange:.2f}",
            "" if run.mean is None else f"{1e3 * run.mean:.2f}",
        )
        for run in costs.runs
    ]
    console.print("Measured, in milliseconds:")
    print_table(["run", "learners", "frames", "gradient", "update", "exchange", "mean"], milliseconds)
    rows = []
    for line in lines:
        row = [line.label, f"{line.learners}", "" if line.measured is None else f"{line.measured:,.0f}"]
        for speed, error in ((line.own, line.own_error), (line.frames_per_second, line.error)):
            row += ["" if speed is None else f"{speed:,.0f}", "" if error is None else f"{100 * error:+.1f} %"]
        rows.append(tuple(row))
    console.print(
        "\nFrames per second, as measured, and as predicted from the run's own costs and from all other runs:"
    )
    print_table(["strategy", "learners", "measured", "own", "error", "others", "error"], rows)
    for what, errors in (
        ("its own costs", [abs(line.own_error) for line in lines if line.own_error is not None]),
        ("all other runs", [abs(line.error) for line in lines if line.error is not None]),
    ):
        if errors:
            console.print(
                f"From {what}: {len(errors)} runs, mean error {100 * sum(errors) / len(errors):.1f} %, "
                f"largest {100 * max(errors):.1f} %"
            )
