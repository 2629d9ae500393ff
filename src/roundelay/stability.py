"""Stability of strategies: the largest stable product of learning rate and curvature.

On f(x) = h x^2 / 2 with noise, every strategy is a linear recursion in its rows, and s = lr h alone decides. It
is stable while no eigenvalue of the recursion lies outside the unit circle. The edge is measured with the strategy's
own code in the simulator, in one run: coordinates do not see each other, so each of some thousand has a curvature of
its own, from one of which on the distance to the optimum grows. `theory` is the recursion's edge on paper.

Learners are equally fast, unless a jitter is given; an exchange takes next to no time. The local optimizer is plain
SGD, unless a momentum is given. Legend: L learners.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sin
from typing import cast, final

import numpy as np
import torch
from numpy.typing import NDArray

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.topology import doublings, ring_matrix
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import STRATEGIES, make_strategy
from roundelay.strategies.asgd import Asgd
from roundelay.strategies.base import Strategy
from roundelay.strategies.bmuf import Bmuf, BmufFairseq
from roundelay.strategies.bsp import Bsp
from roundelay.strategies.delay_by_one import DelayByOne
from roundelay.strategies.delayed_gradient import DelayedGradient
from roundelay.strategies.diloco import DiLoCo
from roundelay.strategies.dpsgd import DPsgd, mixing_matrix
from roundelay.strategies.easgd import Easgd, EasgdSync
from roundelay.strategies.gossip_pga import GossipPga
from roundelay.strategies.sgd import SerialSgd as OneLearner
from roundelay.strategies.slowmo import SlowMo
from roundelay.strategies.ssgd import Ssgd

_SETTINGS = {
    "dpsgd": (
        "dpsgd:ring",
        "dpsgd:ring,order=cta",
        "dpsgd:ring,order=consensus",
        "dpsgd:random-ring,order=consensus",
        "dpsgd:exponential,order=consensus",
        "dpsgd:ring,order=consensus,mixing=0.5",
    ),
    "adpsgd": ("adpsgd:fixed-ring", "adpsgd:random-ring", "adpsgd:random", "adpsgd:exponential"),
    "bmuf": ("bmuf", "bmuf,period=5", "bmuf,period=5,momentum=0.75,rate=1", "bmuf,nesterov=true"),
    "diloco": (
        "diloco",
        "diloco,rate=0.7",
        "diloco,period=20,fragments=4,delay=4",
        "diloco,period=20,fragments=4,delay=4,mix=0.5",
    ),
    "sparseloco": ("sparseloco,density=1,two_bits=false",),
    "async-diloco": ("async-diloco,period=5",),
    "async-gasloc": ("async-gasloc,period=5",),
    "asgd": ("asgd", "asgd,staleness_aware=true", "asgd,period=4"),
}
ORDERS = tuple(text for name in STRATEGIES.own for text in _SETTINGS.get(name, (name,)))
"""Strategies that `roundelay simulate --stability` measures by default: each as above, or with its own defaults."""

GROWN = 0.7
"""Nats by which a distance grows in the second third of a run, and again in the last, if it diverges: noise and bursts
of random neighbours do not do that twice."""

NEIGHBOURS = 8
"""Number of coordinates of nearly the same curvature that are averaged, since one may be near zero by chance."""


@dataclass(frozen=True)
class Edge:
    """The largest stable rate x curvature of a strategy, as it was written, with `learners` learners."""

    strategy: str
    learners: int
    measured: float
    theory: float | None


@dataclass(frozen=True)
class StabilitySetting:
    """The setting of a measurement: learners that share one minibatch a round, as under `roundelay train`."""

    learners: int
    momentum: float = 0.0
    minibatches_a_round: int = 1

    @property
    def optimizer(self) -> Sgd:
        """The learners' local optimizer."""
        return Sgd(self.momentum)

    def share_after_reset(self, steps: int) -> float:
        """Return the share of distance after a reset of momentum, as `LocalOptimizer` does."""
        return self.optimizer.share_after_reset(steps)


