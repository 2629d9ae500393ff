"""The runs to compare: one learner and every strategy with every number of learners, under every seed.

FOLDER/<label>-<learners>[-straggler]-seed<k> is a run directory like any other: `train`, `decode` and `report` work on
it. Its name depends on the cell alone, so that a grid that grew finds what is there.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.acoustic import parse_straggler
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.recipes.recipe import Recipe, load_recipe
from roundelay.report.series import configuration_name
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy
from roundelay.strategies.sgd import SerialSgd

OURS = ("strategy", "options", "learners", "seed", "stragglers")  # of section `training`: the grid sets them


@dataclass(frozen=True)
class Cell:
    """One training of the grid."""

    exp: Path
    strategy: Strategy
    learners: int
    stragglers: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        """Name without the seed, as the report calls it."""
        return configuration_name(self.strategy.label, self.learners, self.stragglers)

    def recipe(self, base: Recipe) -> Recipe:
        """The recipe `base` changed for this cell; of a virtual cluster its first learners take part.

        Raises:
            UserError: the recipe, or its virtual cluster, does not allow so many learners.
        """
        training = dataclasses.replace(
            base.training,
            strategy=self.strategy.name,
            options=plain(self.strategy),
            learners=self.learners,
            seed=self.seed,
            stragglers=self.stragglers,
        )
        cost = base.cost
        if cost.cluster is not None and training.runtime == "sim":
            cost = dataclasses.replace(cost, cluster=cost.cluster.first(self.learners))
        return dataclasses.replace(base, training=training, cost=cost)


@dataclass(frozen=True)
class Grid:
    """`cells` are in the order they are trained, seed by seed, so that a grid cut short still compares."""

    base: Recipe
    folder: Path
    cells: tuple[Cell, ...]

    @property
    def about_time(self) -> str:
        """Text that says which seconds are meant; empty where they are real."""
        if self.base.training.runtime != "sim":
            return ""
        cost = self.base.cost
        if cost.cluster is not None:
            return f"; virtual seconds of cluster {cost.cluster.name!r}"
        return f"; virtual seconds, {cost.gradient:g} for a gradient of {cost.gradient_size}"

    @property
    def about_minibatch(self) -> str:
        """Text that says of what size minibatches are, and whose."""
        size = self.base.training.size
        whose = "for every learner" if size.per_learner else "a round, over all learners"
        return f"{size.number:,} {size.unit} {whose}"


def plan(
    source: str,
    overrides: Sequence[str],
    strategies: Sequence[str],
    learners: Sequence[int],
    seeds: int,
    stragglers: Sequence[str] = (),
    folder: Path | None = None,
) -> Grid:
    """The grid over a recipe. One learner stands for the baseline, `sgd`, which is always in it.

    In the simulator a gradient costs in proportion to its frames, unless the recipe says for how many frames
    `cost.gradient` is: one learner's minibatch then.

    Raises:
        UserError: no such recipe, strategy or option; an override of what the grid sets; numbers that are no grid.
    """
    if taken := [text for text in overrides if text.partition("=")[0] in {f"training.{key}" for key in OURS}]:
        raise UserError(
            f"override {taken[0]!r}: a comparison sets it itself; use --strategies, --learners, --seeds or --straggler."
        )
    if seeds < 1 or not learners or min(learners) < 1:
        raise UserError("a comparison needs at least one seed, and one learner or more in every cell.")
    for text in stragglers:
        parse_straggler(text)
    base = load_recipe(source, overrides)
    if base.training.runtime == "sim":
        base = dataclasses.replace(base, cost=base.cost.per_minibatch(base.training.size))
    where = folder if folder is not None else Path("exp") / base.name / "compare"
    chosen: list[Strategy] = []
    for strategy in map(make_strategy, strategies):
        if strategy not in chosen and not isinstance(strategy, SerialSgd):
            chosen.append(strategy)
    if not chosen:
        raise UserError("give --strategies, for example --strategies ssgd adpsgd:random-ring.")
    variants = [(), tuple(stragglers)] if stragglers else [()]
    cells = []
    for seed in range(base.training.seed, base.training.seed + seeds):
        cells.append(_cell(where, SerialSgd(), 1, (), seed))
        for count in dict.fromkeys(n for n in learners if n > 1):
            cells += [_cell(where, s, count, slow, seed) for s in chosen for slow in variants]
    return Grid(base, where, tuple(cells))


def parse_learners(text: str, option: str = "--learners") -> list[int]:
    """`1,4` is one and four.

    Raises:
        UserError: anything but whole numbers with commas.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: write numbers with commas, for example 1,4.") from None


def _cell(folder: Path, strategy: Strategy, learners: int, stragglers: tuple[str, ...], seed: int) -> Cell:
    name = f"{directory_label(strategy)}-{learners}{'-straggler' * bool(stragglers)}-seed{seed}"
    return Cell(folder / name, strategy, learners, stragglers, seed)


def directory_label(strategy: Strategy) -> str:
    """A strategy's label as part of a file name, followed by options it was given that the label does not name.

    It depends on the strategy alone, not on what else is compared, so that a directory is found again.
    """
    words, usual = strategy.label.split(), plain(make_strategy(strategy.name))
    parts = [strategy.label]
    for option, value in plain(strategy).items():
        told = option in words or (isinstance(value, str) and value in words)
        if value != usual[option] and not told:
            parts.append(f"{option} {value}")
    return re.sub(r"[^A-Za-z0-9._]+", "-", " ".join(parts)).strip("-")
