"""`roundelay.attach(..., strategy="auto")`: the strategy that advice takes for this module on these machines.

Facts not given are measured: seconds of a step, by the loop's own gradient (`probe`), or by linear layers with as many
parameters. The first learner of a host measures and chooses, and tells the others, so all have the same. Hosts do not
ask each other: there the two facts that could differ, `seconds` and `link`, are to be given, and the choice that
follows from them is the same everywhere. A session that resumes goes on by the strategy of its save.

Where a learner is several processes, the first of them does all this and tells the others, which compute their parts of
the gradients that it measures.
"""

import dataclasses
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from roundelay.advice.advise import AdviceTask, choice, rank
from roundelay.advice.machines import Machines, bytes_per_second, cluster_of, link_of, probed_layers, seconds_of
from roundelay.advice.throughput import candidates
from roundelay.attached.save_files import find
from roundelay.checkpoint import read_meta
from roundelay.core.configure import build
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import Group
from roundelay.runtime.launch.local_rendezvous import LocalRendezvous
from roundelay.runtime.launch.world import World
from roundelay.runtime.sim.cluster import Compute, Node, VirtualCluster, VirtualLinks
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")
_chosen = itertools.count(1)
"""Learners attach in the same order everywhere; each time they choose under the next number."""
COMPUTE = b"compute"
"""Message to the other processes of a learner: a gradient is measured."""
Probe = Callable[[], object]


@final
@dataclass(frozen=True)
class Facts:
    """Facts that a user may give beside "auto".

    seconds   of a step of one learner, from its forward to its update, with all learners of its host at work
    link      rate between hosts, as tc takes it (100mbit)
    frames    examples of a learner's minibatch
    examples  number of examples that one learner needs to reach the wanted loss
    """

    seconds: float | None = None
    link: str | None = None
    frames: int = 256
    examples: float = 1e6

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise UserError(f"auto.seconds is {self.seconds}: give the seconds of a step, above 0.")


@final
@dataclass(frozen=True)
class Chosen:
    """A strategy that advice has chosen, options between hosts that go with it, and the reason."""

    strategy: Strategy
    hosts: Mapping[str, Any]
    why: str


def chosen_strategy(
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    world: World,
    patience: float,
    resume: Path | None,
    options: Mapping[str, Any],
    group: Group | None = None,
) -> Chosen:
    """Return the strategy that `attach(strategy="auto")` means.

    Args:
        options: fields of `Facts`, and `probe`, a function that computes one gradient as the loop will.
        group: the processes of this learner, if it has several; all call this.

    Raises:
        UserError: an option is unknown; facts are missing where there are several hosts; or learners of this host
            did not come.
    """
    if group is None:
        return _chosen_here(module, optimizers, world, patience, resume, options)
    if group.place > 0:
        return _heard(group, module, options.get("probe"))
    given = {**options, "processes": group.size}
    if probe := options.get("probe"):

        def together() -> None:
            group.said(COMPUTE)
            probe()

        given["probe"] = together
    with group.failing():
        found = _chosen_here(module, optimizers, world, patience, resume, given)
    strategy: Any = found.strategy
    text = {"strategy": strategy.name, "options": dataclasses.asdict(strategy), "hosts": dict(found.hosts)}
    group.said(json.dumps({**text, "why": found.why}).encode())
    return found


def _heard(group: Group, module: nn.Module, probe: Probe | None) -> Chosen:
    """Return the choice of the learner's first process; compute this process's part of gradients until then."""
    with _without_trace(module):
        while (said := group.said(b"")) == COMPUTE:
            assert probe is not None
            probe()
    text = json.loads(said)
    return Chosen(make_strategy(text["strategy"], text["options"]), text["hosts"], text["why"])


