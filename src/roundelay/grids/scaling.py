"""Seconds to a loss of one learner over those of several, each way to train at the learning rate that is best for it.

A way is a strategy, a number of learners, and whether one of them is slow. The rates of each are tried under the
recipe's seed, one learner's first: seconds are counted to the loss that it ends with. Of one learner that rate
is the best which ends lowest; of several, the one that is first at that loss. A best rate at the edge of those tried
widens them. Then the best is judged under other seeds, so that no ratio was chosen by looking at it.

Learners that are processes take real seconds, a thread each unless the recipe says otherwise. More learners can be
simulated, at costs that the processes measured; one learner is simulated with them, for ratios are of one clock.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.files import write_text
from roundelay.core.progress import Progress
from roundelay.core.script import is_script
from roundelay.grids.axes import read_axes
from roundelay.grids.grid import Contenders, Tuning
from roundelay.grids.hosts import cell_of, check_learners, digest_of, led, read_hosts, virtual_hosts
from roundelay.grids.results import CellOutcome, CellRecord, CellState, Tuned, held_out_loss, tuned
from roundelay.grids.running import GridWork
from roundelay.grids.scripts import Script, ScriptTrials
from roundelay.grids.trials import RATE, Trials
from roundelay.job import Interrupt
from roundelay.reports.comparison import at_end, seconds_to
from roundelay.reports.runs import load_run
from roundelay.runtime.hosts.control.turns import NextTraining, follow
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.sim.cluster import Allreduce, Compute, Node, VirtualCluster
from roundelay.simulation.scenario import Measured, read_run

UNMEASURED = (
    "--simulated: simulated learners cost what processes measure, and there are no trainings by processes of one "
    "learner and of several. Give --learners 1,2; or --runtime sim alone, with costs from the recipe's section cost."
)
MOST_LEARNERS = 4096
"""Most learners that can be simulated; of a cluster, its first learners take part."""
COSTS = "costs.yaml"
"""File of the virtual cluster with measured costs, written once, so that simulations go on as they began."""


@dataclass(frozen=True)
class WantedWays:
    """Ways to train that are wanted of a recipe.

    strategies beside `sgd`; numbers of learners in the recipe's runtime; simulated: larger numbers, at measured costs;
    slower: factor by which learner 1 is slower, when everything is trained a second time; rates that are tried, or
    those of `FACTORS`; wider: how many rates may be tried beyond each end; seeds that judge; loss: held-out, that
    seconds are counted to, in place of the one that one learner ends with; wer: seconds are counted to a word error
    rate as well, to target_wer, in percent, or the one that one learner ends with; hosts: number of hosts of one
    learner, played by this machine; None: those that the environment gives, or one.
    """

    strategies: Sequence[str]
    learners: Sequence[int] = (1, 2)
    simulated: Sequence[int] = ()
    slower: float | None = None
    rates: Sequence[float] = ()
    wider: int = 3
    seeds: int = 3
    loss: float | None = None
    wer: bool = False
    target_wer: float | None = None
    hosts: int | None = None

    @property
    def contenders(self) -> Contenders:
        """Strategies, learners, seeds and stragglers to compare."""
        slow = [] if self.slower is None else [f"1:{self.slower:g}x"]
        return Contenders(self.strategies, self.learners, self.seeds, slow)


@dataclass(frozen=True)
class TrainedWay:
    """One way to train, trained: the learning rate chosen, and the runs under the seeds that judge."""

    choice: Tuned
    judged: tuple[CellOutcome, ...]
    """Runs under the seeds that judge; empty if no rate is chosen."""

    @property
    def rate(self) -> float | None:
        """Learning rate chosen."""
        return None if self.choice.chosen is None else rate_of(self.choice, self.choice.chosen)


def rate_of(choice: Tuned, record: CellRecord) -> float:
    """Return the learning rate of `record`, one of the trainings that a choice has tried."""
    (key,) = choice.tuning.keys
    return float(record.axes[key])


@dataclass(frozen=True)
class OneClock:
    """All ways to train with one kind of seconds, real or virtual; the first is one learner alone."""

    trials: Trials
    ways: tuple[TrainedWay, ...]
    loss: float | None = None
    """Held-out loss to which seconds are counted; None: the one that one learner ends with."""
    wer: float | None = None
    """Word error rate (percent) to which seconds are counted too if runs are decoded; None: the one that one learner
    ends with."""
    undecoded: tuple[CellOutcome, ...] = ()
    """Judged runs whose decoding has failed, or has not ended."""

    @property
    def virtual(self) -> bool:
        """True if the seconds are virtual."""
        return self.trials.virtual


@dataclass(frozen=True)
class _Work:
    """The surroundings of all trainings of one call: where progress is shown, the wish to stop, and the other hosts."""

    progress: Progress
    announce: Callable[[str], None]
    interrupt: Interrupt
    place: HostPlace | None = None
    """Place of this host among several."""
    about: str = ""
    """Digest of the command, which must be the same on all hosts."""


def scale(
    source: str,
    overrides: Sequence[str],
    wanted: WantedWays,
    folder: Path | None,
    progress: Progress,
    announce: Callable[[str], None],
    interrupt: Interrupt,
) -> list[OneClock]:
    """Train what is missing of all ways, first those in the recipe's runtime, then those simulated at measured costs.

    Args:
        source: a recipe, or a script (*.py).
        overrides: overrides of the recipe, or the arguments of the script.

    Raises:
        UserError: as `plan`; an override has several values, or is an option whose value each way chooses; simulated
            learners are wanted, but no processes have measured their costs.
    """
    wanted = replace(wanted, wer=wanted.wer or wanted.target_wer is not None)
    given = plain(replace(wanted, hosts=None))
    place, about = read_hosts(wanted.hosts), digest_of(source, overrides, given)
    if place is None and (wanted.hosts or 1) > 1:
        request = {"source": source, "given": list(overrides), "wanted": given, "folder": folder and str(folder)}
        with virtual_hosts(wanted.hosts or 1, request):
            work = _Work(progress, announce, interrupt, read_hosts(None), about)
            return _scale(source, overrides, wanted, folder, work)
    return _scale(source, overrides, wanted, folder, _Work(progress, announce, interrupt, place, about))


def _scale(
    source: str, overrides: Sequence[str], wanted: WantedWays, folder: Path | None, work: _Work
) -> list[OneClock]:
    """Train each strategy with each number of learners, and return the measured and simulated clocks."""
    if work.place is not None:
        check_learners(wanted.learners, work.place)
        if wanted.simulated:
            raise UserError("--simulated: costs are those of learners on one host. Leave it out, or train on one.")
    if is_script(source):
        return _script_clock(Script(Path(source), tuple(overrides)), wanted, folder, work)
    for axis in (axes := read_axes(overrides)).compared:
        if len(axis.values) > 1:
            raise UserError(f"{axis.key}: give one value; `roundelay compare` sets several side by side.")
    if any(text.startswith(f"{RATE}=") for text in axes.overrides):
        raise UserError(f"{RATE}: each way has the best of several; give them as --rates 0.01,0.02,0.04.")
    of_recipes = load("roundelay_speech.grids.trials", "speech", "scaling of a recipe")

    def clock(given: Sequence[str], wanted: WantedWays, folder: Path, work: _Work) -> list[OneClock]:
        trials = of_recipes.RecipeTrials.of(source, given, wanted.contenders, wanted.rates, folder, wanted.wer)
        return _one_clock(trials, wanted, work)

    base = of_recipes.load_recipe(source, axes.overrides)
    if wanted.simulated and (base.training.runtime == "sim" or max(wanted.learners) == 1):
        raise UserError(UNMEASURED)
    if base.training.runtime == "sim" and work.place is not None:
        raise UserError("--runtime sim is for one host, which simulates all learners: leave --hosts out.")
    where = _folder(base.name, folder, work.place)
    threads = base.training.threads is None and base.training.runtime == "procs"
    here = [*overrides, *(["training.threads=1"] if threads else [])]
    clocks = clock(here, wanted, where, work)
    if wanted.simulated and clocks and not work.interrupt.asked:
        costs = where / COSTS
        if not costs.exists():
            write_text(costs, yaml.safe_dump(plain(measured_cluster(clocks[0])), sort_keys=False))
        virtual = [*overrides, "training.runtime=sim", f"cost.cluster={costs}"]
        simulated = replace(wanted, learners=wanted.simulated)
        clocks += clock(virtual, simulated, where / "simulated", replace(work, place=None))
    return clocks


def _folder(name: str, given: Path | None, place: HostPlace | None) -> Path:
    """Return the folder of all runs."""
    usual = "scaling" if place is None else f"scaling-{place.learners}-on-hosts-of-{len(place.ranks)}"
    return Path("exp") / name / usual if given is None else given


def _script_clock(script: Script, wanted: WantedWays, folder: Path | None, work: _Work) -> list[OneClock]:
    if wanted.simulated:
        raise UserError(f"--simulated: {script.path} is a script; what can be simulated is a recipe.")
    if wanted.wer:
        raise UserError(f"--wer: {script.path} is a script; what can be decoded is a recipe.")
    where = _folder(script.path.stem, folder, work.place)
    return _one_clock(ScriptTrials.of(script, wanted.contenders, wanted.rates, where), wanted, work)


def _one_clock(trials: Trials, wanted: WantedWays, work: _Work) -> list[OneClock]:
    """Train and decode all ways of `trials`; return nothing on a host that did its part of a grid led by another."""
    trials.check()
    if work.place is not None and not work.place.conducts:

        def part(turn: NextTraining, place: HostPlace, asked: Callable[[], bool]) -> None:
            trials.take_part(cell_of(trials, turn), place, asked)

        follow(work.place, work.about, part, lambda: work.interrupt.asked)
        return []
    with led(trials, work.place, work.about) as those:
        ways = _trained_ways(those, wanted, work)
    return [OneClock(those, ways, wanted.loss, wanted.target_wer, _decoded(trials, ways, work))]


def _trained_ways(trials: Trials, wanted: WantedWays, work: _Work) -> tuple[TrainedWay, ...]:
    """Train what is missing of all ways of `trials`."""
    rates = trials.rates
    work.announce(
        f"{trials.size} trainings in {trials.folder}, more where the best rate is at the edge; minibatch: "
        f"{trials.about}"
    )
    trained = GridWork(trials.size, work.progress, work.announce, work.interrupt, trials.work)

    def tune(tuning: Tuning, cost: Callable[[CellRecord], tuple[float, ...]]) -> Tuned:
        """Return the best rate of a way, after as many more as its edges ask for."""
        name, tried = tuning.configuration.stem, list(rates)
        while True:
            done = {outcome.cell.exp for outcome in trained.outcomes}
            for cell in tuning.trials:
                if cell.exp not in done:
                    trained.add(cell, decode=False)
            choice = tuned(tuning, trained.outcomes, cost)
            further = _beyond(choice, tried, rates, wanted.wider)
            if further is None:
                return choice
            tried.append(further)
            trained.total += 1
            tuning = next(one for one in trials.tunings(tried) if one.configuration.stem == name)

    first, *others = trials.tunings(rates)
    choices = [tune(first, held_out_loss)]
    if choices[0].chosen is not None:
        ends_with = at_end(load_run(choices[0].chosen.directory))
        choices += [tune(one, _soonest(ends_with if wanted.loss is None else wanted.loss)) for one in others]
        for choice in choices:
            if choice.complete:
                work.announce(choice.said())
    else:  # nothing to measure the others by
        choices += [tuned(one, trained.outcomes) for one in others]
    judged: dict[int, list[CellOutcome]] = {}
    for seed in trials.seeds:
        for place, choice in enumerate(choices):
            if choice.best is not None:
                trained.add(trials.cell(choice.best, seed), decode=False)
                judged.setdefault(place, []).append(trained.outcomes[-1])
    return tuple(TrainedWay(choice, tuple(judged.get(place, ()))) for place, choice in enumerate(choices))


def _decoded(trials: Trials, ways: Sequence[TrainedWay], work: _Work) -> tuple[CellOutcome, ...]:
    """Decode the runs that judge, if wanted, after all trainings; return those whose decoding failed or did not end."""
    cells = [one.cell for way in ways for one in way.judged if one.trained] if trials.decoded else []
    if cells:
        work.announce(f"{len(cells)} runs to decode, the model of every epoch on {trials.decoded}")
    decoding = GridWork(len(cells), work.progress, work.announce, work.interrupt, trials.work)
    for cell in cells:
        decoding.add(cell, decode=True)
    return tuple(one for one in decoding.outcomes if one.state is not CellState.FINISHED)


def _soonest(loss: float) -> Callable[[CellRecord], tuple[float, ...]]:
    """Return the cost by which the best run has the fewest seconds to a held-out loss; runs that never reach it come
    after all others, by their loss at the end."""

    def cost(record: CellRecord) -> tuple[float, ...]:
        found = seconds_to(load_run(record.directory), loss)
        return (math.inf if found is None else found, *held_out_loss(record))

    return cost


def _beyond(choice: Tuned, tried: Sequence[float], rates: Sequence[float], wider: int) -> float | None:
    """Return the next learning rate to try beyond the edge, if the best is there, by the factor between it and its
    neighbour; None if the best is not at an edge, or `wider` rates beyond it were tried."""
    if choice.chosen is None or not choice.edges:
        return None
    ordered, best = sorted(tried), rate_of(choice, choice.chosen)
    upwards = best == ordered[-1]
    beyond = sum(rate > max(rates) if upwards else rate < min(rates) for rate in tried)
    edge, neighbour = (ordered[-1], ordered[-2]) if upwards else (ordered[0], ordered[1])
    if beyond >= wider or not edge > 0 or not neighbour > 0:
        return None
    return float(f"{edge * edge / neighbour:.6g}")


# Costs ----------------------------------------------------------------------------------------------------------------


def measured_cluster(clock: OneClock) -> VirtualCluster:
    """Return learners with a core each at the costs that processes measured: gradients (affine in their frames),
    updates, exchanges and means, those of most learners.

    Raises:
        UserError: costs were not measured: seconds are virtual, or no runs of one learner and of several ended.
    """
    runs = [] if clock.virtual else [run for way in clock.ways for run in _measured(way)]
    if not {1} < {run.learners for run in runs}:
        raise UserError(UNMEASURED)
    frames, seconds = np.array([run.frames for run in runs]), np.array([run.gradient for run in runs])
    per_frame, fixed = 0.0, float(np.mean([run.gradient for run in runs if run.learners == 1]))
    if np.ptp(frames) >= 1:
        slope, at_zero = (float(value) for value in np.polyfit(frames, seconds, 1))
        per_frame, fixed = (
            (slope, at_zero) if slope > 0 <= at_zero else (float(seconds @ frames / (frames @ frames)), 0.0)
        )
    mean = _of_most(runs, lambda run: run.mean)
    return VirtualCluster(
        name="measured",
        nodes=(Node(MOST_LEARNERS),),
        compute=Compute(seconds=fixed, seconds_per_frame=per_frame, update=_of_most(runs, lambda run: run.update)),
        exchange=_of_most(runs, lambda run: run.exchange),
        allreduce=Allreduce(seconds={"2": mean}),
        mix=mean,
        background=False,
    )


def _measured(way: TrainedWay) -> list[Measured]:
    """Return the costs measured by a way's runs that ended; none of runs with stragglers."""
    if way.choice.tuning.configuration.stragglers:
        return []
    return [read_run(outcome.cell.exp) for outcome in way.judged if outcome.state is CellState.FINISHED]


def _of_most(runs: Sequence[Measured], cost: Callable[[Measured], float | None]) -> float:
    """Return the mean of a cost over the runs with the most learners among those that have it; 0 if none has."""
    known: Mapping[int, list[float]] = {run.learners: [] for run in runs}
    for run in runs:
        if (value := cost(run)) is not None:
            known[run.learners].append(value)
    most = max((learners for learners, values in known.items() if values), default=None)
    return 0.0 if most is None else float(np.mean(known[most]))
