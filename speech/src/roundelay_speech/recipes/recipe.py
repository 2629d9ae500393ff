"""Recipes: every option of a run, as frozen dataclasses with defaults; a YAML file names those that differ.

The docstring beneath a field says what it is (`roundelay list options`), here and in the sections of other modules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.muon import Muon
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.bounds import Count, NonNegative, Positive, Whole
from roundelay.core.configure import build, check_values, plain
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
    """Data-parallel strategy, NAME[:TOPOLOGY][,KEY=VALUE...] (`roundelay list strategies`)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy, where they are not written behind its name."""
    learners: int = 1
    """Learners; a run may be resumed with another number."""
    runtime: Literal["procs", "sim"] = "procs"
    """Procs for a process each, sim for a simulation in one process (section cost)."""
    objective: AnyObjective = CrossEntropy()
    minibatch: int | None = None
    """Size of a round over all learners together; each gets its part (256 where neither this nor minibatch_per_learner
    is given)."""
    minibatch_per_learner: int | None = None
    """Size of every learner's minibatch, in place of minibatch."""
    rate: LearnersRate = "auto"
    """Learning rate of learners that each have a minibatch of their own; as-is for the one of the schedule, fastest
    such that a slow learner holds no other back, linear, or gain by the noise of gradients; auto is gain under adpsgd
    and hadpsgd, as-is elsewhere (docs/stability.md)."""
    minibatch_unit: Unit = "frames"
    """Unit of either; so many sequences are the frames that as many have on average."""
    seed: int = 0
    """Seed of starting weights, shuffling and dropout."""
    order: Literal["auto", "shuffle", "blocks"] = "auto"
    """Order of an epoch; blocks needs no memory for each frame, auto takes it from 50 hours on (docs/corpora.md)."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of the network; auto takes bf16 where the processor has it in hardware."""
    clip: Positive | None = None
    """Longest gradient of a learner (Euclidean norm); longer ones are scaled down; null for no limit."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device on which learners compute; cuda for the GPUs of their host (docs/models.md)."""
    threads: Count | None = None
    """Torch threads of each learner; null for the cores of its host shared out evenly."""
    compile: bool = False
    """Compile forward and backward by torch.compile; the first minibatches take long."""
    augment: AugmentConfig = AugmentConfig()
    stragglers: tuple[str, ...] = ()
    """Learners slowed down on purpose, RANK:3x or RANK:+0.4 (seconds)."""
    on_death: Literal["auto", "replace", "go-on", "shrink", "stop"] = "auto"
    """Action when a learner dies; asynchronous strategies replace it (auto), go-on without it, or stop;
    synchronous ones stop (auto), go-on with the mean of the others, or go on from the last checkpoint with one fewer
    (shrink) or as many (replace) (docs/faults.md)."""
    patience_seconds: Positive = 300.0
    """Seconds that a learner waits for another before the run stops and says who waits for whom."""
    keep_checkpoints: Count = 2
    """Checkpoints that stay on disk, beside the best and the one that the running epoch began with."""
    average: Count = 1
    """Epochs, the last ones, over whose ends the mean is the model that a run leaves; 1 for the end of the last alone
    (docs/models.md)."""
    checkpoint_minutes: Positive | None = None
    """Minutes of training after which a checkpoint is written inside an epoch; null for at the end of epochs only."""
    disk_patience: NonNegative = 3600.0
    """Seconds to wait when the disk is full before the run stops; 0 to stop at once."""
    curve_points: Whole = 100
    """Points of curves inside an epoch, at most; 0 for none."""
    record: bool = False
    """Record every event for `roundelay replay` (procs only)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_minibatch()

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
    """Order of the n-gram language model."""
    method: Literal["absolute", "kneser-ney"] = "absolute"
    """Smoothing of the n-gram."""
    discount: float = 0.75
    """Discount of absolute smoothing."""
    cutoffs: tuple[int, ...] = ()
    """Times that n-grams of order 1, 2, ... must occur to be listed."""
    prune: float = 0.0
    """N-grams that matter less to the perplexity than this share are left out; 0 for none."""
    text: tuple[Path, ...] = ()
    """Files with a sentence a line to estimate the n-gram on, beside the training transcripts."""
    join: int = 0
    """Join consecutive lines of the text to at least so many words."""
    transcript_weight: int = 1
    """Times that each training transcript counts."""
    arpa: Path | None = None
    """Language model in an ARPA file, instead of an estimated one; decode.prune applies to it."""
    rescore: Path | None = None
    """Language model of any size to rescore lattices with (ARPA, or a binary file of KenLM); null for none."""
    rescore_order: int = 0
    """Instead, order of an n-gram of the same words and texts to rescore lattices with; 0 for none."""
    rescore_cutoffs: tuple[int, ...] = (1, 1, 2)
    """Decode.cutoffs of the model of decode.rescore_order."""
    vocabulary: Count | Literal["transcripts", "dictionary"] | None = None
    """Words that can be recognised: `transcripts`, those of the training transcripts; `dictionary` (or null), all of
    the lexicon; a number, so many of the most frequent words of the text and those of the transcripts."""
    lexicon: Path | None = None
    """Pronunciation dictionary in CMU's format; null for the corpus's."""
    guess: bool = False
    """Guess pronunciations of words without one from their spelling."""
    splits: tuple[str, ...] = ("dev", "test")
    """Splits to recognise."""
    scales: tuple[float, ...] = SCALES
    """Acoustic scales to try on dev."""
    scale: float | None = None  # None: the best on dev
    """Acoustic scale; null for the best of decode.scales on dev."""
    beam: float = BEAM
    """Width of the search, in scaled nats."""
    max_active: int = MAX_ACTIVE
    """Paths kept for a frame, at most."""
    beams: tuple[float, ...] = ()
    """Widths of the search to try on dev."""
    max_actives: tuple[int, ...] = ()
    """Numbers of paths to try on dev."""
    search_slack: float = 0.02
    """Share of more errors that is accepted for a narrower search."""
    silence_probability: float = 0.5
    """Probability of a pause between two words."""
    word_costs: tuple[float, ...] = ()
    """Costs of a word, in nats, to try on dev."""
    word_cost: float = 0.0
    """Cost of a word, in nats."""
    workers: int = 0
    """Processes; 0 for one a core."""
    nbest: int = 0
    """Best word strings to write."""
    lattice: bool = False
    """Write word lattices."""
    lattice_beam: float = LATTICE_BEAM
    """Distance from the best that a string in a lattice may have, in scaled nats."""
    ctm: bool = False
    """Write times and confidences of words."""

    def __post_init__(self) -> None:
        check_values(self, "decode")
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
    """Name of the experiment."""
    corpus: Path
    """Folder of the prepared corpus (`roundelay prepare` makes it)."""
    alignment: Path | None = None
    """Folder of the alignment (`roundelay align` makes it); null for objectives that need none (docs/objectives.md)."""
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
    """Folder of speakers' transforms and vectors (`roundelay adapt` makes it); null for the folder adaptation beside
    the alignment."""
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
