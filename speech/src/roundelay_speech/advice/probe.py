"""A recipe's model, timed on this machine, and its task."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from roundelay.advice.advise import AdviceTask, MinibatchShare
from roundelay.advice.machines import Machines, cluster_of, seconds_of
from roundelay.core.epochs import EpochPlan
from roundelay.core.minibatch import PER_LEARNER
from roundelay.learner.base import Learner
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay_speech.acoustic import make_job
from roundelay_speech.recipes.recipe import Recipe, load_recipe


def probed(source: str, overrides: Sequence[str], machines: Machines) -> tuple[VirtualCluster, AdviceTask]:
    """Return `probed_recipe` of the recipe of this name or file.

    Raises:
        UserError: as `load_recipe` and `probed_recipe`.
    """
    return probed_recipe(load_recipe(source, overrides), machines)


def probed_recipe(recipe: Recipe, machines: Machines) -> tuple[VirtualCluster, AdviceTask]:
    """Return the machines with the recipe's model, and its task.

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
    """Return seconds of a gradient of one of the plan's minibatches, by as many threads as a learner has there."""
    x = learner.initial()
    gradient = torch.empty_like(x)

    def step(number: int) -> None:
        learner.gradient(x, plan.piece(number % plan.pieces), plan, gradient)
        x.add_(gradient, alpha=-1e-6)

    return seconds_of(step, machines.learners)


def task_of_recipe(recipe: Recipe, learners: int) -> tuple[AdviceTask, Learner]:
    """Return the recipe's task, so many epochs as its schedule has at most, and a learner of it.

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
