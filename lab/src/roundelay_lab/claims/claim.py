"""A claim: citation, experiment, and the rule that makes a verdict of the results, in one file.

No torch is needed to read one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import parse_yaml
from roundelay.core.strategy_text import did_you_mean
from roundelay_lab.claims.experiment import AnyExperiment, Mixing, Regime, Scenarios, Trainings

Selection = Mapping[str, Any]
"""A selection of a table's rows by their keys: for each key one value, or a list of values."""


@dataclass(frozen=True)
class Citation:
    """A citation: a paper, the place in it, and its statement there in our words."""

    paper: str
    place: str
    says: str


@dataclass(frozen=True)
class Check:
    """A bound on a column of the table of results.

    says      the bound in words
    column    whose interval over seeds is taken, configuration by configuration
    rows      configurations that the check is about
    over      selects the one row of the same seed by which each is divided
    same      keys, besides the seed, in which that row equals the divided one
    take      every: each configuration keeps the bound; any: one at least; median: the middle one
    at_most, at_least   the bound
    """

    says: str
    column: str
    rows: Selection
    over: Selection | None = None
    same: tuple[str, ...] = ()
    take: Literal["every", "any", "median"] = "every"
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise UserError(f"check {self.says!r}: give one of at_most and at_least.")


@dataclass(frozen=True)
class Rule:
    """A rule from checks to a verdict: `open` if one of the checks `open` holds: then the experiment cannot tell. Else
    `shown` if all checks `shown` hold, else `refuted` if one of the checks `refuted` holds, else `not shown` if one of
    `shown` fails, else open."""

    shown: tuple[Check, ...]
    refuted: tuple[Check, ...]
    open: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Landing:
    """The spread that a rerun must keep to: the mean over seeds of `column`, in every configuration, differs from that
    of the evidence by at most a share `within` of it. Two values above `broken` are equally bad, and count as equal."""

    column: str
    within: float
    broken: float | None = None


@dataclass(frozen=True)
class Figure:
    """A chart of the table: `y` over `x`, a line for each combination of the keys `lines`; `y` over the row that `over`
    selects where given, as in a check."""

    x: str
    y: str
    lines: tuple[str, ...]
    rows: Selection = field(default_factory=dict)
    over: Selection | None = None
    same: tuple[str, ...] = ()
    title: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, with its experiment and the rule of its verdict.

    known   facts known before the experiment was run
    fixed   before or after: when the bounds of the rule were written, relative to the table
    regime  measurement of its minibatches against the noise of gradients
    open    the work that would settle a claim that cannot be settled here; then nothing else need be given
    limits  cases that a verdict does not cover
    """

    number: int
    title: str
    citation: Citation
    experiment: AnyExperiment | None = None
    rule: Rule | None = None
    landing: tuple[Landing, ...] = ()
    figure: Figure | None = None
    regime: Regime | None = None
    known: str = ""
    fixed: Literal["before", "after"] = "before"
    open: str = ""
    limits: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if (self.experiment is None) != (self.rule is None) or (self.experiment is None and not self.open):
            raise UserError(f"claim {self.name}: give an experiment and a rule, or say in `open` what it would take.")
        if self.experiment is not None and not self.landing:
            raise UserError(f"claim {self.name}: say in `landing` how near a rerun must come.")
        if self.regime is not None and not isinstance(self.experiment, Trainings):
            raise UserError(f"claim {self.name}: only trainings have a regime.")

    def with_seeds(self, first: int) -> "Claim":
        """Return the claim with as many other seeds, counted from `first`; if values are tuned, `first` tunes, and the
        seeds after it judge.

        Raises:
            UserError: the claim's experiment has no seeds.
        """
        match self.experiment:
            case Trainings() as experiment:
                overrides = (*experiment.overrides, f"training.seed={first}")
                return replace(self, experiment=replace(experiment, overrides=overrides))
            case Scenarios() | Mixing() as experiment:
                seeds = tuple(range(first, first + len(experiment.seeds)))
                return replace(self, experiment=replace(experiment, seeds=seeds))
        raise UserError(f"claim {self.name} is of printed numbers, which have no seeds; leave --first-seed out.")

    @property
    def command(self) -> str:
        """Command line that runs the claim's experiment."""
        return f"roundelay claims run {self.name}{self._corpus}"

    @property
    def regime_command(self) -> str:
        """Command line that measures the claim's regime."""
        return f"roundelay claims regime {self.name}{self._corpus}"

    @property
    def _corpus(self) -> str:
        return f" {self.experiment.wants}" if isinstance(self.experiment, Trainings) else ""

    @property
    def definition(self) -> str:
        """Fingerprint of the experiment: evidence of another experiment does not count."""
        experiment = plain(self.experiment)
        if experiment and not experiment.get("processes_up_to", True):
            del experiment["processes_up_to"]  # of later date than evidence without it
        return _fingerprint(experiment)

    @property
    def regime_definition(self) -> str:
        """Fingerprint of the runs that measure the regime."""
        assert isinstance(self.experiment, Trainings)
        found = {key: value for key, value in plain(self.regime).items() if key != "says"}
        return _fingerprint([self.experiment.recipe, self.experiment.overrides, found])

    @property
    def bounds(self) -> str:
        """Fingerprint of the rule without its wording; evidence records the one under which it was measured."""
        groups = (self.rule.shown, self.rule.refuted, self.rule.open) if self.rule else ()
        return _fingerprint([[{k: v for k, v in plain(one).items() if k != "says"} for one in g] for g in groups])


def _fingerprint(what: object) -> str:
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_claims() -> list[Claim]:
    """Return all claims that come with the package, by number."""
    files = (Path(__file__).parent / "catalogue").glob("*.yaml")
    claims = [read_claim(file.stem, file.read_text(encoding="utf-8")) for file in files]
    return sorted(claims, key=lambda claim: (claim.number, claim.name))


def find_claim(name: str) -> Claim:
    """Return the claim of that name or number.

    Raises:
        UserError: there is no such claim; names the nearest.
    """
    claims = load_claims()
    for claim in claims:
        if name in (claim.name, str(claim.number)):
            return claim
    raise UserError(
        f"there is no claim {name!r}.{did_you_mean(name, [c.name for c in claims])} `roundelay claims` lists all."
    )


def read_claim(name: str, text: str) -> Claim:
    """Return the claim in a file's text.

    Raises:
        UserError: not YAML, or not a claim; names the dotted key.
    """
    try:
        mapping = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"claim {name}: not valid YAML: {error}") from error
    if not isinstance(mapping, dict):
        raise UserError(f"claim {name}: a claim is a mapping of sections.")
    return build(Claim, {**mapping, "name": name})
