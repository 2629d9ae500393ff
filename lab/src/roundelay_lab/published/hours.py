"""The simulator against published hours: acoustic models of 2,000 hours on 16 to 128 GPUs of IBM's machines.

Only hours are printed, one or two for each machine; epochs, minibatch and network are assumed for all (ibm.yaml). So
one number is fitted for each system, the seconds of a sequence on one of its GPUs, and the rest is to predict: how
hours change with the number of GPUs. All hours come from the simulator, event by event.

The step from 64 to 128 GPUs is printed twice (2.28 and 1.98 hours) and is 1.15 times as fast with twice the GPUs. Three
things could make it so: a cost that each minibatch has however small it is, an interface between nodes that is full, or
hours in which no GPU computes. Each alone meets both times with one more number; `knee` says how each would then change
with 256 GPUs, larger minibatches or smaller messages.

`speedups` says what a fitted system makes of 8 to 128 GPUs beside one (figure 4 of Zhang et al. 2019, arXiv 1907.05701,
for system B), and how far that goes up and down where what is not printed is otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from roundelay.core.configure import build, read_yaml
from roundelay.runtime.sim.cluster import Allreduce, Compute, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.simulation.scenario import time_strategy
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

SIMULATED_ROUNDS = 48
"""Fewest minibatches of a learner that are simulated, so many that the first hardly count."""
FIT_STEPS = 6
"""Steps of the search in a fit."""
COUNTS = (8, 16, 32, 64, 128)
"""Numbers of GPUs for which speedups are predicted."""
PEAK_FLOPS = {"P100": 10.6e12, "V100": 15.7e12}
"""Operations a second in single precision, by the maker's data sheets."""


@dataclass(frozen=True)
class Assumed:
    """Assumed values that the publications do not print, the same for all rows. minibatch: sequences of all learners
    together. parameters: number of parameters of the network."""

    epochs: int
    minibatch: int
    sequence_frames: int
    parameters: int


@dataclass(frozen=True)
class System:
    """A machine: learners of a node, and bytes a second of a node's network interface, which they share. `printed`: a
    publication says both."""

    learners: int
    bandwidth: float
    printed: bool = False


@dataclass(frozen=True)
class PrintedHours:
    """A printed training time. below: True if it is an upper bound."""

    source: str
    system: str
    gpus: int
    strategy: str
    hours: float
    use: Literal["fitted", "predicted"]
    below: bool = False


@dataclass(frozen=True)
class Otherwise:
    """Another value for an assumption. bandwidth, learners: those of a node."""

    name: str
    epochs: int | None = None
    minibatch: int | None = None
    bandwidth: float | None = None
    learners: int | None = None


@dataclass(frozen=True)
class IbmHours:
    """The printed hours of IBM's machines, and assumptions: content of ibm.yaml."""

    assumed: Assumed
    otherwise: tuple[Otherwise, ...]
    corpus_frames: float
    systems: Mapping[str, System]
    inside: VirtualLink
    rows: tuple[PrintedHours, ...]

    @property
    def minibatches(self) -> float:
        """Number of minibatches of a learner in the whole training."""
        frames = self.assumed.minibatch * self.assumed.sequence_frames
        return self.corpus_frames * self.assumed.epochs / frames


@dataclass(frozen=True)
class Machine:
    """A system with its fitted numbers.

    sequence: seconds of a sequence on one GPU. minibatch: seconds that each minibatch takes besides.
    idle: hours of the whole training in which no GPU computes.
    """

    system: System
    inside: VirtualLink
    sequence: float
    minibatch: float = 0.0
    idle: float = 0.0

    def cluster(self, name: str, gpus: int, assumed: Assumed) -> VirtualCluster:
        """Return a virtual cluster of `gpus` GPUs of this machine."""
        full, rest = divmod(gpus, self.system.learners)
        between = VirtualLink(latency=5e-6, bandwidth=self.system.bandwidth, shared=True)
        return VirtualCluster(
            name=name,
            nodes=(*([Node(self.system.learners, full)] if full else []), *([Node(rest)] if rest else [])),
            compute=Compute(seconds=self.minibatch, seconds_per_frame=self.sequence / assumed.sequence_frames),
            links=VirtualLinks(inside=self.inside, between=between),
            allreduce=Allreduce("hierarchical"),
            model_bytes=4.0 * assumed.parameters,
        )


