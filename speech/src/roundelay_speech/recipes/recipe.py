"""Recipes: every option of a run, as frozen dataclasses with defaults; a YAML file names those that differ.

`options/explained.yaml` says what each option is (`roundelay list options`), here and in the sections of other modules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.muon import Muon
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.minibatch import PER_LEARNER, TOTAL, MinibatchSize, Unit
from roundelay.core.rates import LearnersRate
from roundelay.learner.objectives import CrossEntropy
from roundelay.runtime.hosts.options import HostOptions
from roundelay.runtime.sim.cluster import load_cluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.schedule import Anneal, Newbob
from roundelay_speech.adapt.config import AdaptConfig
from roundelay_speech.decode.graphs import AnyGraph, HmmGraph
from roundelay_speech.decode.lattice import LATTICE_BEAM
from roundelay_speech.decode.search import BEAM, MAX_ACTIVE, SCALES
from roundelay_speech.hmm.flat_start import AlignConfig
from roundelay_speech.models import DnnConfig, ModelConfig
from roundelay_speech.models.augment import AugmentConfig
from roundelay_speech.objectives import AnyObjective
from roundelay_speech.recipes.init import Init
from roundelay_speech.recipes.known import read_recipe
from roundelay_speech.units import AnyUnits, Phones

LARGE_HOURS = 50.0
"""Training speech from which on `training.order: auto` means blocks: numbers of all frames take each learner 150 MB,
and while they are shuffled twice that."""

MINIBATCH = 256
"""Frames of a round where a recipe does not say."""


@dataclass(frozen=True)
class Training(HostOptions):
    """Learners, strategy and runtime of the training."""

    strategy: str = "sgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    learners: int = 1
    runtime: Literal["procs", "sim"] = "procs"
    objective: AnyObjective = CrossEntropy()
    minibatch: int | None = None
    minibatch_per_learner: int | None = None
    rate: LearnersRate = "auto"
    minibatch_unit: Unit = "frames"
    seed: int = 0
    order: Literal["auto", "shuffle", "blocks"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    clip: float | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int | None = None
    compile: bool = False
    augment: AugmentConfig = AugmentConfig()
    stragglers: tuple[str, ...] = ()
    on_death: Literal["auto", "replace", "go-on", "shrink", "stop"] = "auto"
    patience_seconds: float = 300.0
    keep_checkpoints: int = 2
    average: int = 1
    checkpoint_minutes: float | None = None
    disk_patience: float = 3600.0
    curve_points: int = 100
    record: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_minibatch()
        if self.clip is not None and not self.clip > 0:
            raise UserError(f"training.clip is {self.clip}: give a norm above 0, or null.")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"training.threads is {self.threads}: one is the least, or null.")
        if not self.patience_seconds > 0:
            raise UserError(f"training.patience_seconds is {self.patience_seconds}: give seconds, above 0.")
        if self.keep_checkpoints < 1:
            raise UserError(f"training.keep_checkpoints is {self.keep_checkpoints}: one is the least.")
        if self.average < 1:
            raise UserError(f"training.average is {self.average}: give a number of epochs, 1 for the last alone.")
        if self.checkpoint_minutes is not None and not self.checkpoint_minutes > 0:
            raise UserError(
                f"training.checkpoint_minutes is {self.checkpoint_minutes}: give minutes, above 0, or null."
            )
        if self.curve_points < 0:
            raise UserError(f"training.curve_points is {self.curve_points}: give a number of points, 0 for none.")
        if not self.disk_patience >= 0:
            raise UserError(f"training.disk_patience is {self.disk_patience}: give seconds, 0 or more.")

    def _check_minibatch(self) -> None:
        """Settle the size of a minibatch.

        Raises:
            UserError: it is given twice, or too small.
        """
        if self.minibatch is None and self.minibatch_per_learner is None:
            object.__setattr__(self, "minibatch", MINIBATCH)
        if self.minibatch is not None and self.minibatch_per_learner is not None:
            raise UserError(
                f"{TOTAL} is {self.minibatch}, over all learners, and {PER_LEARNER} is {self.minibatch_per_learner}: "
                "give one of the two."
            )
        size = self.size
        if size.a_round(self.learners) < max(1, self.learners):
            raise UserError(
                f"{size.option} is {size.number} {size.unit} for {self.learners} "
                f"learner{'s' * (self.learners > 1)}: give at least one each."
            )
        if not size.per_learner and self.rate in (
            "auto",
            "fastest",
        ):  # the same there, and as earlier versions have kept it
            object.__setattr__(self, "rate", "as-is")

    @property
    def size(self) -> MinibatchSize:
        """Size of a minibatch, as it is given."""
        if self.minibatch_per_learner is not None:
            return MinibatchSize(self.minibatch_per_learner, self.minibatch_unit, per_learner=True)
        return MinibatchSize(MINIBATCH if self.minibatch is None else self.minibatch, self.minibatch_unit)


@dataclass(frozen=True)
class Decoding:
    """Recognition of words (docs/decoding.md)."""

    graph: AnyGraph = HmmGraph()
    order: int = 2
    method: Literal["absolute", "kneser-ney"] = "absolute"
    discount: float = 0.75
    cutoffs: tuple[int, ...] = ()
    prune: float = 0.0
    text: tuple[Path, ...] = ()
    join: int = 0
    transcript_weight: int = 1
    arpa: Path | None = None
    rescore: Path | None = None
    rescore_order: int = 0
    rescore_cutoffs: tuple[int, ...] = (1, 1, 2)
    vocabulary: int | Literal["transcripts", "dictionary"] | None = None
    lexicon: Path | None = None
    guess: bool = False
    splits: tuple[str, ...] = ("dev", "test")
    scales: tuple[float, ...] = SCALES
    scale: float | None = None  # None: the best on dev
    beam: float = BEAM
    max_active: int = MAX_ACTIVE
    beams: tuple[float, ...] = ()
    max_actives: tuple[int, ...] = ()
    search_slack: float = 0.02
    silence_probability: float = 0.5
    word_costs: tuple[float, ...] = ()
    word_cost: float = 0.0
    workers: int = 0
    nbest: int = 0
    lattice: bool = False
    lattice_beam: float = LATTICE_BEAM
    ctm: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.vocabulary, int) and self.vocabulary < 1:
            raise UserError(
                f"decode.vocabulary is {self.vocabulary}: give transcripts, dictionary, or a number of words, 20000 "
                "for example."
            )
        if self.rescore_order and (self.rescore is not None or self.arpa is not None):
            given = "decode.arpa" if self.rescore is None else "decode.rescore"
            raise UserError(
                f"decode.rescore_order={self.rescore_order} makes a model of the texts, and {given} gives one. Leave "
                "one of the two out; with decode.arpa, decode.rescore=FILE names a second model."
            )

    @property
    def words_of_text(self) -> int | None:
        """Number of words that are taken from the text, beside those of the transcripts; None: all words are those of
        the dictionary."""
        named: dict[object, int | None] = {"transcripts": 0, "dictionary": None}
        return named[self.vocabulary] if isinstance(self.vocabulary, str) else self.vocabulary

    @property
    def rescored(self) -> bool:
        """True if a second language model says which words of a lattice are the best."""
        return self.rescore is not None or self.rescore_order > 0


@dataclass(frozen=True)
class Recipe:
    """A named experiment. `corpus` is made by `roundelay prepare`, `alignment` by `align`, `adaptation` by `adapt`."""

    name: str
    corpus: Path
    alignment: Path | None = None
    align: AlignConfig = AlignConfig()
    model: ModelConfig = DnnConfig()
    training: Training = Training()
    init: Init = Init()
    optimizer: Sgd | Muon | TorchOptimizer = Sgd(momentum=0.9)
    schedule: Newbob | Anneal = Newbob()
    decode: Decoding = Decoding()
    cost: CostModel = CostModel()
    adapt: AdaptConfig = AdaptConfig()
    adaptation: Path | None = None
    units: AnyUnits = Phones()

    @property
    def unaligned(self) -> bool:
        """True if the objective needs no alignment; one that is named all the same is not looked at."""
        return not self.training.objective.aligned

    @property
    def aligned(self) -> Path:
        """The folder of the alignment.

        Raises:
            UserError: the recipe has none.
        """
        if self.alignment is None:
            raise UserError(
                f"the recipe {self.name} has no alignment, and tied states are needed here. Give alignment=DIR, the "
                "folder that `roundelay align` makes; only training.objective=ctc or lfmmi, and decoding what they "
                "trained, need none."
            )
        return self.alignment

    @property
    def adaptation_folder(self) -> Path:
        """The folder of speakers' transforms and vectors."""
        return self.aligned.parent / "adaptation" if self.adaptation is None else self.adaptation


