"""Recipes, timed for `roundelay advise --probe` and `roundelay train --strategy auto`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from roundelay.advice.advise import AdviceTask, MinibatchShare, advise, choice
from roundelay.advice.machines import Machines, cluster_of, seconds_of
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE
from roundelay.core.minibatch import PER_LEARNER
from roundelay.learner.base import Learner
from roundelay.runtime.base import parse_straggler
from roundelay.runtime.sim.cluster import Handicap, VirtualCluster
from roundelay_speech.acoustic import make_job
from roundelay_speech.recipes.recipe import Recipe, load_recipe, read_kept


def probed(source: str, overrides: Sequence[str], machines: Machines) -> tuple[VirtualCluster, AdviceTask]:
    """Time the recipe named `source`, a name or a file, with overrides: `probed_recipe`.

    Raises:
        UserError: as `load_recipe` and `probed_recipe`.
    """
    return probed_recipe(load_recipe(source, overrides), machines)


def probed_recipe(recipe: Recipe, machines: Machines) -> tuple[VirtualCluster, AdviceTask]:
    """Time the recipe's model on this machine; return a cluster of `machines` like it, and the task.

    Raises:
        UserError: as `make_job`: corpus or alignment are missing.
    """
    task, learner = task_of_recipe(recipe, learners := machines.learners * machines.count)
    seconds = _seconds(learner, EpochPlan(0, learner.examples, task.frames * learners, learners, 0), machines)
    size = recipe.training.size
    if learners > 1 and not size.per_learner:
        whole = EpochPlan(0, learner.examples, task.frames * learners, 1, 0)
        filled = _seconds(learner, whole, machines) / (learners * seconds)
        option = f"training.minibatch=null {PER_LEARNER}={size.number}"
        task = replace(task, share=MinibatchShare(task.frames, task.frames * learners, option, filled))
    return cluster_of(seconds, machines), task


def _seconds(learner: Learner, plan: EpochPlan, machines: Machines) -> float:
    """Return the seconds of a gradient of one of the plan's minibatches, with a learner's threads on `machines`."""
    x = learner.initial()
    gradient = torch.empty_like(x)

    def step(number: int) -> None:
        learner.gradient(x, plan.piece(number % plan.pieces), plan, gradient)
        x.add_(gradient, alpha=-1e-6)

    return seconds_of(step, machines.learners)


def task_of_recipe(recipe: Recipe, learners: int) -> tuple[AdviceTask, Learner]:
    """Return the recipe's task, with the most epochs that its schedule allows, and a learner of it.

    Raises:
        UserError: as `make_job`.
    """
    job = make_job(recipe)
    learner = job.cluster.task.build()
    task = AdviceTask(
        parameters=learner.parameters,
        examples=float(learner.examples * recipe.schedule.max_epochs),
        frames=max(1, job.minibatch.frames(learners, learner.examples, learner.sequences) // learners),
        momentum=getattr(recipe.optimizer, "momentum", 0.9),
        rate=recipe.schedule.learning_rate,
        epoch=float(learner.examples),
    )
    return task, learner


# --strategy auto ------------------------------------------------------------------------------------------------------


def chosen_strategy(source: str, overrides: Sequence[str], exp: Path) -> tuple[str, str]:
    """Choose the strategy for `auto` for a recipe on this host; return it and the reason. Several learners get a
    strategy for several, even if one alone would be faster: the reason says so then. An existing run in `exp` keeps the
    strategy in its recipe.

    Args:
        overrides: overrides of the recipe, without a strategy.

    Raises:
        UserError: as `load_recipe`, `make_job`.
    """
    if (exp / RECIPE).is_file():
        kept = read_kept(exp).get("training", {}).get("strategy", "sgd")
        return str(kept), f"the run in {exp} goes on by it"
    recipe = load_recipe(source, [*overrides, "training.strategy=ssgd", "training.options={}"])
    advice = advise(*_facts(recipe))
    chosen, why = choice(advice.ranked, advice.learners, advice.cluster, "; `roundelay advise` prints all")
    share = "" if advice.task.share is None else advice.task.share.said().removesuffix(".")
    return chosen.candidate.strategy, f"{why}. {share}" if share else why


def refuse_several_hosts() -> None:
    """Raise a UserError if this host is one of several, which must agree on a strategy before they start."""
    raise UserError(
        "--strategy auto is for one host: several must be given the same strategy. Ask once, with `roundelay advise "
        "--probe RECIPE --hosts ADDRESS:PORT ...`, and give all of them what it says."
    )


def _facts(recipe: Recipe) -> tuple[VirtualCluster, AdviceTask]:
    """Return the cluster of the recipe's learners, on this machine or virtual, and the task."""
    learners = recipe.training.learners
    slow = [parse_straggler(text) for text in recipe.training.stragglers]
    if recipe.training.runtime == "sim":
        task, _ = task_of_recipe(recipe, learners)
        cluster = replace(recipe.cost, sequences_per_gradient=None).virtual(learners)
    else:
        cluster, task = probed_recipe(recipe, Machines(learners))
    handicaps = tuple(Handicap(one.rank, one.factor, one.seconds) for one in slow)
    return replace(cluster, stragglers=(*cluster.stragglers, *handicaps)), task