@dataclass(frozen=True)
class ComparedHours:
    """A printed row and the model's prediction for it."""

    row: PrintedHours
    hours: float

    @property
    def error(self) -> float:
        """Relative error of the prediction; for an upper bound, by how much it is exceeded."""
        error = self.hours / self.row.hours - 1
        return max(0.0, error) if self.row.below else error


@dataclass(frozen=True)
class Explanation:
    """A change of the model that alone makes 64 and 128 GPUs of system D as fast as printed.

    flops: operations a second of a GPU that follow. hours: hours by the name of a change that was not printed.
    """

    name: str
    fitted: str
    flops: float
    hours: Mapping[str, float]


def load_printed() -> IbmHours:
    """Return the printed hours that come with the package."""
    return build(IbmHours, read_yaml(Path(__file__).with_name("ibm.yaml")))


def hours(printed: IbmHours, machine: Machine, gpus: int, strategy: Strategy) -> float:
    """Return the hours of the whole training on so many GPUs, in the simulator."""
    assumed = printed.assumed
    frames = assumed.minibatch * assumed.sequence_frames // gpus
    rounds = max(SIMULATED_ROUNDS, getattr(strategy, "period", 1))
    timed = time_strategy(strategy, machine.cluster("IBM", gpus, assumed), frames, rounds)
    return machine.idle + timed.seconds / rounds * printed.minibatches / 3600


def assumed_otherwise(printed: IbmHours, system: str = "D") -> dict[str, IbmHours]:
    """Return the rows of one system under every other assumption, by its name; by default those of D, whose printed
    hours for two numbers of GPUs differ by more than their number explains. An assumption about nodes that are printed,
    or that the system's strategy makes its groups of, stays as it is."""
    rows, usual = tuple(row for row in printed.rows if row.system == system), printed.systems[system]
    grouped = any(hasattr(make_strategy(row.strategy), "node_size") for row in rows)
    found = {}
    for one in printed.otherwise:
        given = {name: value for name in ("epochs", "minibatch") if (value := getattr(one, name)) is not None}
        node = {name: value for name in ("bandwidth", "learners") if (value := getattr(one, name)) is not None}
        if node and (usual.printed or ("learners" in node and grouped)):
            continue
        found[one.name] = replace(
            printed,
            assumed=replace(printed.assumed, **given),
            systems={**printed.systems, system: replace(usual, **node)},
            rows=rows,
        )
    return found


def machines(printed: IbmHours) -> dict[str, Machine]:
    """Fit every system: choose its seconds of a sequence such that its fitted row is met."""
    found = {}
    for row in printed.rows:
        if row.use == "fitted":
            unfitted = Machine(printed.systems[row.system], printed.inside, 0.0)
            strategy = make_strategy(row.strategy)
            sequence = row.hours
            for _ in range(FIT_STEPS):  # hours are nearly in proportion to it
                machine = replace(unfitted, sequence=sequence)
                sequence *= row.hours / hours(printed, machine, row.gpus, strategy)
            found[row.system] = replace(unfitted, sequence=sequence)
    return found


def compare_hours(printed: IbmHours, fitted: Mapping[str, Machine]) -> list[ComparedHours]:
    """Return every printed row, in the order of the file, with the hours predicted on the fitted machines."""
    return [
        ComparedHours(row, hours(printed, fitted[row.system], row.gpus, make_strategy(row.strategy)))
        for row in printed.rows
    ]


@dataclass(frozen=True)
class Speedup:
    """Predicted hours on so many GPUs, and how many times as fast as on one; of both the lowest and the highest under
    other assumptions. `met`: these hours are printed, and the system is fitted to them."""

    strategy: str
    gpus: int
    met: bool
    hours: float
    hours_between: tuple[float, float]
    times: float
    times_between: tuple[float, float]


