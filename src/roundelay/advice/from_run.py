"""Facts that a run's records hold: seconds a step, speeds of learners, rates of links, examples to a loss."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from typing import final

import numpy as np

from roundelay.advice.advise import AdviceTask
from roundelay.advice.learning import Trained, efficiency, fitted
from roundelay.core.configure import read_yaml
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE
from roundelay.core.records import EVENTS, Evaluation, Links, Record, RunStarted, Segment, of_kind, read_events
from roundelay.runtime.sim.cluster import Compute, Handicap, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.strategies import make_strategy

EQUAL = 1.05
"""Learners whose speeds differ by less than this share count as equally fast."""
LATENCY_ASSUMED = 1e-4
"""Latency in seconds of a link between hosts, which records do not say."""


@final
@dataclass(frozen=True)
class RunFacts:
    """The facts of a recorded run that advice needs.

    link_known  True if the records say how fast links are; else the cluster has links of the usual speed
    """

    cluster: VirtualCluster
    task: AdviceTask
    link_known: bool


def read_facts(exp: Path, target_loss: float | None = None, link: VirtualLink | None = None) -> RunFacts:
    """Return the cluster and the task of the run in directory `exp`.

    Args:
        target_loss: held-out loss to which examples are counted; None: the lowest that the run has reached.
        link: between hosts, in place of the one in the records.

    Raises:
        UserError: `exp` is no run of real learners, or never reached `target_loss`; names the file.
    """
    records = read_events(exp / EVENTS)
    started, segments = of_kind(records, RunStarted), of_kind(records, Segment)
    if not started or not segments:
        raise UserError(f"{exp / EVENTS}: nothing was trained there yet.")
    run, fastest = started[-1], max(segments, key=lambda segment: segment.frames_per_second)
    if not any(fastest.learner_gradient_s):
        raise UserError(
            f"{exp / EVENTS}: no seconds of gradients: costs are taken from real learners (--runtime procs)."
        )
    training = read_yaml(exp / RECIPE)
    seconds = _seconds(fastest)
    hosts = _hosts(records, run.learners)
    measured = _link(records) if link is None else link
    between = VirtualLinks().between if measured is None else measured
    whole, quickest = run.learners // hosts, min(seconds)
    slow = tuple(Handicap(rank, one / quickest) for rank, one in enumerate(seconds) if one > EQUAL * quickest)
    cluster = VirtualCluster(
        name=exp.resolve().name,
        nodes=(Node(whole, count=hosts, cores=whole if hosts > 1 else None),),
        compute=Compute(seconds=quickest),
        links=VirtualLinks(between=between),
        stragglers=slow,
    )
    return RunFacts(cluster, _task(exp, records, run, training, target_loss), hosts == 1 or measured is not None)


def _seconds(segment: Segment) -> list[float]:
    """Return each learner's seconds a minibatch, by rank; learners that trained none are taken to be as fast as the
    others."""
    spent = zip(segment.learner_gradient_s, segment.learner_update_s, segment.learner_steps, strict=True)
    found = [(gradient + update) / steps if steps else None for gradient, update, steps in spent]
    usual = float(np.median([one for one in found if one is not None]))
    return [usual if one is None else one for one in found]


def _hosts(records: Sequence[Record], learners: int) -> int:
    """Return the number of hosts of the run if each has equally many learners; else 1."""
    there = {int(link[end]) for one in of_kind(records, Links) for link in one.links for end in ("host", "peer")}
    return len(there) if there and learners % len(there) == 0 else 1


def _link(records: Sequence[Record]) -> VirtualLink | None:
    """Return the link between hosts, estimated from the seconds that requests were under way; None if there was one
    host or no request. Both ends record a byte; only the host that made a request records it."""
    carried: dict[tuple[float, ...], float] = defaultdict(float)
    waited: dict[tuple[float, ...], float] = defaultdict(float)
    views: dict[tuple[float, ...], set[float]] = defaultdict(set)
    for link in (link for one in of_kind(records, Links) for link in one.links):
        pair = tuple(sorted((link["host"], link["peer"])))
        carried[pair] += link["sent_bytes"] + link["received_bytes"]
        waited[pair] += link.get("waited_s", 0.0)
        views[pair].add(link["host"])
    rates = [carried[pair] / len(views[pair]) / waited[pair] for pair in carried if waited[pair] and carried[pair]]
    return VirtualLink(LATENCY_ASSUMED, float(np.median(rates))) if rates else None


def _task(
    exp: Path, records: Sequence[Record], run: RunStarted, recipe: dict[str, object], target: float | None
) -> AdviceTask:
    """Return the run's task. Its examples are those that one learner would have needed: the run's, divided by the fit's
    factor for its strategy."""
    training, optimizer, schedule = (dict(recipe.get(key) or {}) for key in ("training", "optimizer", "schedule"))  # type: ignore[call-overload]
    evaluations = [one for one in of_kind(records, Evaluation) if one.split == "dev"]
    momentum = float(optimizer.get("momentum", 0.9))
    seen = _examples(exp, evaluations, target)
    strategy = make_strategy(training["strategy"], training.get("options"))
    each = run.learners if run.minibatch_per_learner else 1
    trained = Trained(run.learners, max(1.0, seen / run.minibatch_frames), momentum, each)
    return AdviceTask(
        parameters=run.parameters,
        examples=seen / efficiency(strategy, trained, fitted()).factor,
        frames=max(1, run.minibatch_frames // run.learners),
        momentum=momentum,
        rate=schedule.get("learning_rate"),
    )


def _examples(exp: Path, evaluations: Sequence[Evaluation], target: float | None) -> float:
    """Return how many examples the run had seen when its held-out loss fell to `target` (None: to its lowest),
    interpolated between two evaluations in logarithms."""
    known = [one for one in evaluations if one.cross_entropy > 0 and one.frames > 0]
    if not known:
        raise UserError(f"{exp / EVENTS}: no held-out loss in it yet: let an epoch end.")
    lowest = min(known, key=lambda one: one.cross_entropy)
    if target is None or target >= known[0].cross_entropy:
        return float(lowest.frames if target is None else known[0].frames)
    for before, after in pairwise(known):
        if before.cross_entropy > target >= after.cross_entropy:
            share = log(before.cross_entropy / target) / log(before.cross_entropy / after.cross_entropy)
            return float(before.frames * (after.frames / before.frames) ** share)
    raise UserError(
        f"{exp / EVENTS}: its held-out loss never fell to {target:g}; the lowest is {lowest.cross_entropy:.4f}. Give "
        "--target-loss that or more."
    )
