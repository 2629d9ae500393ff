"""Facts of an advice: from a virtual cluster, a probe of this machine, a run's records."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from roundelay.advice.advise import Advice, AdviceTask, advise
from roundelay.advice.from_run import read_facts
from roundelay.advice.machines import Machines, bytes_per_second, link_of, probed_layers
from roundelay.advice.wanted import Wanted
from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.runtime.doctor.consult import consult
from roundelay.runtime.sim.cluster import VirtualCluster, VirtualLink, VirtualLinks, load_cluster

BYTES_A_PARAMETER = 4
Say = Callable[[str], None]


def advise_on(wanted: Wanted, say: Say = lambda _: None) -> Advice:
    """Return the advice for the facts the user gives.

    Raises:
        UserError: a fact that advice needs is missing; names the file and the key, or the option.
    """
    wanted.check()
    if wanted.cluster is not None:
        cluster = load_cluster(wanted.cluster)
        return advise(cluster, task_of(wanted, AdviceTask(_parameters(wanted, cluster))))
    if wanted.run is not None:
        return _of_run(wanted, wanted.run, say)
    return _of_probe(wanted, str(wanted.probe), say)


def task_of(wanted: Wanted, known: AdviceTask) -> AdviceTask:
    """Return the task `known`, with facts that the user gives in place of its own."""
    given = {name: getattr(wanted, name) for name in ("parameters", "examples", "frames", "momentum", "rate")}
    share = known.share if wanted.frames is None else None  # measured of other minibatches
    return replace(known, share=share, **{name: value for name, value in given.items() if value is not None})


def _parameters(wanted: Wanted, cluster: VirtualCluster) -> float:
    if wanted.parameters is not None:
        return wanted.parameters
    if cluster.model_bytes is None:
        raise UserError(
            f"{wanted.cluster}: model_bytes is missing: add it (4 for every parameter), or give --parameters."
        )
    return cluster.model_bytes / BYTES_A_PARAMETER


def _of_run(wanted: Wanted, run: Path, say: Say) -> Advice:
    facts = read_facts(run, wanted.target_loss, _link(wanted))
    if not facts.link_known:
        say(f"{run}: its records do not say how fast links between hosts are: 10 Gbit/s is assumed. Give --link.")
    return advise(facts.cluster, task_of(wanted, facts.task))


def _of_probe(wanted: Wanted, probe: str, say: Say) -> Advice:
    """Return the advice for a recipe or a number of parameters, timed on this host."""
    usual = VirtualLinks().between
    link, count = _link(wanted) or usual, wanted.machines or 1
    if wanted.hosts:
        count, link = 1 + len(wanted.hosts), _measured_link(wanted, say)
    machines = Machines(wanted.learners or cores(), count, link)
    try:
        parameters = float(probe)
    except ValueError:
        learners = machines.learners * machines.count
        overrides = [f"training.learners={learners}", "training.strategy=ssgd", "training.options={}"]
        of_recipes = load("roundelay_speech.advice", "speech", "advise --probe RECIPE")
        cluster, task = of_recipes.probed(probe, overrides, machines)
        return advise(cluster, task_of(wanted, task))
    task = task_of(wanted, AdviceTask(parameters))
    return advise(probed_layers(parameters, task.frames, machines), task)


def _link(wanted: Wanted) -> VirtualLink | None:
    return None if wanted.link is None else link_of(wanted.link, bytes_per_second(wanted.link))


def _measured_link(wanted: Wanted, say: Say) -> VirtualLink:
    """Return the slowest link between the hosts in `wanted`, measured as `roundelay doctor` does.

    Raises:
        UserError: a host cannot be reached.
    """
    report = consult(wanted.hosts, wanted.listen, wanted.learners, wanted.parameters or 1e6, Path("exp"), None, say)
    ways = [] if report is None else report.ways
    rates = [way.megabytes_s for way in ways if way.megabytes_s is not None]
    if report is None or len(rates) < len(ways) or not rates:
        problems = "; ".join(way.problem for way in ways if way.problem) or "see `roundelay doctor`"
        raise UserError(f"--hosts {' '.join(wanted.hosts)}: not every link could be measured: {problems}.")
    latency = max(way.latency_ms or 0.0 for way in ways)
    return link_of("measured", 1e6 * min(rates), latency)