def speedups(printed: IbmHours, system: str, counts: Sequence[int] = COUNTS) -> tuple[list[Speedup], list[str]]:
    """Return the speedups of a system by its own strategy and by `ssgd`, for each number of GPUs; and the assumptions
    under which no GPU is fast enough for its printed hours, which are left out."""
    row = next(row for row in printed.rows if row.system == system and row.use == "fitted")
    one, alone, left_out = replace(printed, rows=(row,)), make_strategy("ssgd"), list[str]()
    under = list[tuple[IbmHours, Machine, float]]()
    for name, other in {"": one, **assumed_otherwise(one, system)}.items():
        machine = machines(other)[system]
        if hours(other, machine, row.gpus, make_strategy(row.strategy)) > 1.01 * row.hours:
            left_out.append(name)
        else:
            under.append((other, machine, hours(other, machine, 1, alone)))
    found = []
    for name in dict.fromkeys((row.strategy, "ssgd")):
        strategy = make_strategy(name)
        for gpus in counts:
            taken = [hours(other, machine, gpus, strategy) for other, machine, _ in under]
            times = [first / several for (_, _, first), several in zip(under, taken, strict=True)]
            between = (min(taken), max(taken)), (min(times), max(times))
            met = name == row.strategy and gpus == row.gpus
            found.append(Speedup(name, gpus, met, taken[0], between[0], times[0], between[1]))
    return found, left_out


def flops(printed: IbmHours, machine: Machine) -> float:
    """Return the operations a second of a GPU: six for each parameter and frame, forward and backward."""
    return 6 * printed.assumed.parameters * printed.assumed.sequence_frames / machine.sequence


def knee(printed: IbmHours) -> list[Explanation]:
    """Return things that could make 128 GPUs of system D only 1.15 times as fast as 64, one at a time."""
    rows = {row.gpus: row for row in printed.rows if row.source == "D"}
    strategy = make_strategy(rows[64].strategy)
    free = Machine(replace(printed.systems["D"], bandwidth=1e15), printed.inside, 0.0)
    work = hours(printed, replace(free, sequence=1.0), 64, strategy)  # hours on 64 GPUs of 1 s a sequence
    gain = 2 * (rows[64].hours - rows[128].hours)  # of halving each learner's sequences
    sequence, rest = gain / work, rows[64].hours - gain
    seconds = rest * 3600 / printed.minibatches
    full = replace(free, sequence=rows[64].hours / work)
    system = replace(full.system, bandwidth=1e8)  # so little that messages take all the time
    for _ in range(FIT_STEPS):
        taken = hours(printed, replace(full, system=system), 128, strategy)
        system = replace(system, bandwidth=system.bandwidth * taken / rows[128].hours)
    per_minibatch = replace(free, sequence=sequence, minibatch=seconds)
    idle = replace(free, sequence=sequence, idle=rest)
    full = replace(full, system=system)
    candidates = (
        ("a cost of every minibatch", f"{seconds:.3f} s", per_minibatch),
        ("full network interfaces", f"{8e-9 * system.bandwidth:.0f} Gbit/s a node", full),
        ("hours without any gradient", f"{60 * rest / printed.assumed.epochs:.1f} min an epoch", idle),
    )
    larger = replace(printed, assumed=replace(printed.assumed, minibatch=2 * printed.assumed.minibatch))
    found = []
    for name, fitted, machine in candidates:
        run = partial(hours, machine=machine, strategy=strategy)
        half = replace(machine, system=replace(machine.system, bandwidth=2 * machine.system.bandwidth))
        changes = {
            "64": run(printed, gpus=64),
            "128": run(printed, gpus=128),
            "256": run(printed, gpus=256),
            "128, minibatch x 2": run(larger, gpus=128),
            "128, half the bytes": hours(printed, half, 128, strategy),
        }
        found.append(Explanation(name, fitted, flops(printed, machine), changes))
    return found
