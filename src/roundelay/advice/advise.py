"""Strategies ranked for a cluster and a model, and the gain of a second machine or a faster link."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot
from typing import Any, final

from roundelay.advice.learning import Trained, bears, efficiency, fitted
from roundelay.advice.throughput import Candidate, StepWork, candidates, never_talking, speed
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.reports.numbers import seconds as written
from roundelay.runtime.hosts.exchange.row_format import RowFormat, settled
from roundelay.runtime.hosts.options import HostOptions
from roundelay.runtime.sim.cluster import Node, VirtualCluster

EQUALLY_FAST = 1.01
"""A plainer form (no codec, few fragments) is taken if it needs at most this many times the seconds of the fastest."""
FILLED = 0.8
"""A learner's share of a minibatch is too small if it is computed at fewer examples a second than this times the rate
of the whole."""
FASTER = 10.0
"""Factor on the link's speed in the line on the gain of a faster link."""
ALONE = "sgd"
"""The strategy of one learner alone."""
LOOKED_AT_AGAIN = 6
"""Number of first candidates that are ranked again for the lines on a second machine and a faster link."""


@final
@dataclass(frozen=True)
class MinibatchShare:
    """The part of a round's minibatch that each of several learners has, as fast as it is computed.

    frames  of the part
    whole   frames of the round
    option  the number and the name of the recipe's option that gives every learner the whole
    filled  examples a second of the part over those of the whole, by as many threads
    """

    frames: int
    whole: int
    option: str
    filled: float

    def said(self) -> str:
        """Return a sentence that advises a larger minibatch and gives its rate, if the share is too small; else ""."""
        if self.filled >= FILLED:
            return ""
        return (
            f"A learner's share of the minibatch, {self.frames:,} of {self.whole:,}, is computed at {self.filled:.2f} "
            f"of the examples a second of the whole: too small to keep it busy. Give every learner the whole, with the "
            f"learning rate for that: {self.option} training.rate=gain."
        )


@final
@dataclass(frozen=True)
class AdviceTask:
    """The training that the advice is for: its model, minibatch and learning rate.

    parameters  of the model
    examples    that one learner needs to the loss; frames, sequences, or the unit of a minibatch
    frames      of a learner's minibatch
    momentum    of the local optimizer
    rate        learning rate that one learner bears well; None: not known
    epoch       examples of an epoch, at whose end learners wait for exchanges under way; None: there is no such end
    share       the part of a minibatch that learners share; one learner alone has the whole. None: each has its own, or
                it was not measured
    """

    parameters: float
    examples: float = 1e6
    frames: int = 256
    momentum: float = 0.9
    rate: float | None = None
    epoch: float | None = None
    share: MinibatchShare | None = None

    def __post_init__(self) -> None:
        if not self.examples >= self.frames:
            raise UserError(f"examples is {self.examples:g}: give at least a minibatch, {self.frames}.")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum is {self.momentum}: choose a number from 0 up to, not including, 1.")

    @property
    def work(self) -> StepWork:
        """One learner's step of this training, as the simulator needs it."""
        return StepWork(self.parameters, self.frames)


@final
@dataclass(frozen=True)
class Ranked:
    """A candidate with its predicted results.

    throughput     examples a second of all learners together
    of_never_talking  throughput, as a share of that of learners that never talk to each other
    bears          largest learning rate, as a share of the largest that one learner bears
    factor         times as many examples as one learner needs for the same loss
    seconds        to that loss
    error          standard error of the logarithm of seconds
    outside        reasons why the fit says little of this candidate
    """

    candidate: Candidate
    throughput: float
    of_never_talking: float
    bears: float
    factor: float
    seconds: float
    error: float
    outside: tuple[str, ...] = ()

    @property
    def range(self) -> tuple[float, float]:
        """Seconds to the loss, one standard error less and one more."""
        return self.seconds * exp(-self.error), self.seconds * exp(self.error)


