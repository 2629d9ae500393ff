"""The process of one host in benchmarks/two_hosts.py: learners of Roundelay, or a rival's."""

import argparse
import importlib.util
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

RIVALS = ("alone", "ddp", "decent-dp")
SLOW_STEPS, SLOW_RATE = 6, "100mbit"  # of what waits for the whole model in every step, on a slow link
SLEEP, SLOWER = 0.1, 10


@dataclass(frozen=True)
class Way:
    """A mode, taken apart."""

    name: str
    fragments: int | Literal["auto"] = "auto"
    wire: str = "auto"
    share: float | None = None
    encrypts: bool = True
    rate: str = "auto"

    @classmethod
    def of(cls, text: str) -> "Way":
        name, *options = text.split("+")
        given = dict(option.split("=") for option in options)
        return cls(
            name,
            int(given["fragments"]) if "fragments" in given else "auto",
            given.get("wire", "auto"),
            float(given["share"]) if "share" in given else None,
            given.get("encrypt", "yes") != "no",
            given.get("rate", "auto"),
        )

    @property
    def parts(self) -> int:
        """Exchanges in which a row is through, where the link does not choose."""
        return 1 if self.fragments == "auto" else self.fragments


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
    task: Any = Asleep(parameters=1_000_000) if options.sleeping else talk.Speed("dnn", "cpu", notes, options.bf16)
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
        "rows_a_step": float(counts.exchanges.sum()) / max(1, int(counts.steps.sum())) / way.parts,
    }
    (notes / "facts.json").write_text(json.dumps(facts))


def rival(options: argparse.Namespace) -> None:
    """Plain torch, DistributedDataParallel, Decent-DP: one learner a host."""
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
    (x,), y = talk.random_frames()
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
