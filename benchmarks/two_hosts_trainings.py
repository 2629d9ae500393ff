"""Whole trainings on two hosts, for benchmarks/two_hosts.py: seconds to a loss, and errors though a host dies."""

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from two_hosts_learner import SLOW_RATE, Way

from roundelay_lab.namespaces.hosts import Hosts

TRAINED = {
    "1gbit": ("adpsgd", "adpsgd+fragments=1+wire=fp32", "ssgd"),
    "100mbit": ("adpsgd", "adpsgd+fragments=1+wire=fp32", "adpsgd+fragments=16+wire=bf16", "ssgd"),
}
PORT = 29400
TOO_LONG = 1200


_port = PORT


def variables(hosts: Hosts, host: int, learners: int, port: int = PORT) -> dict[str, str]:
    """The variables of torchrun on one of two hosts with so many learners each, and the secret."""
    who = {
        "RANK": host * learners,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 2 * learners,
        "LOCAL_WORLD_SIZE": learners,
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
    }
    return {**{name: str(value) for name, value in who.items()}, "ROUNDELAY_SECRET": "a secret for the benchmark"}


def together(hosts: Hosts, learners: int, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """`command` on every host, as torchrun would have it, `learners` on each; `HOST` in it is the host's number."""
    global _port  # noqa: PLW0603  a port of its own for every run: the kernel keeps old ones for a minute
    _port += 1
    processes = []
    for host in range(2):
        given = {**variables(hosts, host, learners, _port), **(environment or {})}
        words = [str(host) if word == "HOST" else word for word in command]
        processes.append(hosts.start(host, words, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    said = [process.communicate(timeout=TOO_LONG)[1] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{' '.join(command)} failed:\n" + "\n".join(text[-2000:] for text in said))


def train(options: argparse.Namespace) -> str:
    """A recipe, by every mode over every link, to its end: seconds to the held-out loss."""
    from roundelay.core.records import Evaluation, of_kind, read_events

    runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    folder = Path(tempfile.mkdtemp(prefix="roundelay-two-hosts-"))
    try:
        with Hosts(2) as hosts:
            for rate in options.rates or TRAINED:
                hosts.rate(rate)
                for mode in options.only or TRAINED.get(rate, TRAINED[SLOW_RATE]):
                    way, exp = Way.of(mode), folder / f"{rate}-{mode}"
                    command = [sys.executable, "-m", "roundelay.cli", "train", options.train, *options.set]
                    command += ["--strategy", way.name, "--learners", "2", "--exp", str(exp)]
                    command += ["--wire", way.wire]
                    command += [] if way.fragments == "auto" else ["--fragments", str(way.fragments)]
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
