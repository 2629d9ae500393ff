"""Cost of a slow network: two hosts, made of network namespaces, joined by a link of a given rate.

    python benchmarks/two_hosts.py [--rounds 3] [--steps 20] [--bf16] [--rates 1gbit 100mbit] [--only MODE ...]
    python benchmarks/two_hosts.py --straggler [--rounds 3]
    python benchmarks/two_hosts.py --train RECIPE [--target-loss NATS] [--set KEY=VALUE ...]
    python benchmarks/two_hosts.py --killed RECIPE [--only STRATEGY ...] [--set KEY=VALUE ...] [--exp DIR]

It needs Debian's iproute2, and root or a kernel that lets users make namespaces. A host has half of the cores; all that
runs on it stays there, so whatever serves the network takes its time from the learner.

The first form trains the network of Li et al. 2017 (12.5 million parameters, 50 MB) on random frames, 256 a learner and
step, one learner of one thread on each host, as benchmarks/talk.py does on one host. Modes take turns, round by round;
printed is the median over rounds of the ratio to a plain torch loop on two hosts that never talk, which runs before and
after every mode, since machines that are shared change their speed within minutes. "Rows
a step" says how much was talked: exchanges begun by a learner for each of its steps, times the share of the row that
each carried. A mode is a strategy as `roundelay train --strategy` takes it, with `+fragments=K`, `+wire=bf16` and
`+share=S` (training.exchange_share) and `+encrypt=no` (training.encrypt) behind it, or one of alone, never-talk, ddp,
and decent-dp. "Simulated": what
the simulator says of that strategy on two nodes with this link, given nothing but the seconds of a step of two learners
on one host, measured in the same rounds.

`--straggler`: four learners on the two hosts, one of them ten times slower. Gradients are sleeps, for four learners
would share the cores of this machine, and no real learner lends another its device. Printed is the total of frames per
second over the sum of what each of the four does alone: a fast one as measured when it never talks and has a host to
itself, the slow one a tenth of that.

`--train` trains a recipe to its end by every mode over every link, and prints the seconds until the held-out loss is
reached: talking less is not learning as well. `ssgd` computes what DDP computes.

`--killed` trains a recipe with four learners on the two hosts, kills the second host in the third epoch, starts it
again in the fifth, decodes what comes of it, and prints word error rates. The corpus is prepared and aligned before.
"""

import argparse
import importlib.util
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

from support.namespaces import Hosts, why_not

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
TRAINED = {
    "1gbit": ("adpsgd", "adpsgd+fragments=8", "ssgd"),
    "100mbit": ("adpsgd", "adpsgd+fragments=16", "adpsgd+fragments=16+wire=bf16", "ssgd"),
}
RIVALS = ("alone", "ddp", "decent-dp")
SLOW_STEPS, SLOW_RATE = 6, "100mbit"  # of what waits for the whole model in every step, on a slow link
SLEEP, SLOWER, FRAMES, SECONDS = 0.1, 10, 256, 60.0
PAYLOAD, LATENCY = 1448 / 1514, 1e-4
"""Of a frame of Ethernet, the share that TCP may fill; seconds a message, assumed: it hardly matters for 50 MB."""
PORT = 29400
TOO_LONG = 1200


@dataclass(frozen=True)
class Way:
    """A mode, taken apart."""

    name: str
    fragments: int = 1
    wire: str = "fp32"
    share: float | None = None
    encrypts: bool = True

    @classmethod
    def of(cls, text: str) -> "Way":
        name, *options = text.split("+")
        given = dict(option.split("=") for option in options)
        return cls(
            name,
            int(given.get("fragments", 1)),
            given.get("wire", "fp32"),
            float(given["share"]) if "share" in given else None,
            given.get("encrypt", "yes") != "no",
        )


# On a host ------------------------------------------------------------------------------------------------------------


def on_host(options: argparse.Namespace) -> None:
    """One host's process, by the variables of torchrun. Whoever measures something writes it into the notes."""
    os.sched_setaffinity(0, {core for core in os.sched_getaffinity(0) if core % 2 == options.core})
    if options.on_host in RIVALS:
        rival(options)
    else:
        ours(options)


