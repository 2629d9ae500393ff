"""The process of one host in benchmarks/two_hosts.py: learners of Roundelay, or a rival's."""

import argparse
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

RIVALS = ("alone", "ddp", "decent-dp")
SLOW_STEPS, SLOW_RATE = 6, "100mbit"  # of ways that wait for the whole model in every step, on a slow link


@dataclass(frozen=True)
class Way:
    """The parts of a mode's text: its name and the settings behind it."""

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
        """Number of exchanges that carry a whole row, where it is not chosen by the speed of the link."""
        return 1 if self.fragments == "auto" else self.fragments


def on_host(options: argparse.Namespace) -> None:
    """Be one host's process, as the variables of torchrun say; write what is measured into the notes."""
    os.sched_setaffinity(0, {core for core in os.sched_getaffinity(0) if core % 2 == options.core})
    if options.on_host in RIVALS:
        rival(options)
    else:
        ours(options)


def ours(options: argparse.Namespace) -> None:
    """Train as this host's learners of Roundelay; the host that leads notes how much they exchanged."""
    import talk

    from roundelay.algorithms.local_update import Sgd
    from roundelay.core.epochs import EpochPlan
    from roundelay.runtime.base import Cluster, SegmentPlan
    from roundelay.runtime.hosts.control.agent import serve
    from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
    from roundelay.runtime.hosts.terms import HostTerms
    from roundelay.runtime.launch.world import read_place
    from roundelay.strategies import make_strategy, parse_strategy

    way, place, notes = Way.of(options.on_host), read_place(None), Path(options.notes)
    assert place is not None
    strategy = talk.NeverTalk() if way.name == "never-talk" else make_strategy(*parse_strategy(way.name))
    cluster = Cluster(strategy, talk.Speed("dnn", "cpu", notes, options.bf16), Sgd(), place.learners)
    terms = HostTerms(threads=1, wire=way.wire, fragments=way.fragments, encrypt=way.encrypts)
    if way.share is not None:
        terms = replace(terms, exchange_share=way.share)
    if not place.conducts:
        serve(cluster, place, terms, lambda _: None, lambda: "")
        return
    rounds = options.steps + talk.WARM_UP
    with MultiHostRuntime(cluster, place, terms) as runtime:
        minibatch = place.learners * talk.BATCH
        outcome = runtime.segment(
            SegmentPlan(EpochPlan(0, minibatch * rounds, minibatch, place.learners, 0), talk.RATE)
        )
    counts = outcome.counts
    facts = {"rows_a_step": float(counts.exchanges.sum()) / max(1, int(counts.steps.sum())) / way.parts}
    (notes / "facts.json").write_text(json.dumps(facts))


def rival(options: argparse.Namespace) -> None:
    """Train as this host's one learner of plain torch, DistributedDataParallel or Decent-DP, and note its speed."""
    import talk

    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    warm_up = 1 if options.steps <= SLOW_STEPS else talk.WARM_UP
    with talk.rival_speed(options.on_host, options.steps, options.bf16, warm_up) as speed:
        (Path(options.notes) / f"rank{os.environ['RANK']}.speed").write_text(repr(speed))
