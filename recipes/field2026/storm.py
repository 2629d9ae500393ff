#!/usr/bin/env python
"""Goodput in a storm: learners die and come back, on a virtual clock, and no gradients are computed.

    python recipes/field2026/storm.py [--learners 16] [--down 60] [--seeds 5] [STRATEGY...]

Each learner works for times drawn from an exponential distribution, and is away for DOWN seconds after each. The mean
is chosen so that all learners are there in 27 % of the time: the goodput of a synchronous training that waits for all,
and loses nothing else. Goodput is the minibatches trained over those that all learners, always there, would have
trained in the same virtual seconds; below it is what the living could have done.
"""

import argparse
from statistics import fmean

from roundelay.core.streams import stream
from roundelay.runtime.sim.cluster import Compute, Moment, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.runtime.sim.cost import CostModel
from roundelay.simulation.scenario import Scenario, simulate
from roundelay_lab.claims.rule import standard_errors

SYNCHRONOUS = 0.27
GRADIENT, BYTES, LINK = 0.1, 50e6, 12.5e9  # seconds, a model of 12.5 million parameters, 100 Gbit/s
STRATEGIES = (
    "diloco,period=20,quorum=0.5",
    "diloco,period=20,quorum=0.75",
    "diloco,period=20,quorum=0.9",
    "async-diloco,period=20",
    "adpsgd",
)


def storm(learners: int, down: float, mean: float, until: float, seed: int) -> tuple[VirtualCluster, float, float]:
    """Return a cluster in a storm, and the shares of `until` seconds in which all are there, and in which one is."""
    deaths, joins, away = [], [], []
    for rank in range(learners):
        times = stream(seed, "storm", rank).exponential(size=int(4 * until / mean) + 20) * mean
        at = 0.0
        for up in times:
            at += float(up)
            if at > until:
                break
            deaths.append(Moment(rank, at))
            joins.append(Moment(rank, at + down))
            away.append((at, min(until, at + down)))
            at += down
    cluster = VirtualCluster(
        name="storm",
        nodes=(Node(1, learners),),
        compute=Compute(GRADIENT),
        links=VirtualLinks(between=VirtualLink(0.001, LINK)),
        model_bytes=BYTES,
        deaths=tuple(deaths),
        joins=tuple(joins),
    )
    return cluster, 1 - union(away) / until, 1 - sum(end - begin for begin, end in away) / until / learners


def union(stretches: list[tuple[float, float]]) -> float:
    """Return the seconds in at least one of the stretches."""
    total = reached = 0.0
    for begin, end in sorted(stretches):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def main() -> None:
    """Print a table: goodput of each strategy, with the spread over storms."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("strategy", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--learners", type=int, default=16)
    parser.add_argument("--down", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=20_000, help="minibatches of a learner (default: 20,000)")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    there = SYNCHRONOUS ** (1 / options.learners) if options.down else 1.0  # without a storm
    mean = options.down * there / (1 - there) if options.down else float("inf")
    print(f"{options.learners} learners, away for {options.down:g} s after {mean:.0f} s on average")
    everyone, living, found = [], [], {text: [] for text in options.strategy}
    for seed in range(options.seeds):
        until = 1.5 * options.rounds * GRADIENT / there
        cluster, all_there, one = storm(options.learners, options.down, mean, until, seed)
        everyone.append(all_there)
        living.append(one)
        for text, shares in found.items():
            scenario = Scenario(
                options.learners, options.rounds, cost=CostModel(cluster=cluster), timing_only=True, seed=seed
            )
            done = simulate(scenario, [text])[0]
            shares.append(options.rounds * GRADIENT / done.virtual_seconds)
            print(f"  seed {seed} {text}: {shares[-1]:.4f}, {done.lost} deaths {done.died}", flush=True)
    for text, shares in {"all are there": everyone, "the living": living, **found}.items():
        mean_, away = fmean(shares), standard_errors(len(shares)) * spread(shares)
        print(f"{text:34} {100 * mean_:5.1f} % ({100 * (mean_ - away):.1f} to {100 * (mean_ + away):.1f})")


def spread(values: list[float]) -> float:
    """Return the standard error of the mean."""
    middle = fmean(values)
    return (sum((one - middle) ** 2 for one in values) / (len(values) - 1) / len(values)) ** 0.5


if __name__ == "__main__":
    main()
