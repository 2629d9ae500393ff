"""Strategies and runs side by side: simulate, report."""

import argparse
from pathlib import Path

from roundelay.commands.arguments import (
    count,
    counts,
    non_negative,
    parse_learners,
    picked,
    positive,
    share,
    straggler,
    whole,
)
from roundelay.commands.base import DEFAULT_LEARNERS, Command
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.folders import check_there
from roundelay.core.records import UTTERANCES_FILE
from roundelay.terminal import complain, console, print_table

COMPARED = ["ssgd", "delay-by-one", "adpsgd:fixed-ring", "adpsgd:random-ring"]
"""Strategies that `simulate` compares unless told otherwise."""


def add(command: Command) -> None:
    """Add their options."""
    _add_simulate(command("simulate", _simulate, "compare strategies on a virtual cluster, in virtual seconds"))
    sub = command("report", _report, "write one self-contained HTML page about runs, and print their table")
    sub.add_argument("exp", nargs="+", type=Path, help="run directories")
    sub.add_argument("--out", type=Path, default=Path("report.html"), help="the page (default: report.html)")
    sub.add_argument(
        "--audio", action="store_true", help="put the sound and spectrograms of the worst utterances into the page"
    )
    sub.add_argument(
        "--corpus", type=Path, help="with --audio: the prepared corpus, where it is not at the place the runs name"
    )
    sub.add_argument(
        "--trace", type=Path, metavar="FILE", help="also write what learners did at the same time, for ui.perfetto.dev"
    )
    add_target(sub)


def _simulate(options: argparse.Namespace) -> None:
    from roundelay.options.known import check_strategy

    for text in options.strategy:
        check_strategy(text)  # names a slip before torch is loaded
    if options.stability is not None:
        return _stability(options)
    from roundelay.runtime.base import parse_straggler
    from roundelay.runtime.sim.cluster import load_cluster
    from roundelay.runtime.sim.cost import CostModel
    from roundelay.simulation.scenario import Scenario, simulate

    cluster = load_cluster(options.cluster) if options.cluster else None
    usual = cluster.learners if cluster else DEFAULT_LEARNERS
    learners = usual if options.learners is None else options.learners
    scenario = Scenario(
        learners=learners,
        stragglers=tuple(parse_straggler(text) for text in options.straggler),
        cost=CostModel(
            cluster=cluster, **picked(options, "gradient", "exchange", "allreduce", "inside", "jitter", "together")
        ),
        **picked(options, "rounds", "frames", "epochs", "learning_rate", "seed", "timing_only", "model_bytes"),
    )
    found = simulate(scenario, options.strategy, options.exp)
    columns = ["strategy", "virtual s", "speedup", "minibatches", "staleness", "largest"]
    columns += ["events", "events/s"] if options.timing_only else ["consensus", "loss"]
    rows = []
    for s in found:
        row = [s.label, f"{s.virtual_seconds:.2f}", f"{s.speedup:.2f}", f"{s.fewest}-{s.most}"]
        row += [f"{s.staleness_mean:.1f}", f"{s.staleness_largest}"]
        if options.timing_only:
            row += [f"{s.events:,}", f"{s.events / s.wall_seconds:,.0f}"] if s.wall_seconds else ["", ""]
        else:
            row += [f"{s.consensus_distance:.4f}", f"{s.loss:.4f}"]
        rows.append(tuple(row))
    print_table(columns, rows)
    for s in found:
        if s.died or s.lost:
            note = s.died or f"{s.label} went on after {s.lost} death{'s' * (s.lost > 1)}"
            console.print(note, markup=False)


def _stability(options: argparse.Namespace) -> None:
    from roundelay.stability import ORDERS, stability, table

    names = ORDERS if options.strategy is COMPARED else options.strategy
    usual = "4,8,16" if options.learners is None else str(options.learners)
    learners = usual if options.stability is True else options.stability  # alone it leaves them to --learners
    edges = stability(names, parse_learners(learners, "--stability"), options.jitter, options.seed, options.momentum)
    print_table(*table(edges))


