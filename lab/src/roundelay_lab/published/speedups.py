"""The simulator against published speedups: Li et al. 2017, on one host with up to eight GPUs.

Assumptions, fitted on as few rows as there are numbers (li2017.yaml says which rows, and why those):

    a minibatch of n frames    takes f + k n s(N) with N learners on the host: f belongs to the minibatch, k to a frame;
                               sharing (input, memory, buses) slows frames by s(N), s(1) = 1
    an allreduce               is a tree over equal links: 2 ceil(log2 N) messages of one model
    an exchange with a server  is one model there and one back over the same links; the server does one at a time

Only ratios are printed, so the unit of time is a minibatch of the largest size on one GPU. For the DNN four numbers are
fitted (f, s(4), s(8), and the time of one message), for the CLDNN, which has one minibatch size, three. All predictions
are made by the simulator, event by event, the server's queue included.
"""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from roundelay.core.configure import build, read_yaml
from roundelay.runtime.sim.cluster import Allreduce, Compute, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.simulation.scenario import time_strategy
from roundelay.strategies import make_strategy

MEDIAN_BOUND, LARGEST_BOUND = 0.05, 0.15
BLOCKS = 64
"""Synchronisation periods simulated for a row: many, since in the first all learners meet at the server at once."""


@dataclass(frozen=True)
class PublishedRow:
    """A line of a published table."""

    tables: str
    network: Literal["DNN", "CLDNN"]
    minibatch: int
    strategy: str
    gpus: int
    period: int
    speedup: float
    use: Literal["fitted", "predicted", "aside"]


@dataclass(frozen=True)
class LiTables:
    """The published tables of Li et al. 2017, content of li2017.yaml."""

    parameters: dict[str, float] = field(default_factory=dict)
    rows: tuple[PublishedRow, ...] = ()


@dataclass(frozen=True)
class Fit:
    """The fitted numbers of one network, in units of a minibatch of `largest` frames on one GPU."""

    fixed: float  # f
    slowdown: dict[int, float]  # s(N) by N
    message: float  # one model over one link
    largest: int
    model_bytes: float

    def minibatch(self, frames: int) -> float:
        """Return the seconds of a minibatch of `frames` on one GPU alone."""
        return self.fixed + (1 - self.fixed) * frames / self.largest

    def host(self, gpus: int) -> VirtualCluster:
        """Return the host as a virtual cluster with `gpus` GPUs in use."""
        link = VirtualLink(latency=0.0, bandwidth=self.model_bytes / self.message)
        return VirtualCluster(
            name=f"Li et al. 2017, {gpus} GPUs",
            nodes=(Node(gpus, slowdown={str(n): s for n, s in self.slowdown.items()}),),
            compute=Compute(seconds=self.fixed, seconds_per_frame=(1 - self.fixed) / self.largest),
            links=VirtualLinks(inside=link),
            allreduce=Allreduce("tree"),
            model_bytes=self.model_bytes,
        )


@dataclass(frozen=True)
class Compared:
    """A published row and the model's prediction for it."""

    row: PublishedRow
    speedup: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.speedup / self.row.speedup - 1


def load_tables() -> LiTables:
    """Return the published rows that come with the package."""
    return build(LiTables, read_yaml(Path(__file__).with_name("li2017.yaml")))


def fit(tables: LiTables, network: str) -> Fit:
    """Solve for a network's numbers; each fitted row is one equation.

    Under allreduce a learner's minibatch takes N / speedup minibatches of one GPU; that is compute + mean / period,
    divided by compute on one GPU.
    """
    rows = [row for row in tables.rows if row.network == network and row.use == "fitted"]
    largest = max(row.minibatch for row in rows)
    main = {(row.gpus, row.period): row.gpus / row.speedup for row in rows if row.minibatch == largest}
    (first, last) = sorted(period for gpus, period in main if gpus == 4)
    message = (main[4, first] - main[4, last]) / (_messages(4) / first - _messages(4) / last)
    (at_eight,) = {period for gpus, period in main if gpus == 8}
    slow = {
        4: main[4, first] - _messages(4) * message / first,
        8: main[8, at_eight] - _messages(8) * message / at_eight,
    }
    # `slow` holds f + (1 - f) s(N), a minibatch of the largest size. A smaller one, of a share q of the frames, takes
    # f + q (slow - f) among N and f + q (1 - f) alone; the ratio, with its message, is its row: linear in f.
    fixed = 0.0
    for row in rows:
        if row.minibatch != largest:
            q, ratio = row.minibatch / largest, row.gpus / row.speedup
            rest = _messages(row.gpus) * message / row.period
            fixed = (q * slow[row.gpus] + rest - ratio * q) / ((ratio - 1) * (1 - q))
    slowdown = {gpus: (whole - fixed) / (1 - fixed) for gpus, whole in slow.items()}
    return Fit(fixed, slowdown, message, largest, 4 * tables.parameters[network])


def _messages(gpus: int) -> int:
    """Return the number of successive messages of a tree among `gpus`, up and down."""
    return 2 * (gpus - 1).bit_length()


def predict(found: Fit, row: PublishedRow) -> float:
    """Return the speedup that the simulator predicts for a row."""
    strategy = make_strategy(row.strategy, {"period": row.period})
    rounds = BLOCKS * row.period
    timed = time_strategy(strategy, found.host(row.gpus), row.minibatch, rounds)
    return row.gpus * rounds * found.minibatch(row.minibatch) / timed.seconds


def compare() -> list[Compared]:
    """Return every published row with its prediction, in the order of the file."""
    tables = load_tables()
    fits = {network: fit(tables, network) for network in tables.parameters}
    return [Compared(row, predict(fits[row.network], row)) for row in tables.rows]


def errors(compared: list[Compared]) -> tuple[float, float]:
    """Return (median, largest) absolute relative error over the predicted rows."""
    found = [abs(one.error) for one in compared if one.row.use == "predicted"]
    return median(found), max(found)
