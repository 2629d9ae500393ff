"""Hosts and running trainings: doctor, status."""

import argparse
from typing import TYPE_CHECKING

from roundelay.commands.arguments import positive
from roundelay.commands.base import Command, add_described
from roundelay.core.files import json_line, json_text
from roundelay.terminal import complain, console, print_table, write

if TYPE_CHECKING:
    from roundelay.reports.status import Status


_DOCTOR = """
doctor: examine this host, or all hosts of a run, and say what to change
--hosts ADDRESS:PORT + | examine also these hosts, where `roundelay doctor --listen` waits already
--listen ADDRESS[:PORT] | wait here for another host's doctor; with --hosts, or under torchrun: the address where others
    reach this host; relay or relay=ADDRESS:PORT where none can connect to it
--learners <count> | learners on each host (default: LOCAL_WORLD_SIZE, or one a core)
--parameters <positive> =1.25e+07 | parameters of the model
--exp <path> =exp | the folder that run directories go to
--patience SECONDS <positive> | seconds to wait for other hosts (default: 30; with --listen alone 600)
--json | print one JSON object instead, for programs
$ roundelay doctor
$ roundelay doctor --listen 10.0.0.2
$ roundelay doctor --hosts 10.0.0.2:29500 10.0.0.3:29500
"""
_STATUS = """
status: show a running training: learners, hosts, speed, lost learners
exp <path> | the run directory, or the folder of a grid
--json | print one JSON object instead, for programs
$ roundelay status exp/demo/four --watch 10
$ roundelay status exp/an4/compare
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    add_described(command, _doctor, _DOCTOR)
    add_described(command, _status, _STATUS).add_argument(
        "--watch",
        nargs="?",
        type=positive,
        const=5.0,
        metavar="SECONDS",
        help="show it again after so many seconds, until the run ends (without a number: 5)",
    )


def _doctor(options: argparse.Namespace) -> int:
    from roundelay.runtime.launch.world import launched, read_by_hand

    if options.hosts or (options.listen and not launched()):
        read_by_hand(options.listen, options.hosts or ())  # mistakes in these are named before torch is loaded
    from roundelay.runtime.doctor.consult import consult, table

    report = consult(
        hosts=options.hosts or None,
        listen=options.listen,
        learners=options.learners,
        parameters=options.parameters,
        folder=options.exp,
        patience=options.patience,
        say=complain,
    )
    if report is None:
        return 0
    if options.json:
        write(json_text(report.to_json()))
        return 0 if report.well else 2
    for name, findings in (*report.hosts.items(), ("between hosts", report.between)):
        if findings:
            console.print(f"{name}:")
        for finding in findings:
            mark = {"good": "  ok    ", "note": "  note  ", "bad": "  BAD   "}[finding.verdict.value]
            console.print(f"{mark}{finding.about}: {finding.found}")
            if finding.change:
                console.print(f"        -> {finding.change}")
    columns, rows = table(report)
    if rows:
        print_table(columns, rows, left=2)
    console.print("Nothing here would keep a run from working." if report.well else "Change what is BAD first.")
    return 0 if report.well else 2


def _status(options: argparse.Namespace) -> int:
    from roundelay.reports.status import Life, read_status, runs_below
    from roundelay.runtime.clocks import pause, unix_clock

    while True:
        runs = runs_below(options.exp)
        found = [read_status(path, unix_clock()) for path in runs or [options.exp]]
        if options.watch is not None and console.is_terminal:
            console.clear()
        if runs:
            _print_grid(options, found)
        else:
            _print_run(options, found[0])
        if options.watch is None or all(one.life is not Life.RUNNING for one in found):
            return 0 if all(one.life.well for one in found) else 1
        pause(options.watch)


def _print_run(options: argparse.Namespace, found: "Status") -> None:
    from roundelay.reports.status import headline, host_rows, learner_rows

    if options.json:
        write(json_line(found.to_json()) + "\n")
        return
    for line in headline(found):
        console.print(line)
    for columns, rows in (host_rows(found), learner_rows(found)):
        if rows:
            print_table(columns, rows)


def _print_grid(options: argparse.Namespace, found: "list[Status]") -> None:
    from roundelay.reports.status import grid_headline, grid_rows

    if options.json:
        write(json_line({"folder": str(options.exp), "runs": [one.to_json() for one in found]}) + "\n")
        return
    console.print(grid_headline(options.exp, found))
    print_table(*grid_rows(found))
