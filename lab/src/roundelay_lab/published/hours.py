"""The simulator against published hours: acoustic models of 2,000 hours on 16 to 128 GPUs of IBM's machines.

Only hours are printed, one or two for each machine; epochs, minibatch and network are assumed for all (ibm.yaml). So
one number is fitted for each system, the seconds of a sequence on one of its GPUs, and the rest is to predict: how
hours change with the number of GPUs. All hours come from the simulator, event by event.

The step from 64 to 128 GPUs is printed twice (2.28 and 1.98 hours) and is 1.15 times as fast with twice the GPUs. Three
things could make it so: a cost that each minibatch has however small it is, an interface between nodes that is full, or
hours in which no GPU computes. Each alone meets both times with one more number; `knee` says how each would then change
with 256 GPUs, larger minibatches or smaller messages.
"""

from collections.abc import Mapping
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
    """A machine: learners of a node, and bytes a second of a node's network interface, which they share."""

    learners: int
    bandwidth: float


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
    """Another value for an assumption. bandwidth, learners: those of a node of system D."""

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


def assumed_otherwise(printed: IbmHours) -> dict[str, IbmHours]:
    """Return the rows of system D under every other assumption, by its name. System D's printed hours for two numbers
    of GPUs differ by more than their number explains."""
    found = {}
    for one in printed.otherwise:
        given = {name: value for name in ("epochs", "minibatch") if (value := getattr(one, name)) is not None}
        node = {name: value for name in ("bandwidth", "learners") if (value := getattr(one, name)) is not None}
        found[one.name] = replace(
            printed,
            assumed=replace(printed.assumed, **given),
            systems={**printed.systems, "D": replace(printed.systems["D"], **node)},
            rows=tuple(row for row in printed.rows if row.system == "D"),
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