def load_recipe(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe in file `source`, or the packaged one of that name, with `section.key=value` overrides applied.

    Raises:
        UserError: no such recipe, or an option in it is unknown or has a wrong value; names the dotted key.
    """
    mapping = read_recipe(source, overrides)
    _read_cluster(mapping)
    return build(Recipe, mapping)


def complete(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe written by an earlier version, with the options that exist since as that version did it."""
    return plain(build(Recipe, as_it_was(mapping)))  # type: ignore[no-any-return]


def with_order(recipe: Recipe, hours: float) -> Recipe:
    """Return the recipe with the order of an epoch that `auto` means for so much training speech.

    A run keeps this recipe, and so goes on in the order in which it began.
    """
    if recipe.training.order != "auto":
        return recipe
    return replace(recipe, training=replace(recipe.training, order="shuffle" if hours < LARGE_HOURS else "blocks"))


def as_it_was(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return a kept recipe with the options whose defaults are not what earlier versions did: they shuffled every
    corpus, and pair averages had equal weights at the learning rate of one."""
    training, then = mapping.get("training", {}), {"order": "shuffle"}
    if not isinstance(training, dict):
        return mapping
    if str(training.get("strategy", "")).startswith(("adpsgd", "hadpsgd")):
        then["rate"] = "as-is"
    return {**mapping, "training": {**then, **training}}


def _read_cluster(mapping: dict[str, Any]) -> None:
    """Put the virtual cluster in the file that `cost.cluster` names in its place: a run belongs to what it says."""
    cost = mapping.get("cost")
    if isinstance(cost, dict) and isinstance(cost.get("cluster"), str):
        cost["cluster"] = plain(load_cluster(Path(cost["cluster"])))