def stability(
    strategies: Sequence[str], learners: Sequence[int], jitter: float = 0.0, seed: int = 0, momentum: float = 0.0
) -> list[Edge]:
    """Return the edges of all of `strategies` (name:topology,option=value,...), strategy by strategy.

    Args:
        jitter: sigma of the log-normal time of a gradient.
        momentum: momentum of the local SGD.

    Raises:
        UserError: no such strategy or option, or a strategy cannot run with so many learners.
    """
    asked = [
        (text, make_strategy(text), count)
        for text in strategies
        for count in ((1,) if make_strategy(text).name == "sgd" else learners)
    ]
    for _, strategy, count in asked:
        strategy.check(count)
    return [_edge(text, strategy, StabilitySetting(count, momentum), jitter, seed) for text, strategy, count in asked]


def table(edges: Sequence[Edge]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return titles and rows of a table, a column a number of learners: measured edges, with theory in brackets."""
    learners = sorted({edge.learners for edge in edges} - {1}) or [1]
    rows: dict[str, dict[int, str]] = {}
    for edge in edges:
        text = f"{edge.measured:.2f}" + (f" ({edge.theory:.2f})" if edge.theory else "")
        for count in [edge.learners] if edge.learners in learners else learners:  # sgd has one learner in any column
            rows.setdefault(edge.strategy, {})[count] = text
    return (
        ["strategy", *(f"L = {count}" for count in learners)],
        [(name, *(row.get(count, "") for count in learners)) for name, row in rows.items()],
    )


def _edge(text: str, strategy: Strategy, setting: StabilitySetting, jitter: float, seed: int) -> Edge:
    learners, momentum = setting.learners, setting.momentum
    paper = theory(strategy, learners, momentum) if strategy.traits.synchronous or not jitter else None
    span = (0.02, 4.0) if not momentum else (0.001, 4.0 * (1 + momentum))
    return Edge(text, learners, largest_stable(strategy, setting, jitter, span, seed=seed), paper)


# Measured -------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Precision:
    """The effort of a measurement, on which the precision of an edge depends."""

    # minibatches a learner, on average; exchanges, where it is asynchronous and has a period. What grows by less than
    # `GROWN` nats in a third of them passes for stable.
    rounds: int = 750
    coordinates: int = 4096  # they share the logarithm of the span evenly


USUAL_PRECISION = Precision()


def largest_stable(
    strategy: Strategy,
    setting: StabilitySetting,
    jitter: float = 0.0,
    span: tuple[float, float] = (0.02, 4.0),
    precision: Precision = USUAL_PRECISION,
    seed: int = 0,
) -> float:
    """Return the smallest curvature in `span` above which a run with learning rate 1 diverges, or the end of `span`.

    Args:
        jitter: sigma of the log-normal time of a gradient.
    """
    learners, rounds, coordinates = setting.learners, precision.rounds, precision.coordinates
    period = getattr(strategy, "period", 1)  # every third is whole blocks
    asynchronous = not strategy.traits.synchronous  # then growth goes with the exchanges, not with the steps
    third = -(-rounds // 3) * period if asynchronous else -(-rounds // (3 * period)) * period
    task = Quadratic(coordinates, 3 * third * learners, span, seed=seed)
    plan = EpochPlan(0, task.examples, learners, learners, seed)  # one example for each learner
    cost = CostModel(gradient=1.0, jitter=jitter, exchange=1e-4, allreduce=0.0)
    optimum, sizes = QuadraticLearner(task).optimum, []
    with SimRuntime(Cluster(strategy, task, Sgd(setting.momentum), learners, seed), cost) as runtime:
        for first in (0, third, 2 * third):
            runtime.segment(SegmentPlan(plan, 1.0, first=first * learners, last_round=first + third))
            sizes.append(_distance(runtime, optimum))
    with np.errstate(invalid="ignore"):
        growth = np.diff(np.log(sizes), axis=0)
    grows = np.logical_not((growth < GROWN).any(axis=0))  # a coordinate that is NaN by now has grown
    grows[:-1] &= grows[1:]
    edges = np.geomspace(*span, coordinates // NEIGHBOURS + 1)
    return float(edges[np.argmax(grows)] if grows.any() else span[1])


def _distance(runtime: SimRuntime, optimum: torch.Tensor) -> NDArray[np.float64]:
    """Return the distance from the optimum by coordinate: root mean square over learners and neighbouring
    coordinates."""
    squares = (runtime.rows().double() - optimum).square().mean(0)
    return cast(NDArray[np.float64], squares.reshape(-1, NEIGHBOURS).mean(1).sqrt().numpy())


# On paper ------------------------------------------------------------------------------------------------------------

Recursion = Callable[[float], NDArray[np.float64]]
"""Function from rate x curvature s to the matrix of one turn of a strategy."""


def theory(strategy: Strategy, learners: int, momentum: float = 0.0) -> float | None:
    """Return the largest stable rate x curvature (the edge) by theory, for equally fast learners; None if no recursion
    is derived.

    With s = rate x curvature a local step multiplies the distance from the optimum by 1 - s. docs/stability.md derives
    the recursions.
    """
    setting, edge = StabilitySetting(learners, momentum), None
    match strategy:
        case OneLearner() | Ssgd():
            edge = 2 * (1 + momentum)
        case DiLoCo() if strategy.streams or strategy.delay:
            pass
        case Bsp() | Bmuf() | BmufFairseq() | SlowMo() | DiLoCo():
            edge = first_unstable(_block(strategy, setting), 4 * (1 + momentum))
    return _theory_of_plain_sgd(strategy, learners) if edge is None and not momentum else edge


def _theory_of_plain_sgd(strategy: Strategy, learners: int) -> float | None:
    edge: float | None = None
    match strategy:
        case GossipPga():
            edge = 2.0
        case DelayByOne():
            edge = 1.0 if learners > 1 else 2.0
        case DelayedGradient():
            edge = late_gradients(1)
        case DPsgd():
            edge = _decentralized(strategy, learners)
        case Asgd():
            edge = _server(strategy, learners)
        case Easgd():
            edge = first_unstable(_springs(strategy, learners))
        case EasgdSync():
            edge = first_unstable(_springs_at_once(strategy, learners))
        case DiLoCo():
            edge = first_unstable(_streaming(strategy, learners))
    return edge


def late_gradients(delay: int) -> float:
    """Return the edge of x_{k+1} = x_k - s x_{k-delay}: 2 sin(pi / (4 delay + 2)), that is 2, 1, 0.62, 0.45, ..."""
    return 2 * sin(pi / (4 * delay + 2))


def first_unstable(recursion: Recursion, end: float = 4.0) -> float:
    """Return the smallest s at which an eigenvalue of `recursion(s)` leaves the unit circle, or `end`."""

    def unstable(s: float) -> bool:
        return bool(np.abs(np.linalg.eigvals(recursion(s))).max() > 1 + 1e-9)

    low = 0.0
    for high in np.arange(0.01, end, 0.01):
        if unstable(float(high)):
            break
        low = float(high)
    else:
        return end
    high = low + 0.01
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if unstable(middle) else (middle, high)
    return low


def _decentralized(strategy: DPsgd, learners: int) -> float:
    """Return the edge of gossip. Step and mix in turn: 2. In consensus order, deviations from the mean obey d <- (T -
    s) d, the mean 1 - s."""
    if strategy.order != "consensus" or learners == 1:
        return 2.0
    if strategy.topology == "random-ring":  # in mean square, no direction being special: E |(T - s) d|^2 < |d|^2
        ring = strategy.mixing * ring_matrix(learners) + (1 - strategy.mixing) * np.eye(learners)
        once, twice = ((np.trace(power) - 1) / (learners - 1) for power in (ring, ring @ ring))
        return float(once + (once**2 + 1 - twice) ** 0.5)
    turns = len(doublings(learners)) if strategy.topology == "exponential" else 1
    edges = tuple((int(i), int(j)) for i, j in strategy.edges)
    share, alone = strategy.mixing, np.eye(learners)
    mixes = [
        share * mixing_matrix(strategy.topology, edges, learners, 0, k) + (1 - share) * alone for k in range(turns)
    ]

    def turn(s: float) -> NDArray[np.float64]:
        product = np.eye(learners)
        for mix in mixes:
            product = (mix - s * np.eye(learners)) @ product
        return product

    return first_unstable(turn)


def _block(strategy: Bsp | Bmuf | BmufFairseq | SlowMo | DiLoCo, setting: StabilitySetting) -> Recursion:
    """Return the recursion on (W, D, v, u) over a block: the model held, the block's or outer momentum, the learners'
    local momentum, and the deviation of one learner's momentum from theirs (models do not deviate: they begin a block
    alike)."""
    zeta, eta = (0.0, 1.0) if isinstance(strategy, Bsp) else strategy.settled(setting)
    fairseq, look_ahead = isinstance(strategy, BmufFairseq), isinstance(strategy, Bmuf) and strategy.nesterov
    keeps = float(strategy.local_momentum == "keep" or setting.learners == 1)
    own = keeps * (setting.learners > 1)  # an average leaves no deviation
    shared = float(strategy.local_momentum != "reset" or setting.learners == 1)

    def turn(s: float) -> NDArray[np.float64]:
        mu = setting.momentum
        local = np.linalg.matrix_power(np.array([[1 - s, -mu], [s, mu]]), strategy.period)  # of (x, v), v <- mu v + s x
        columns = []
        for model, delta, v, u in np.eye(4):
            begin = model + look_ahead * zeta * delta
            mean, v_end = local @ (begin, v)
            change = mean - begin
            if isinstance(strategy, DiLoCo):
                moved = zeta * delta - change
                columns.append((model + eta * (change - zeta * moved), moved, shared * v_end, own * local[1, 1] * u))
            else:
                moved = zeta * delta + eta * change
                columns.append((model + moved * (1 + zeta * fairseq), moved, shared * v_end, own * local[1, 1] * u))
        return np.array(columns).T

    return turn


def _streaming(strategy: DiLoCo, learners: int) -> Recursion:
    """Return the recursion on (W, v, x, d) of a fragment, from one of its outer steps to the next: the model held, the
    outer momentum, the mean of the learners' own models, and the deviation of one learner's from that."""
    zeta, eta = strategy.settled(StabilitySetting(learners))
    period, mix = strategy.period, strategy.mix

    def turn(s: float) -> NDArray[np.float64]:
        sent, local = (1 - s) ** (period - strategy.delay), (1 - s) ** period
        columns = []
        for model, outer, x, d in np.eye(4):
            outward = model - sent * x
            moved = zeta * outer + outward
            held = model - eta * (outward + zeta * moved)
            columns.append((held, moved, (1 - mix) * held + mix * local * x, mix * local * d))
        return np.array(columns).T

    return turn


def _server(strategy: Asgd, learners: int) -> float:
    """Return the edge for equally fast learners that take turns, so each report is L - 1 late: w <- w - g w_late, g = 1
    - (1 - s)^period."""
    scale = strategy.rate / (max(1, learners - 1) if strategy.staleness_aware else 1)
    bears, period = late_gradients(learners - 1) / scale, strategy.period
    if bears < 1:
        return float(1 - (1 - bears) ** (1 / period))
    return 2.0 if period % 2 == 0 else float(1 + (bears - 1) ** (1 / period))


def _springs(strategy: Easgd, learners: int) -> Recursion:
    """Return the recursion on (x_1, ..., x_L, centre): one learner after the other is pulled, and then takes its
    steps."""
    alpha, centre = strategy.beta / learners, learners

    def turn(s: float) -> NDArray[np.float64]:
        product = np.eye(learners + 1)
        for rank in range(learners):
            pull = np.eye(learners + 1)
            pull[np.ix_([rank, centre], [rank, centre])] = [[1 - alpha, alpha], [alpha, 1 - alpha]]
            pull[rank] *= (1 - s) ** strategy.period
            product = pull @ product
        return product

    return turn


def _springs_at_once(strategy: EasgdSync, learners: int) -> Recursion:
    """Return the recursion on (mean, centre, a deviation from the mean)."""
    alpha, beta = strategy.beta / learners, strategy.beta

    def turn(s: float) -> NDArray[np.float64]:
        rest = (1 - s) ** (strategy.period - 1)
        return np.array(
            [
                [rest * (1 - s - alpha), rest * alpha, 0],
                [beta, 1 - beta, 0],
                [0, 0, rest * (1 - s - alpha) if learners > 1 else 0],
            ]
        )

    return turn