@final
@dataclass(frozen=True)
class BesideAlone:
    """The best strategy for several learners, compared with one learner alone.

    The number of examples needed is supposed not to depend on how many learners share them: then every gradient of
    several counts as much as one of a learner alone. It is so where learners share a small minibatch, or have a
    learning rate that makes up for their number, as far as the noise of gradients allows. At the other end, at the
    learning rate of one learner and with a minibatch each, the common model moves as the fastest learner's row where
    rows are weighed (the default, `rate="auto"`, goes further by the noise of gradients), and else for each gradient by
    the strategy's `moves`.

    alone     one learner, on the fastest machine
    together  the best of several
    """

    alone: Ranked
    together: Ranked
    learners: int

    @property
    def sooner(self) -> float:
        """One learner's seconds over those of several, if each gradient of several counts as much as one of a learner
        alone."""
        return self.alone.seconds / self.together.seconds

    @property
    def at_the_rate_of_one(self) -> float:
        """One learner's seconds over those of several, at one learner's rate and with a minibatch each."""
        strategy = self.together.candidate.made.under("fastest", shared=False)
        if strategy.weighed:
            return self.together.of_never_talking / self.together.factor
        return self.sooner * min(1.0, strategy.moves(self.learners, self.learners))

    @property
    def one_is_best(self) -> bool:
        """True if one learner alone is faster even if every gradient of several counts fully."""
        return self.sooner <= 1

    def said(self) -> str:
        """Return the comparison in words, with advice on what to do."""
        one, several = written(self.alone.seconds), written(self.together.seconds)
        if self.one_is_best:
            return (
                f"One learner alone, on the fastest machine, is predicted to be at the loss first: in {one}, and "
                f"{self.learners} learners in {several} at best, of ways that the fit knows. Train with one learner."
            )
        return (
            f"One learner alone would take {one}. {self.learners} learners are {self.sooner:.2f} times sooner if each "
            f"of their gradients counts as one of a learner alone, and {self.at_the_rate_of_one:.2f} times at its "
            'learning rate with a minibatch each: share a small minibatch, or train at rate="gain" (the default of '
            "adpsgd and hadpsgd), and measure it by `roundelay scaling`."
        )


@final
@dataclass(frozen=True)
class WhatIf:
    """The advice with one thing changed: the best strategy then, and its seconds."""

    change: str
    best: Ranked
    gain: float  # seconds now over seconds then


@final
@dataclass(frozen=True)
class Advice:
    """The answer of `roundelay advise`: candidates in order, the fastest to the loss first."""

    cluster: str
    learners: int
    task: AdviceTask
    ranked: tuple[Ranked, ...]
    what_if: tuple[WhatIf, ...]
    rows: str = ""
    """The codec that the links between machines will choose for rows of the first candidate, in words; "" where they
    choose none."""

    @property
    def first(self) -> Ranked:
        """The fastest candidate that the fit knows enough about, else the fastest of all, in the plainest form that is
        as fast."""
        return best_of(self.ranked)

    @property
    def beside_alone(self) -> BesideAlone | None:
        """The best candidate of several learners compared with one learner; None where the cluster has only one."""
        return beside_alone(self.ranked, self.learners)

    def said_of_rows(self) -> str:
        """Return a sentence on the codec of rows between machines under the first candidate; "" where links choose
        none."""
        return f"Rows between machines would go as {self.rows}; a training measures its links." if self.rows else ""

    def to_json(self) -> dict[str, Any]:
        """Return the advice as a mapping of plain values, for JSON."""
        beside = self.beside_alone
        return {
            "cluster": self.cluster,
            "rows_between_machines": self.rows or None,
            "learners": self.learners,
            "task": plain(self.task),
            "first": _row(self.first),
            "beside_one_learner": {
                "seconds_alone": beside.alone.seconds,
                "best": _row(beside.together),
                "times_sooner_if_every_gradient_counts": beside.sooner,
                "times_sooner_at_the_rate_of_one": beside.at_the_rate_of_one,
            }
            if beside
            else None,
            "ranked": [_row(one) for one in self.ranked],
            "what_if": [{"change": one.change, "gain": one.gain, "best": _row(one.best)} for one in self.what_if],
        }


def _row(one: Ranked) -> dict[str, Any]:
    low, high = one.range
    return {**plain(one), "flags": one.candidate.flags, "seconds_low": low, "seconds_high": high}


def advise(cluster: VirtualCluster, task: AdviceTask) -> Advice:
    """Rank all candidate strategies for `cluster`, and the changes that would speed the training up.

    Raises:
        UserError: learners of the cluster die or join, which no prediction knows of.
    """
    if cluster.deaths or cluster.joins:
        raise UserError(
            f"cluster {cluster.name!r} has deaths or joins: advice is for learners that stay. Leave both keys out."
        )
    ranked = rank(cluster, task, candidates(cluster))
    again = [one.candidate for one in ranked[:LOOKED_AT_AGAIN]]
    advice = Advice(cluster.name, cluster.learners, task, tuple(ranked), ())
    now = advice.first.seconds
    changes = []
    for change, other in changed(cluster):
        news = [one for one in candidates(other) if one in again or one.strategy.startswith(("hadpsgd", "ssgd"))]
        best = best_of(rank(other, task, news))
        changes.append(WhatIf(change, best, now / best.seconds))
    return replace(advice, what_if=tuple(changes), rows=form_of_rows(advice.first.candidate, cluster, task))


