"""Cost of a slow network: two hosts, made of network namespaces, joined by a link of a given rate.

    python benchmarks/two_hosts.py [--rounds 3] [--steps 20] [--bf16] [--rates 1gbit 100mbit] [--only MODE ...]
    python benchmarks/two_hosts.py --to-loss text --text FILE --out DIR [--only WAY ...] [--rates ...] [--slower 3]
                                   [--learning-rates RATE ...]
    python benchmarks/two_hosts.py --to-loss dnn --recipe RECIPE --out DIR [--set KEY=VALUE ...]

It needs Debian's iproute2, and root or a kernel that lets users make namespaces. A host has half of the cores; all that
runs on it stays there, so work for the network takes its time from the learner.

The first form trains the network of Li et al. 2017 (12.5 million parameters, 50 MB) on random frames, 256 a learner and
step, one learner of one thread on each host, as benchmarks/talk.py does on one host. Modes take turns, round by round;
printed is the median over rounds of the ratio to a plain torch loop on two hosts that never talk, which runs before and
after every mode, since machines that are shared change their speed within minutes. "Rows
a step" says how much was talked: exchanges begun by a learner for each of its steps, times the share of the row that
each carried. A mode is a strategy as `roundelay train --strategy` takes it, with `+fragments=K`, `+wire=bf16` and
`+share=S` (training.exchange_share) and `+encrypt=no` (training.encrypt), with --to-loss also `+rate=gain` (attach's
`rate`), behind it, or one of alone, never-talk, ddp,
and decent-dp. Also told, round by round: the steps a second of two learners on one host, which a prediction begins
from (lab/src/roundelay_lab/advice/measured.yaml).

`--to-loss` compares with rivals by the seconds to a held-out loss: the same plain training loop, through
`roundelay.attach` or as a rival's own page shows it (two_hosts_rivals.py), of a character language model on a text, or
of a recipe's network on its frames. A way that lacks a package says so in its row. Every way trains for `--seconds`;
models are written down at `--looks` moments, in time that does not count, and the mean of both is judged afterwards.
The loss to reach is that of one host alone in the end, at its best learning rate, unless told; the table's first column
is by how much sooner two are there, each way at its own best of `--learning-rates`, and says where that is the lowest
or the highest of them. Throughput is relative to the same two processes
before they know each other, and before those of the next way; over whole periods, where there is one. `--slower 3`
measures also with the second learner three times slower, `--delay` with a cable that holds everything back for so many
seconds. `--rates one-host` has both learners on one host, a core each. Results and table are in `--out`, written after
every cell: the same command goes on where it was interrupted.

Whole recipes over a link: `roundelay scaling RECIPE --hosts 2`; word error rates though hosts die: `roundelay storm
RECIPE --faults crash --decode`.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

from two_hosts_grid import grid, together
from two_hosts_learner import RIVALS, SLOW_RATE, SLOW_STEPS, Way, on_host
from two_hosts_loop import learn

from roundelay_lab.namespaces.hosts import Hosts, why_not

MODES = {
    "1gbit": (
        "never-talk",
        "adpsgd",
        "adpsgd+wire=bf16",
        "adpsgd+fragments=8",
        "ssgd",
        "ssgd+wire=bf16",
        "ddp",
        "decent-dp",
    ),
    "100mbit": (
        "adpsgd",
        "adpsgd+fragments=16",
        "adpsgd+fragments=16+wire=bf16",
        "ssgd",
        "ssgd+wire=bf16",
        "ddp",
        "decent-dp",
    ),
}


@dataclass
class Measured:
    """Measurements of one mode over one link, round by round."""

    mode: str
    rate: str
    speeds: list[float] = field(default_factory=list)  # steps a second, mean of the learners
    ratios: list[float] = field(default_factory=list)  # to the plain loop before and after
    rows: list[float] = field(default_factory=list)  # a step


def run(hosts: Hosts, mode: str, steps: int, *flags: str) -> tuple[list[float], dict[str, float]]:
    """Run one mode once; return the steps a second of the learners, and the notes of the host that leads."""
    import numpy as np
    import talk

    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)
        words = ["--on-host", mode, "--core", "HOST", "--steps", str(steps), "--notes", folder, *flags]
        together(hosts, [sys.executable, __file__, *words])
        speeds = [float(path.read_text()) for path in notes.glob("*.speed")]
        for path in sorted(notes.glob("[0-9]*")):
            times = np.loadtxt(path, ndmin=1)[talk.WARM_UP :]
            speeds.append((len(times) - 1) / float(times[-1] - times[0]) if len(times) > 1 else math.nan)
        facts = json.loads((notes / "facts.json").read_text()) if (notes / "facts.json").exists() else {}
    return speeds, facts


def measure(options: argparse.Namespace) -> list[Measured]:
    """Measure all modes over all links, in turn, round by round."""
    import talk

    found: dict[tuple[str, str], Measured] = {}
    with Hosts(2) as hosts:
        for number in range(options.rounds):
            on_one_host = statistics.mean(talk.roundelay("never-talk", options.steps, options.bf16, False))
            print(f"round {number + 1}: one host {on_one_host:.2f} steps/s", file=sys.stderr, flush=True)
            for rate in options.rates or MODES:
                hosts.rate(rate)
                before = never_talking(hosts, options, number, rate)
                for mode in options.only or MODES.get(rate, MODES[SLOW_RATE]):
                    if mode == "decent-dp" and not importlib.util.find_spec("decent_dp"):
                        continue
                    waits = Way.of(mode).name in ("ddp", "decent-dp", "ssgd") and rate == SLOW_RATE
                    steps = min(options.steps, SLOW_STEPS) if waits else options.steps
                    speeds, facts = run(hosts, mode, steps, *["--bf16"] * options.bf16)
                    speed, after = statistics.mean(speeds), never_talking(hosts, options, number, rate)
                    alone, before = (before + after) / 2, after
                    one = found.setdefault((rate, mode), Measured(mode, rate))
                    one.speeds.append(speed)
                    one.ratios.append(speed / alone)
                    one.rows.append(facts.get("rows_a_step", math.nan))
                    _progress(number, rate, mode, speed)
    return list(found.values())


def never_talking(hosts: Hosts, options: argparse.Namespace, number: int, rate: str) -> float:
    """Return steps a second of the plain loop on hosts that never talk."""
    speed = statistics.mean(run(hosts, "alone", options.steps, *["--bf16"] * options.bf16)[0])
    _progress(number, rate, "alone", speed)
    return speed


def _progress(number: int, rate: str, mode: str, speed: float) -> None:
    print(f"round {number + 1}: {rate} {mode:32s} {speed:.2f} steps/s", file=sys.stderr, flush=True)


def table(found: Sequence[Measured]) -> str:
    """Return the table of ratios, as text."""
    heads = (
        ("link", "<8"),
        ("mode", "<40"),
        ("steps/s", ">8"),
        ("ratio to never talking", ">24"),
        ("rows a step", ">12"),
    )
    lines = [" ".join(f"{head:{width}s}" for head, width in heads)]
    for one in sorted(found, key=lambda one: one.rate):
        name = one.mode if one.mode in RIVALS else f"roundelay {one.mode}"
        spread = f"{statistics.median(one.ratios):.3f} ({min(one.ratios):.3f}-{max(one.ratios):.3f})"
        rows = statistics.median(one.rows)
        talked = "" if math.isnan(rows) else f"{rows:.3f}"
        speed = statistics.median(one.speeds)
        lines.append(f"{one.rate:8s} {name:40s} {speed:8.2f} {spread:>24s} {talked:>12s}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0, help="default: 3, and 1 with --to-loss")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--rates", nargs="+", metavar="RATE", help="as tc writes them")
    parser.add_argument("--only", nargs="+", metavar="MODE", help="these modes, beside the baseline")
    parser.add_argument("--to-loss", choices=("text", "dnn"), help="seconds to a held-out loss, beside rivals")
    parser.add_argument("--text", metavar="FILE", help="--to-loss text: the text, perhaps compressed by gzip")
    parser.add_argument("--recipe", metavar="RECIPE", help="--to-loss dnn: prepared and aligned")
    parser.add_argument("--out", metavar="DIR", help="--to-loss: folder of the results")
    parser.add_argument("--seconds", type=float, default=60.0, help="--to-loss: of training by each way (default: 60)")
    parser.add_argument("--looks", type=int, default=15, help="--to-loss: moments at which models are judged")
    parser.add_argument("--calibrate", type=float, default=6.0, help="--to-loss: seconds of never talking")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="--to-loss: of the cable, one way")
    parser.add_argument("--slower", type=float, default=1.0, help="--to-loss: also with one learner so much slower")
    parser.add_argument(
        "--learning-rates", nargs="+", type=float, metavar="RATE", help="--to-loss: every way at each of them"
    )
    parser.add_argument("--width", type=int, default=128, help="--to-loss text: of the model (default: 128)")
    parser.add_argument("--layers", type=int, default=4, help="--to-loss text: blocks of the model (default: 4)")
    parser.add_argument("--minibatch", type=int, default=0, help="--to-loss: rows of text (12) or frames (256)")
    parser.add_argument("--target-loss", type=float, metavar="NATS", help="default: one that all reach")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    for hidden in ("--on-host", "--notes"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_host:
        if options.to_loss:
            learn(options)
        else:
            on_host(options)
        return
    if why_not():
        sys.exit(why_not())
    options.rounds = options.rounds or (1 if options.to_loss else 3)
    from roundelay.run_directory import commit, machine

    print(f"{machine()}; roundelay {commit()}; load before: {os.getloadavg()[0]:.1f}")
    if options.to_loss:
        print(grid(options))
    else:
        print(table(measure(options)))


if __name__ == "__main__":
    main()