def ours(options: argparse.Namespace) -> None:
    """Learners of Roundelay."""
    import talk

    from roundelay.algorithms.local_update import Sgd
    from roundelay.core.epochs import EpochPlan
    from roundelay.runtime.base import Cluster, SegmentPlan, Straggler
    from roundelay.runtime.hosts.control.agent import serve
    from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
    from roundelay.runtime.hosts.terms import HostTerms
    from roundelay.runtime.launch.world import read_place
    from roundelay.strategies import make_strategy, parse_strategy

    way, place, notes = Way.of(options.on_host), read_place(None), Path(options.notes)
    assert place is not None
    strategy = talk.NeverTalk() if way.name == "never-talk" else make_strategy(*parse_strategy(way.name))
    slow = (Straggler(place.learners - 1, factor=SLOWER),) if options.slow else ()
    task: Any = Asleep(parameters=1_000_000) if options.sleeping else talk.Speed(options.bf16, notes)
    cluster = Cluster(strategy, task, Sgd(), place.learners, stragglers=slow)
    terms = HostTerms(threads=1, wire=way.wire, fragments=way.fragments, encrypt=way.encrypts)
    if way.share is not None:
        terms = replace(terms, exchange_share=way.share)
    if not place.conducts:
        serve(cluster, place, terms, lambda _: None, lambda: "")
        return
    rounds = options.steps + (0 if options.sleeping else talk.WARM_UP)
    with MultiHostRuntime(cluster, place, terms) as runtime:
        minibatch = place.learners * talk.BATCH
        outcome = runtime.segment(
            SegmentPlan(EpochPlan(0, minibatch * rounds, minibatch, place.learners, 0), talk.RATE)
        )
    counts = outcome.counts
    facts = {
        "frames_per_second": float(counts.frames.sum()) / outcome.wall_seconds,
        "rows_a_step": float(counts.exchanges.sum()) / max(1, int(counts.steps.sum())) / way.fragments,
    }
    (notes / "facts.json").write_text(json.dumps(facts))


def rival(options: argparse.Namespace) -> None:
    """Plain torch, DistributedDataParallel, Decent-DP: one learner a host."""
    import numpy as np
    import talk
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo")
    module: nn.Module = talk.network()
    optimizer: torch.optim.Optimizer | None = None
    if options.on_host == "decent-dp":
        from decent_dp.ddp import DecentralizedDataParallel
        from loguru import logger

        logger.remove()
        module = DecentralizedDataParallel(
            module, lambda named: torch.optim.SGD([p for _, p in named], lr=talk.RATE), topology="ring"
        )
    else:
        if options.on_host == "ddp":
            module = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(module.parameters(), lr=talk.RATE)
    (x,), y = talk.RandomFrames().batch("train", np.arange(talk.BATCH))
    started = 0.0
    for step in range(-1 if options.steps <= SLOW_STEPS else -talk.WARM_UP, options.steps):
        if step == 0:
            dist.barrier()
            started = time.monotonic()
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=options.on_host != "ddp")
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            scores = module(x)
        nn.functional.cross_entropy(scores.float(), y).backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
    speed = options.steps / (time.monotonic() - started)
    (Path(options.notes) / f"rank{dist.get_rank()}.speed").write_text(repr(speed))
    dist.barrier()
    dist.destroy_process_group()


if importlib.util.find_spec("roundelay"):
    from torch import Tensor

    from roundelay.core.epochs import EpochPlan
    from roundelay.core.state import Minibatch, Statistics
    from roundelay.learner.base import Learner
    from roundelay.learner.quadratic import Quadratic, QuadraticLearner

    class AsleepLearner(QuadraticLearner):
        """Its gradient takes a tenth of a second of nobody's time."""

        def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
            begun = time.monotonic()
            found = super().gradient(x, batch, plan, out, **how)
            time.sleep(max(0.0, SLEEP - (time.monotonic() - begun)))
            return found

    @dataclass(frozen=True)
    class Asleep(Quadratic):
        """A learner on a device of its own, as the host sees it."""

        noise: float = 0.0

        def build(self) -> Learner:
            return AsleepLearner(self)


