"""The demo: one learner alone, two, and two of which one is slowed, with and without waiting."""

from argparse import Namespace
from pathlib import Path

from roundelay.cli import _parse
from roundelay.schedule import Anneal
from roundelay_speech.commands.demo import demo_steps
from roundelay_speech.recipes.recipe import load_recipe


def trainings() -> list[Namespace]:
    return [step for step in (_parse(step) for step in demo_steps(Path("there"))) if hasattr(step, "strategy")]


def differing(a: Namespace, b: Namespace) -> set[str]:
    return {name for name in vars(a).keys() - {"parser"} if getattr(a, name) != getattr(b, name)}


def test_the_two_slowed_differ_in_nothing_but_the_strategy() -> None:
    _, two, waiting, free = trainings()
    assert differing(waiting, free) == {"strategy", "exp"}
    assert (waiting.strategy, free.strategy) == ("ssgd", "adpsgd:random-ring")
    assert (waiting.learners, waiting.straggler) == (2, ["1:3x"])
    assert differing(two, free) == {"straggler", "exp"}


def test_one_alone_has_a_core_and_a_minibatch_as_each_of_two() -> None:
    """They differ in the learning rate, of which each has its own, and two train no fewer epochs before it falls."""
    alone, two, *_ = trainings()
    assert differing(alone, two) == {"strategy", "exp", "learners", "overrides"}
    one, both = (load_recipe("demo", step.overrides) for step in (alone, two))
    assert one.training.threads == both.training.threads == 1
    assert one.training.minibatch_per_learner == both.training.minibatch_per_learner is not None
    keys = {text.partition("=")[0] for text in {*alone.overrides} ^ {*two.overrides}}
    assert keys == {"schedule.learning_rate", "schedule.anneal_from", "schedule.max_epochs"}
    falling = [
        step.schedule.max_epochs - step.schedule.anneal_from
        for step in (one, both)
        if isinstance(step.schedule, Anneal)
    ]
    assert falling == [falling[0]] * 2
    assert one.schedule.max_epochs <= both.schedule.max_epochs


def test_every_step_stays_in_its_folder() -> None:
    for step in demo_steps(Path("there")):
        paths = [word.rpartition("=")[2] for word in step if "/" in word]
        assert paths
        assert all(path.startswith("there/") for path in paths)