def _chosen_here(
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    world: World,
    patience: float,
    resume: Path | None,
    options: Mapping[str, Any],
) -> Chosen:
    """Return the strategy as `chosen_strategy` does, in a learner's first process; `options` may have a number of
    `processes`."""
    if resume is not None and (found := find(resume, world.rank, world.learners)) is not None:
        meta = read_meta(found.paths[0])
        strategy = make_strategy(meta["strategy"], meta["options"])
        return _said(Chosen(strategy, {}, f"{found.paths[0].parent} was saved under it"), world)
    given = dict(options)
    probe, processes = given.pop("probe", None), given.pop("processes", 1)
    facts = build(Facts, given, "auto")
    if world.place is not None and (facts.seconds is None or facts.link is None):
        raise UserError(
            f'rank {world.rank}: strategy="auto" on several hosts needs seconds=... (of a step) and link="100mbit" '
            "(between two hosts), the same on all: what each would measure for itself differs."
        )
    number = -next(_chosen)  # of a meeting before the session
    with LocalRendezvous(world, number, patience) as rendezvous:
        if world.rank == world.here[0]:
            text, why = _choose(module, optimizers, world, facts, (probe, processes))
            others, nothing = rendezvous.collect(), os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for other, _ in zip(world.here[1:], others, strict=True):
                    rendezvous.tell(other, {**text, "why": why}, nothing)
            finally:
                os.close(nothing)
        else:
            said, descriptor = rendezvous.enter({})
            os.close(descriptor)
            why = str(said.pop("why"))
            text = said
    name, hosts = str(text.pop("strategy")), text
    return _said(Chosen(make_strategy(name), hosts if world.place is not None else {}, why), world)


def _said(chosen: Chosen, world: World) -> Chosen:
    if world.rank == 0:
        between = "".join(f", {name} {value}" for name, value in chosen.hosts.items())
        log.warning("strategy auto is %s%s: %s.", chosen.strategy.label, between, chosen.why)
    return chosen


def _choose(
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    world: World,
    facts: Facts,
    measured: tuple[Probe | None, int],
) -> tuple[dict[str, Any], str]:
    if world.learners == 1:
        return {"strategy": "sgd"}, "there is one learner"
    parameters = sum(p.numel() for p in module.parameters() if p.requires_grad)
    task = AdviceTask(parameters, facts.examples, facts.frames, _momentum(optimizers[0]))
    cluster, source = _cluster(module, parameters, world, facts, measured)
    ranked = rank(cluster, task, candidates(cluster))
    first, why = choice(ranked, world.learners, cluster.name, f" ({source})")
    text: dict[str, Any] = {"strategy": first.candidate.strategy}
    if len(cluster.machines()) > 1:
        text["wire"] = first.candidate.wire
    return text, why


def _cluster(
    module: nn.Module, parameters: int, world: World, facts: Facts, measured: tuple[Probe | None, int]
) -> tuple[VirtualCluster, str]:
    """Return the machines as advice simulates them, and in words the source of the seconds of a step. `measured` is the
    user's gradient, if given, and the number of processes of each learner."""
    here, (probe, processes) = len(world.here), measured
    if world.place is not None:
        assert facts.seconds is not None
        assert facts.link is not None
        if world.learners % here:
            raise UserError(
                f'rank {world.rank}: strategy="auto" is for hosts with as many learners each: this one has {here} of '
                f"{world.learners}. Ask `roundelay advise` with a cluster's file, and name the strategy."
            )
        count = world.learners // here
        return VirtualCluster(
            name=f"{count} hosts of {here} at {facts.link}",
            nodes=(Node(here, count=count, cores=here),),  # not the host's own cores: all hosts are to find the same
            compute=Compute(seconds=facts.seconds),
            links=VirtualLinks(between=link_of(facts.link, bytes_per_second(facts.link))),
        ), "from the seconds and the link given"
    machines = Machines(here)
    if probe is not None:
        seconds = probed(probe, here * processes, module)
        return cluster_of(seconds, machines), f"a gradient takes {seconds:.3g} s here"
    if facts.seconds is not None:
        return cluster_of(facts.seconds, machines), "from the seconds given"
    # a process computes its part of the minibatch by all parameters: as long as the whole by its part of these
    cluster = probed_layers(parameters / processes, facts.frames, machines, processes)
    return cluster, f"linear layers of as many parameters take {cluster.compute.fixed:.3g} s here"


def probed(probe: Probe, processes: int, module: nn.Module) -> float:
    """Return the seconds of one call of the user's gradient, in one of `processes` processes. Gradients, buffers and
    torch's random numbers are afterwards as they were."""

    def step(_: int) -> None:
        probe()

    with _without_trace(module):
        return seconds_of(step, processes)


@contextmanager
def _without_trace(module: nn.Module) -> Iterator[None]:
    """Restore gradients, buffers and torch's random numbers at the end of the `with`."""
    gradients = [(p, p.grad) for p in module.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    for p, _ in gradients:
        p.grad = None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for p, gradient in gradients:
            p.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _momentum(optimizer: Optimizer) -> float:
    group = optimizer.param_groups[0]
    return float(group.get("momentum") or (group.get("betas") or (0.0,))[0])
