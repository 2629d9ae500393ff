"""Strategies and runs side by side: simulate, report."""

import argparse

from roundelay.commands.arguments import counts, parse_learners, picked
from roundelay.commands.base import DEFAULT_LEARNERS, Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.records import UTTERANCES_FILE
from roundelay.terminal import complain, console, print_table

COMPARED = ["ssgd", "delay-by-one", "adpsgd:fixed-ring", "adpsgd:random-ring"]
"""Strategies that `simulate` compares by default."""


_SIMULATE = """
simulate: compare strategies on a virtual cluster, in virtual seconds
cluster <path> <is-there> ? | a virtual cluster, YAML (docs/simulator.md)
--strategy NAME[:TOPOLOGY][,KEY=VALUE] + | strategies to simulate; `roundelay list strategies` names all
    (default: @compared)
--learners <count> | how many learners (default: the cluster's, or 4)
--timing-only | compute no gradients: only times, staleness, events a second
--model-bytes <positive> | bytes of a model on the network, where the cluster does not say
--frames <count> =32 | frames of a learner's minibatch
--epochs <count> =1 | epochs, of --rounds rounds each
--exp DIR <path> | write a run directory for `roundelay report`; with several strategies one for each in this folder
--together <yes-no> | compute gradients of many learners in one call, or one by one
    (default: the faster way that is exact)
--rounds <count> =200 | minibatches of a learner in an epoch, on average
--learning-rate <non_negative> =0.1 | learning rate
--seed <whole> =0 | seed of everything random
--straggler RANK:10x|RANK:+0.4 <straggler> ... | make a learner so many times slower, or every gradient of it so many
    seconds longer; may be repeated
--momentum M <share> =0 | with --stability: local momentum
--gradient <non_negative> =0.1 | seconds of a minibatch
--exchange <non_negative> =0.005 | seconds of an exchange between two learners
--allreduce <non_negative> =0.03 | seconds of an allreduce of two learners
--inside <non_negative> =0.003 | seconds of an allreduce of two learners of one node, for strategies that have nodes
--jitter <non_negative> =0 | spread of gradient times: sigma of a log-normal factor
$ roundelay simulate --learners 16 --straggler 3:4x
$ roundelay simulate cluster.yaml --strategy ssgd adpsgd bmuf,period=20 --timing-only
"""
_REPORT = """
report: write one self-contained HTML page about runs, and print their table
exp <path> + | run directories
--out <path> =report.html | the page
--audio | put the sound and spectrograms of the worst utterances into the page
--corpus <path> | with --audio: the prepared corpus, where it is not at the place the runs name
--trace FILE <path> | also write a timeline of all learners, for ui.perfetto.dev
--target-loss NATS <positive> | held-out loss, in nats, to compare times to (default: one that all runs reached)
$ roundelay report exp/demo/one exp/demo/four --out report.html
$ roundelay report exp/demo/one exp/demo/four --audio
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    sub = add_described(command, _simulate, _SIMULATE, compared=" ".join(COMPARED))
    sub.set_defaults(strategy=COMPARED)
    sub.add_argument(
        "--stability",
        nargs="?",
        const=True,
        type=counts,
        metavar="L,L,...",
        help="print the largest stable learning rate x curvature instead, for so many learners (default: --learners, "
        "or 4,8,16)",
    )
    add_described(command, _report, _REPORT)


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
            console.print(note)


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
    console.print(text_table(runs, console.width, options.target_loss))
    if said := sooner(compare_runs(runs, options.target_loss)):
        console.print(f"\n{said}")
    if options.corpus is not None and not options.audio:
        raise UserError("--corpus says where audio is; it needs --audio.")
    listen = heard.listener(options.exp, options.corpus) if heard else None
    page = write_report(options.exp, options.out, options.target_loss, listen=listen)
    for run in options.exp if options.audio else ():
        if not any(run.glob(f"decode/*/{UTTERANCES_FILE}")):
            complain(
                f"{run}: no decoded utterances, so nothing to listen to. `roundelay decode {run}` leaves them there."
            )
    console.print(f"page written to {page}")
    if options.trace is not None:
        if not any(run.timelines for run in runs):
            raise UserError("--trace: none of these runs has a timeline; runs of this version on one host have.")
        console.print(f"trace written to {write_trace(runs, options.trace)}")
