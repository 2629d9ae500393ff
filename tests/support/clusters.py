"""Small clusters for tests: every strategy on a quadratic."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import yaml

from roundelay.learner.base import Learner, Task
from roundelay.runtime.base import Cluster
from roundelay.runtime.sim.cluster import Allreduce, Compute, Node, VirtualCluster
from roundelay.strategies import make_strategy as make
from roundelay.strategies.base import Strategy
from roundelay.testing import MINIBATCH, plan
from roundelay.testing import cluster as cluster_of

__all__ = ["MINIBATCH", "plan"]


def make_strategy(text: str) -> Strategy:
    """Return the strategy that `text` names, as `name option=value ...`."""
    name, *options = text.split()
    return make(name, {key: yaml.safe_load(value) for key, value in (option.split("=") for option in options)})


def keeps_sum(strategy: Strategy) -> bool:
    """Return True if the plain sum of all rows stays as it is at learning rate 0. It does not where rows are weighed by
    masses, which grow with steps."""
    return strategy.traits.conserves and not strategy.weighed


ENDLESS = 1_000_000
"""Rounds of a segment that ends when it is told to: whatever is to happen in it happens in time, however slow it is."""
ONE = ("sgd",)
MANY = (
    "ssgd",
    "ssgd codec=1bit",
    "bsp period=3",
    "bmuf period=3",
    "bmuf period=2 nesterov=true",
    "bmuf-fairseq period=2",
    "slowmo period=3",
    "sparta fragments=3",
    "sparta fragments=2 period=2",
    "diloco period=3",
    "diloco period=6 fragments=2 delay=1 mix=0.5",
    "sparseloco period=3 density=0.5",
    "asgd",
    "asgd period=3",
    "asgd staleness_aware=true",
    "asgd max_delay=8",
    "rennala",
    "async-diloco period=2",
    "async-diloco period=2 decay=0.1 cutoff=20 keep=0.3",
    "easgd period=2",
    "easgd-sync period=2",
    "dpsgd",
    "dpsgd:complete order=consensus",
    "dpsgd:exponential order=cta",
    "dpsgd:random-ring order=consensus",
    "choco-sgd",
    "choco-sgd:complete density=0.5",
    "gossip-diloco period=3",
    "gossip-diloco period=2 nesterov=false",
    "gasloc period=3",
    "gasloc:ring period=2 accelerated=mixed",
    "gossip-pga period=3",
    "gossip-pga:exponential period=2",
    "delay-by-one",
    "delayed-gradient",
    "adpsgd:random-ring",
    "adpsgd:fixed-ring",
    "adpsgd:random",
    "adpsgd:exponential",
    "adpsgd:random-ring weights=progress",
    "hadpsgd",
    "hadpsgd:fixed-ring node_size=1",
    "hadpsgd weights=progress",
    "divshare fragments=3",
    "async-gasloc period=2",
    "async-gasloc:random period=2 momentum=0.3",
    "a2cid2 mixing_rate=0.3 pull=0.8",
)
EVERY = ONE + MANY
SYNCHRONOUS = tuple(n for n in EVERY if make_strategy(n).traits.synchronous)
ASYNCHRONOUS = tuple(n for n in EVERY if not make_strategy(n).traits.synchronous)


def one_of_each(names: Sequence[str]) -> list[str]:
    """Leave out variants of a strategy, which wait and are waited for alike, and the one that is for one learner."""
    return list({re.split("[: ]", name)[0]: name for name in reversed(names) if name != "sgd"}.values())


@dataclass(frozen=True)
class OnDevice(Task):
    """The task of learners that say they compute on a device. It is the processor: what differs is where rows lie."""

    task: Task

    def build(self) -> Learner:
        learner = self.task.build()
        learner.device = torch.device("cpu")
        return learner


def cluster(name: str, learners: int, *rest: Any, **settings: Any) -> Cluster:
    """Return a cluster of `learners` under the strategy `name`; see `roundelay.testing.cluster`."""
    return cluster_of(make_strategy(name), learners, *rest, **settings)


def flat(learners: int, **other: object) -> VirtualCluster:
    """Return a virtual cluster of one node, where a gradient takes 0.1 s, an exchange 0.01 s and a mean 0.02 s."""
    base = VirtualCluster(
        name="flat",
        nodes=(Node(learners),),
        compute=Compute(seconds=0.1),
        exchange=0.01,
        allreduce=Allreduce(seconds={str(max(2, learners)): 0.02}),
    )
    return replace(base, **other)  # type: ignore[arg-type]