# Around hosts ---------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """One mode over one link, round by round."""

    mode: str
    rate: str
    speeds: list[float] = field(default_factory=list)  # steps a second, mean of the learners
    ratios: list[float] = field(default_factory=list)  # to the plain loop before and after
    rows: list[float] = field(default_factory=list)  # a step
    simulated: float = math.nan  # steps a second


_port = PORT


def together(hosts: Hosts, learners: int, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """`command` on every host, as torchrun would have it, `learners` on each; `HOST` in it is the host's number."""
    global _port  # noqa: PLW0603  a port of its own for every run: the kernel keeps old ones for a minute
    _port += 1
    processes = []
    for host in range(2):
        who = {
            "RANK": host * learners,
            "LOCAL_RANK": 0,
            "WORLD_SIZE": 2 * learners,
            "LOCAL_WORLD_SIZE": learners,
            "MASTER_ADDR": hosts.address(0),
            "MASTER_PORT": _port,
        }
        given = {name: str(value) for name, value in who.items()}
        given |= {"ROUNDELAY_SECRET": "a secret for the benchmark", "OMP_NUM_THREADS": "1", **(environment or {})}
        words = [str(host) if word == "HOST" else word for word in command]
        processes.append(hosts.start(host, words, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    said = [process.communicate(timeout=TOO_LONG)[1] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{' '.join(command)} failed:\n" + "\n".join(text[-2000:] for text in said))


def run(hosts: Hosts, mode: str, steps: int, *flags: str, learners: int = 1) -> tuple[list[float], dict[str, float]]:
    """One mode once: steps a second of the learners, and what the conductor noted."""
    import numpy as np
    import talk

    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)
        words = ["--on-host", mode, "--core", "HOST", "--steps", str(steps), "--notes", folder, *flags]
        together(hosts, learners, [sys.executable, __file__, *words])
        speeds = [float(path.read_text()) for path in notes.glob("*.speed")]
        for path in sorted(notes.glob("[0-9]*")):
            times = np.loadtxt(path, ndmin=1)[talk.WARM_UP :]
            speeds.append((len(times) - 1) / float(times[-1] - times[0]) if len(times) > 1 else math.nan)
        facts = json.loads((notes / "facts.json").read_text()) if (notes / "facts.json").exists() else {}
    return speeds, facts


def measure(options: argparse.Namespace) -> list[Measured]:
    """All modes over all links, in turn, round by round."""
    import talk

    found: dict[tuple[str, str], Measured] = {}
    on_one_host = []
    with Hosts(2) as hosts:
        for number in range(options.rounds):
            on_one_host.append(statistics.mean(talk.roundelay("never-talk", options.steps, options.bf16, False)))
            print(f"round {number + 1}: one host {on_one_host[-1]:.2f} steps/s", file=sys.stderr, flush=True)
            for rate in options.rates:
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
    for one in found.values():
        if one.mode not in RIVALS:
            one.simulated = simulated(one, 1 / statistics.median(on_one_host))
    return list(found.values())


def never_talking(hosts: Hosts, options: argparse.Namespace, number: int, rate: str) -> float:
    """Steps a second of the plain loop."""
    speed = statistics.mean(run(hosts, "alone", options.steps, *["--bf16"] * options.bf16)[0])
    _progress(number, rate, "alone", speed)
    return speed


def _progress(number: int, rate: str, mode: str, speed: float) -> None:
    print(f"round {number + 1}: {rate} {mode:32s} {speed:.2f} steps/s", file=sys.stderr, flush=True)


def simulated(one: Measured, seconds: float) -> float:
    """Steps a second of a learner, in the simulator, if a minibatch takes so many seconds."""
    import talk

    from roundelay.algorithms.codecs import CODECS
    from roundelay.runtime.sim.cluster import Allreduce, Compute, Node, VirtualCluster, VirtualLink, VirtualLinks
    from roundelay.simulate.timing import time_strategy
    from roundelay.strategies import make_strategy, parse_strategy

    way = Way.of(one.mode)
    strategy = talk.NeverTalk() if way.name == "never-talk" else make_strategy(*parse_strategy(way.name))
    number, unit = re.fullmatch(r"([\d.]+)([gm])bit", one.rate).groups()  # type: ignore[union-attr]
    bandwidth = float(number) * {"g": 1e9, "m": 1e6}[unit] / 8 * PAYLOAD
    row = 4 * sum(weight.numel() for weight in talk.network().parameters())
    cluster = VirtualCluster(
        nodes=(Node(count=2),),
        compute=Compute(seconds=seconds),
        allreduce=Allreduce("ring"),
        links=VirtualLinks(between=VirtualLink(latency=LATENCY, bandwidth=bandwidth)),
        model_bytes=CODECS[way.wire].bytes_of(row // 4) / way.fragments,
    )
    return time_strategy(strategy, cluster, talk.BATCH, 2000).frames_per_second / talk.BATCH / 2


def table(found: Sequence[Measured]) -> str:
    """The ratios, as text."""
    heads = (
        ("link", "<8"),
        ("mode", "<40"),
        ("steps/s", ">8"),
        ("ratio to never talking", ">24"),
        ("rows a step", ">12"),
    )
    lines = [" ".join(f"{head:{width}s}" for head, width in (*heads, ("simulated", ">17")))]
    for one in sorted(found, key=lambda one: one.rate):
        name = one.mode if one.mode in RIVALS else f"roundelay {one.mode}"
        spread = f"{statistics.median(one.ratios):.3f} ({min(one.ratios):.3f}-{max(one.ratios):.3f})"
        rows = statistics.median(one.rows)
        talked = "" if math.isnan(rows) else f"{rows:.3f}"
        speed = statistics.median(one.speeds)
        said = "" if math.isnan(one.simulated) else f"{one.simulated:.2f} ({100 * (one.simulated / speed - 1):+.1f} %)"
        lines.append(f"{one.rate:8s} {name:40s} {speed:8.2f} {spread:>24s} {talked:>12s} {said:>17s}")
    return "\n".join(lines)


def straggle(rounds: int) -> str:
    """Four learners, the last one slow: what all do together, over what each does alone."""
    lines = [f"{'mode':32s} {'frames/s':>9s} {'of the sum of each alone':>26s}"]
    speeds: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    with Hosts(2) as hosts:
        hosts.rate("1gbit")
        for _ in range(rounds):
            alone = run(hosts, "never-talk", int(SECONDS / SLEEP), "--sleeping")[1]["frames_per_second"] / 2
            for mode in ("adpsgd", "hadpsgd", "ssgd"):
                steps = int(SECONDS / SLEEP * (1 / SLOWER if mode == "ssgd" else 0.775))
                speed = run(hosts, mode, steps, "--slow", "--sleeping", learners=2)[1]["frames_per_second"]
                speeds.setdefault(mode, []).append(speed)
                shares.setdefault(mode, []).append(speed / (alone * (3 + 1 / SLOWER)))
                print(f"{mode}: {speed:.0f} frames/s, alone {alone:.0f}", file=sys.stderr, flush=True)
    for mode, found in shares.items():
        spread = f"{statistics.median(found):.3f} ({min(found):.3f}-{max(found):.3f})"
        lines.append(f"roundelay {mode:22s} {statistics.median(speeds[mode]):9.0f} {spread:>26s}")
    return "\n".join(lines)


def train(options: argparse.Namespace) -> str:
    """A recipe, by every mode over every link, to its end: seconds to the held-out loss."""
    from roundelay.core.records import Evaluation, of_kind, read_events

    runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    folder = Path(tempfile.mkdtemp(prefix="roundelay-two-hosts-"))
    try:
        with Hosts(2) as hosts:
            for rate in options.rates:
                hosts.rate(rate)
                for mode in options.only or TRAINED.get(rate, TRAINED[SLOW_RATE]):
                    way, exp = Way.of(mode), folder / f"{rate}-{mode}"
                    command = [sys.executable, "-m", "roundelay.cli", "train", options.train, *options.set]
                    command += ["--strategy", way.name, "--learners", "2", "--exp", str(exp)]
                    command += ["--fragments", str(way.fragments), "--wire", way.wire]
                    together(hosts, 1, [*command, f"training.encrypt={str(way.encrypts).lower()}"])
                    evaluations = of_kind(read_events(exp / "events.jsonl"), Evaluation)
                    runs[rate, mode] = [(one.wall_s, one.cross_entropy) for one in evaluations]
                    print(f"{rate} {mode}: {runs[rate, mode][-1]}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    best = {name: min(loss for _, loss in curve) for name, curve in runs.items()}
    target = options.target_loss or max(best.values())
    lines = [
        f"seconds to a held-out loss of {target:.4f} nats a frame",
        f"{'link':8s} {'mode':40s} {'s':>8s} {'best':>8s}",
    ]
    for (rate, mode), curve in runs.items():
        when = next((seconds for seconds, loss in curve if loss <= target), math.nan)
        lines.append(f"{rate:8s} roundelay {mode:30s} {when:8.1f} {best[rate, mode]:8.4f}")
    return "\n".join(lines)


def killed(options: argparse.Namespace) -> str:
    """A recipe, by every strategy, while the second host dies and comes back: word error rates."""
    from roundelay.core.files import read_json
    from roundelay.core.records import HostJoined, HostLost, Results, of_kind
    from support.host_training import HostTraining

    lines = [f"{'strategy':28s} {'split':6s} {'word error rate':40s} {'hosts lost, joined':>20s} {'s':>6s}"]
    for mode in options.only or ("hadpsgd", "adpsgd"):
        with Hosts(2) as hosts:
            exp = str(Path(options.exp or tempfile.mkdtemp(prefix="roundelay-two-hosts-")).resolve() / mode)
            given = ["--strategy", mode, "--on-death", "go-on", *options.set]
            training = HostTraining(hosts, Path.cwd(), exp, 2, given, recipe=options.killed, patience=TOO_LONG)
            training.start()
            training.until(lambda live: live.epoch >= 2 and live.epoch_frames, "the third epoch")
            hosts.crash(1)
            training.living(0, 1)
            training.until(lambda live: live.epoch >= 4, "the fifth epoch")
            training.start(1)
            training.living(0, 1, 2, 3)
            if training.end(0) != 0:
                raise RuntimeError(training.words())
            events = training.events()
            for host in range(2):
                training.said(host).unlink()
        subprocess.run([sys.executable, "-m", "roundelay.cli", "decode", exp], check=True)
        results = Results.from_json(read_json(Path(exp) / Results.FILE))
        happened = f"{len(of_kind(events, HostLost))}, {len(of_kind(events, HostJoined))}"
        for split, wer in results.wer.items():
            errors = f"{wer.wer:.2f} % [ {wer.ins + wer.del_ + wer.sub} / {wer.ref} ]"
            lines.append(f"{results.label:28s} {split:6s} {errors:40s} {happened:>20s} {results.wall_seconds:6.0f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--rates", nargs="+", default=list(MODES), metavar="RATE", help="as tc writes them")
    parser.add_argument("--only", nargs="+", metavar="MODE", help="these modes, beside the baseline")
    parser.add_argument("--straggler", action="store_true", help="one of four learners ten times slower")
    parser.add_argument("--train", metavar="RECIPE", help="seconds to a held-out loss")
    parser.add_argument("--killed", metavar="RECIPE", help="word error rates though a host dies and comes back")
    parser.add_argument("--exp", metavar="DIR", help="--killed: keep the run directories here")
    parser.add_argument("--target-loss", type=float, metavar="NATS", help="default: one that all reach")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    for hidden in ("--on-host", "--notes"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    for hidden in ("--slow", "--sleeping"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_host:
        on_host(options)
        return
    if why_not():
        sys.exit(why_not())
    from roundelay.run_directory import commit, machine

    print(f"{machine()}; roundelay {commit()}; load before: {os.getloadavg()[0]:.1f}")
    if options.straggler:
        print(straggle(options.rounds))
    elif options.train:
        print(train(options))
    elif options.killed:
        print(killed(options))
    else:
        print(table(measure(options)))


if __name__ == "__main__":
    main()
