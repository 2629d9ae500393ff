"""Statistical efficiency: how many more examples than one learner a strategy needs to come to the same loss.

A model of six numbers, fitted by the laboratory (`python -m roundelay_lab.advice.fit`) on committed runs (its runs.yaml
says which), of the held-out loss that a strategy ends at over that of one learner with the same examples:

    log(loss / loss of one learner) = a lag + b late + c apart + d apart^2 + e reset + f seldom

    lag     x / (1 + x), x = (period / (1 - block momentum) - 1) / rounds of the whole training: the share of it by
            which the model that is kept lags behind the learners' updates
    late    largest rate that `ssgd` bears over the strategy's, less 1 (stability.py): the price of late gradients
    apart   square root of the number of rows that differ from each other, while one minibatch is cut over all; 0 where
            learners go on from the same model
    reset   share of a step that is lost since local momentum starts from zero in every block
    seldom  steps between two exchanges of a whole row, where a slow link decides that, in hundreds

Loss falls with examples as a power: examples ^ -exponent, fitted on trainings of one learner of several lengths. So a
strategy needs exp(log(loss / loss of one learner) / exponent) times the examples.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import exp, hypot, sqrt
from typing import Any, cast, final

from roundelay.core.configure import build
from roundelay.stability import Precision, StabilitySetting, largest_stable, theory
from roundelay.strategies.asgd import Asgd
from roundelay.strategies.base import Strategy
from roundelay.strategies.hadpsgd import HAdPsgd
from roundelay.strategies.quorate import Quorate

COLUMNS = ("lag", "late", "apart", "apart^2", "reset", "seldom")
SELDOM = 100.0
"""Steps between two exchanges of a whole row at which the column `seldom` is 1."""
MOST_MEASURED = 8
"""Most learners with which the edge of stability is simulated where no formula gives it: it hardly depends on their
number."""
EDGE_ROUNDS, EDGE_COORDINATES = 150, 1024
"""Rounds and coordinates of that simulation; strategies with a period make fewer exchanges, since each takes as many
steps."""


@final
@dataclass(frozen=True)
class Trained:
    """The facts of a training on which its efficiency depends.

    rounds       of the whole training
    momentum     of the local optimizer
    minibatches_a_round  1 where learners share a round's minibatch, their number where each has its own
    steps_an_exchange    steps of a learner for each exchange of a whole row, where a link says how many
    """

    learners: int
    rounds: float
    momentum: float = 0.9
    minibatches_a_round: int = 1
    steps_an_exchange: float = 1.0


@final
@dataclass(frozen=True)
class Efficiency:
    """The examples that a strategy needs to reach a loss, compared with one learner.

    factor   examples needed, over those that one learner needs
    error    standard error of the logarithm of `factor`
    outside  reasons why the fit says little of this strategy; empty: it is within the fitted range
    """

    factor: float
    error: float
    outside: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class EfficiencyFit:
    """The fitted model of statistical efficiency, as fitted.json holds it.

    coefficients   of the logarithm of the factor, by column
    exponent       of the loss over examples, and its standard error
    without        root mean square of log(loss / loss of one learner): the error of a fit that predicts no difference
    leave_one_out  root mean square error of the predicted logarithm, for configurations left out of the fit
    leave_source_out  the same where all runs of a page or a claim are left out together
    largest        largest value of each column in the fit, beyond which it extrapolates
    strategies     names of the strategies in the fit
    throughput_error  root mean square of the logarithm of simulated over measured throughput on two hosts
    """

    coefficients: Mapping[str, float]
    exponent: float
    exponent_error: float
    without: float
    leave_one_out: float
    leave_source_out: float
    largest: Mapping[str, float]
    strategies: tuple[str, ...]
    throughput_error: float


@cache
def fitted() -> EfficiencyFit:
    """Return the fit that comes with the package."""
    text = (resources.files(__package__) / "fitted.json").read_text(encoding="utf-8")
    return build(EfficiencyFit, {key: value for key, value in json.loads(text).items() if key != "rows"})


def efficiency(strategy: Strategy, trained: Trained, fit: EfficiencyFit) -> Efficiency:
    """Return the factor by which `strategy` needs more examples than one learner for the same loss."""
    found = columns(strategy, trained)
    loss = sum(fit.coefficients[name] * value for name, value in found.items())
    outside = [
        f"{name} {value:.2g} is beyond the largest of the fit, {fit.largest[name]:.2g}"
        for name, value in found.items()
        if value > 1.05 * fit.largest[name] and name != "apart^2"
    ]
    if strategy.name not in fit.strategies:
        outside.append(f"no run of {strategy.name} is in the fit")
    elif isinstance(strategy, Quorate) and strategy.gathers:
        outside.append("no run with a quorum is in the fit")
    error = hypot(fit.leave_source_out, loss * fit.exponent_error / fit.exponent) / fit.exponent
    alone = trained.learners == 1 or strategy.name == "ssgd"
    return Efficiency(exp(loss / fit.exponent), 0.0 if alone else error, tuple(outside))


def columns(strategy: Strategy, trained: Trained) -> dict[str, float]:
    """Return the terms of the fit for a strategy, by the names of their coefficients."""
    if trained.learners == 1:
        return dict.fromkeys(COLUMNS, 0.0)
    setting = StabilitySetting(trained.learners, trained.momentum, trained.minibatches_a_round)
    strategy = _settled(strategy, setting)
    kept = getattr(strategy, "momentum", None) or 0.0
    behind = (getattr(strategy, "period", 1) / (1 - kept) - 1) / trained.rounds
    rows = trained.learners / strategy.node_learners
    apart = sqrt(rows) if strategy.traits.rows == "own" and rows > 1 else 0.0
    resets = getattr(strategy, "local_momentum", "keep") == "reset"
    return {
        "lag": behind / (1 + behind),
        "late": max(0.0, 2 * (1 + trained.momentum) / bears(strategy, trained.learners, trained.momentum) - 1),
        "apart": apart,
        "apart^2": apart**2,
        "reset": 1 - setting.share_after_reset(strategy.block) if resets else 0.0,
        "seldom": (trained.steps_an_exchange - 1) / SELDOM,
    }


def _settled(strategy: Strategy, setting: StabilitySetting) -> Strategy:
    """Return the strategy with its block momentum and rate as numbers: those that its defaults stand for in
    `setting`."""
    if not all(hasattr(strategy, name) for name in ("settled", "momentum", "rate")):
        return strategy
    momentum, rate = cast(Any, strategy).settled(setting)
    return cast(Strategy, replace(cast(Any, strategy), momentum=momentum, rate=rate))


@cache
def bears(strategy: Strategy, learners: int, momentum: float) -> float:
    """Return the largest product of learning rate and curvature at which a strategy is stable: by a formula, or
    simulated to some 5 %; 2 (1 + momentum) for one learner."""
    if learners == 1:
        return 2 * (1 + momentum)
    said = theory(strategy, learners, momentum)
    if said is not None:
        return said
    few = min(learners, MOST_MEASURED)
    span = (0.001, 4 * (1 + momentum)) if momentum else (0.01, 4.0)
    if isinstance(strategy, HAdPsgd):
        strategy = HAdPsgd(node_size=1)
    precision = Precision(max(60, EDGE_ROUNDS // getattr(strategy, "period", 1)), EDGE_COORDINATES)
    edge = largest_stable(strategy, StabilitySetting(few, momentum), span=span, precision=precision)
    return edge * few / learners if isinstance(strategy, Asgd) else edge