def form_of_rows(candidate: Candidate, cluster: VirtualCluster, task: AdviceTask) -> str:
    """Return the codec that the links between machines will choose for rows, in words; "" where the strategy leaves
    them no choice."""
    row_format = RowFormat.of(HostOptions(wire=candidate.wire), candidate.made.traits.paced_by_links)
    if len(cluster.machines()) == 1 or not row_format.said():
        return ""
    between = cluster.links.between
    return settled(row_format, round(task.parameters), lambda size: between.latency + between.seconds(size)).said()


def best_of(ranked: Sequence[Ranked]) -> Ranked:
    """Return the first of `ranked` that the fit knows enough about, else the first of all, in its plainest form that is
    about as fast."""
    known = [one for one in ranked if not one.outside] or list(ranked)
    fastest = known[0]
    forms = [one for one in known if one.candidate.strategy == fastest.candidate.strategy]
    equal = [one for one in forms if one.seconds <= EQUALLY_FAST * fastest.seconds]
    return min(equal, key=lambda one: not one.candidate.codec.exact)


def beside_alone(ranked: Sequence[Ranked], learners: int) -> BesideAlone | None:
    """Compare the best candidate of several learners with one learner alone; return None if `ranked` has not both."""
    alone = [one for one in ranked if one.candidate.strategy == ALONE]
    several = [one for one in ranked if one.candidate.strategy != ALONE]
    return BesideAlone(alone[0], best_of(several), learners) if alone and several else None


def choice(ranked: Sequence[Ranked], learners: int, cluster: str, source: str) -> tuple[Ranked, str]:
    """Return the candidate to train `learners` learners with, and the reason, in words that follow a colon. Where one
    learner alone would be fastest, several still get a strategy for several, and the reason says so.

    Args:
        source: where the prediction comes from, in words.
    """
    beside = beside_alone(ranked, learners)
    chosen = best_of(ranked) if beside is None else beside.together
    first = "it is predicted to be first to a loss"
    if beside is not None and beside.one_is_best:
        first = "it is predicted to be first of those for several learners"
    reason = (
        f"of {len(ranked)} on {cluster} {first}, with {100 * chosen.of_never_talking:.0f} % of the speed of learners "
        f"that never talk and {chosen.factor:.2f} times as many examples{source}"
    )
    return chosen, reason if beside is None else f"{reason}. {beside.said().removesuffix('.')}"


def rank(cluster: VirtualCluster, task: AdviceTask, considered: Iterable[Candidate]) -> list[Ranked]:
    """Return the candidates `considered` with their predictions, by seconds to the loss."""
    alone = never_talking(cluster, task.work)
    return sorted((_predict(one, cluster, task, alone) for one in considered), key=lambda one: one.seconds)


def _predict(candidate: Candidate, cluster: VirtualCluster, task: AdviceTask, alone: float) -> Ranked:
    strategy, fit = candidate.made, fitted()
    learners = 1 if strategy.name == ALONE else cluster.learners
    rounds = max(1.0, task.examples / (task.frames * learners))
    fast = speed(candidate, cluster, task.work)
    if learners == 1 and task.share is not None:
        fast = replace(fast, examples_per_second=fast.examples_per_second / min(1.0, task.share.filled))
    trained = Trained(learners, rounds, task.momentum, steps_an_exchange=fast.steps_an_exchange)
    found = efficiency(strategy, trained, fit)
    examples = task.examples * found.factor
    return Ranked(
        candidate=candidate,
        throughput=fast.examples_per_second,
        of_never_talking=fast.examples_per_second / alone,
        bears=bears(strategy, learners, task.momentum) / (2 * (1 + task.momentum)),
        factor=found.factor,
        seconds=examples / fast.examples_per_second + (fast.end * examples / task.epoch if task.epoch else 0.0),
        error=hypot(found.error, fit.throughput_error),
        outside=found.outside,
    )


def changed(cluster: VirtualCluster) -> list[tuple[str, VirtualCluster]]:
    """Return variants of the cluster, each with its name: with one machine more, and with faster links."""
    last = replace(cluster.nodes[-1], count=1)
    found = [("a second machine" if len(cluster.machines()) == 1 else "a machine more", _with_machine(cluster, last))]
    if len(cluster.machines()) > 1:
        between = cluster.links.between
        faster = replace(cluster.links, between=replace(between, bandwidth=FASTER * between.bandwidth))
        found.append((f"links {FASTER:g} times as fast", replace(cluster, links=faster, exchange=None)))
    return found


def _with_machine(cluster: VirtualCluster, node: Node) -> VirtualCluster:
    return replace(cluster, nodes=(*cluster.nodes, node))