def _report(options: argparse.Namespace) -> None:
    heard = load("roundelay_speech.commands.heard", "speech", "report --audio") if options.audio else None
    from roundelay.reports import load_runs, text_table, write_report, write_trace
    from roundelay.reports.comparison import compare_runs
    from roundelay.reports.headline import sooner

    runs = load_runs(options.exp)
    console.print(text_table(runs, console.width, options.target_loss), markup=False)
    if said := sooner(compare_runs(runs, options.target_loss)):
        console.print(f"\n{said}", markup=False)
    if options.corpus is not None and not options.audio:
        raise UserError("--corpus says where audio is; it needs --audio.")
    listen = heard.listener(options.exp, options.corpus) if heard else None
    page = write_report(options.exp, options.out, options.target_loss, listen=listen)
    for run in options.exp if options.audio else ():
        if not any(run.glob(f"decode/*/{UTTERANCES_FILE}")):
            complain(
                f"{run}: no decoded utterances, so nothing to listen to. `roundelay decode {run}` leaves them there."
            )
    console.print(f"page written to {page}", markup=False)
    if options.trace is not None:
        if not any(run.timelines for run in runs):
            raise UserError("--trace: none of these runs has a timeline; runs of this version on one host have.")
        console.print(f"trace written to {write_trace(runs, options.trace)}", markup=False)


def _add_simulate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "cluster", nargs="?", type=Path, check=check_there, help="a virtual cluster, YAML (docs/simulator.md)"
    )
    sub.add_argument(
        "--strategy",
        nargs="+",
        default=COMPARED,
        metavar="NAME[:TOPOLOGY][,KEY=VALUE]",
        help=f"strategies to simulate; `roundelay list strategies` names all (default: {' '.join(COMPARED)})",
    )
    sub.add_argument("--learners", type=count, help="how many learners (default: the cluster's, or 4)")
    sub.add_argument(
        "--timing-only", action="store_true", help="compute no gradients: only times, staleness, events a second"
    )
    sub.add_argument(
        "--model-bytes", type=positive, help="bytes of a model on the network, where the cluster does not say"
    )
    sub.add_argument("--frames", type=count, default=32, help="frames of a learner's minibatch (default: 32)")
    sub.add_argument("--epochs", type=count, default=1, help="epochs, of --rounds rounds each (default: 1)")
    sub.add_argument(
        "--exp",
        type=Path,
        metavar="DIR",
        help="write a run directory for `roundelay report`; with several strategies one for each in this folder",
    )
    sub.add_argument(
        "--together",
        action=argparse.BooleanOptionalAction,
        help="compute gradients of many learners in one call, or one by one (default: what is faster and exact)",
    )
    sub.add_argument(
        "--stability",
        nargs="?",
        const=True,
        type=counts,
        metavar="L,L,...",
        help="print the largest stable learning rate x curvature instead, for so many learners (default: --learners, "
        "or 4,8,16)",
    )
    sub.add_argument(
        "--rounds", type=count, default=200, help="minibatches of a learner in an epoch, on average (default: 200)"
    )
    sub.add_argument("--learning-rate", type=non_negative, default=0.1, help="learning rate (default: 0.1)")
    sub.add_argument("--seed", type=whole, default=0, help="seed of everything random (default: 0)")
    sub.add_argument(
        "--straggler",
        type=straggler,
        action="append",
        default=[],
        metavar="RANK:10x|RANK:+0.4",
        help="make a learner so many times slower, or every gradient of it so many seconds longer; may be repeated",
    )
    _add_costs(sub)


def _add_costs(sub: argparse.ArgumentParser) -> None:
    """Add the costs of a cluster that is not described by a file, and momentum, which only stability asks for."""
    sub.add_argument(
        "--momentum", type=share, default=0.0, metavar="M", help="with --stability: local momentum (default: 0)"
    )
    defaults = {"gradient": 0.1, "exchange": 0.005, "allreduce": 0.03, "inside": 0.003, "jitter": 0.0}
    texts = {
        "gradient": "seconds of a minibatch",
        "exchange": "seconds of an exchange between two learners",
        "allreduce": "seconds of an allreduce of two learners",
        "inside": "seconds of an allreduce of two learners of one node, for strategies that have nodes",
        "jitter": "spread of gradient times: sigma of a log-normal factor",
    }
    for name, value in defaults.items():
        sub.add_argument(f"--{name}", type=non_negative, default=value, help=f"{texts[name]} (default: {value})")


def add_target(sub: argparse.ArgumentParser) -> None:
    """Add the loss that times are compared to."""
    sub.add_argument(
        "--target-loss",
        type=positive,
        metavar="NATS",
        help="held-out loss, in nats, to compare times to (default: one that all runs reached)",
    )
