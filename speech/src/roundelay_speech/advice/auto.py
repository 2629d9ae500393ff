"""`--strategy auto`: the strategy of a training that is about to begin."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from roundelay.advice.advise import AdviceTask, advise, choice
from roundelay.advice.machines import Machines
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE
from roundelay.runtime.base import parse_straggler
from roundelay.runtime.sim.cluster import Handicap, VirtualCluster
from roundelay_speech.advice.probe import probed_recipe, task_of_recipe
from roundelay_speech.recipes.kept import read_kept
from roundelay_speech.recipes.recipe import Recipe, load_recipe


def chosen_strategy(source: str, overrides: Sequence[str], exp: Path) -> tuple[str, str]:
    """Return the strategy that `auto` means for a recipe on this host, and why. Several learners have one for several,
    also where one alone would be first: the reason says so then.

    A run that is there goes on by its own: what was chosen is in its recipe.

    Args:
        overrides: of the recipe, without a strategy.

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
    """Raise a UserError: hosts agree on a strategy before they start."""
    raise UserError(
        "--strategy auto is for one host: several must be given the same strategy. Ask once, with `roundelay advise "
        "--probe RECIPE --hosts ADDRESS:PORT ...`, and give all of them what it says."
    )


def _facts(recipe: Recipe) -> tuple[VirtualCluster, AdviceTask]:
    """Return the learners of the recipe, as they will be: this machine's, or those of its virtual cluster."""
    learners = recipe.training.learners
    slow = [parse_straggler(text) for text in recipe.training.stragglers]
    if recipe.training.runtime == "sim":
        task, _ = task_of_recipe(recipe, learners)
        cluster = replace(recipe.cost, sequences_per_gradient=None).virtual(learners)
    else:
        cluster, task = probed_recipe(recipe, Machines(learners))
    handicaps = tuple(Handicap(one.rank, one.factor, one.seconds) for one in slow)
    return replace(cluster, stragglers=(*cluster.stragglers, *handicaps)), task
