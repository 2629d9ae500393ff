"""The demo: the same two learners, one slowed, under a strategy that waits and under one that does not."""

from pathlib import Path

from roundelay.cli import _parse
from roundelay.commands.demo import demo_steps


def test_the_two_trainings_differ_in_nothing_but_the_strategy() -> None:
    steps = [_parse(step) for step in demo_steps(Path("there"))]
    waiting, free = (step for step in steps if hasattr(step, "strategy"))
    differing = {name for name in vars(waiting).keys() - {"parser"} if getattr(waiting, name) != getattr(free, name)}
    assert differing == {"strategy", "exp"}
    assert (waiting.strategy, free.strategy) == ("ssgd", "adpsgd:random-ring")
    assert (waiting.learners, waiting.straggler) == (2, ["1:3x"])


def test_every_step_stays_in_its_folder() -> None:
    for step in demo_steps(Path("there")):
        paths = [word.rpartition("=")[2] for word in step if "/" in word]
        assert paths
        assert all(path.startswith("there/") for path in paths)
