"""Recipes: every option of a run, as frozen dataclasses with defaults; a YAML file names those that differ."""

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
    """Learners, strategy and runtime of the training.

    strategy        name, or name:topology (adpsgd:fixed-ring)
    options         of the strategy
    learners        how many
    runtime         procs: one process each; sim: in this process, on a virtual clock (section `cost`)
    objective       name of the loss that is minimised (docs/models.md); cross-entropy is reported
    minibatch       of a round, over ALL learners: each learner's is this divided by their number (256 where neither
                    this nor the next is given)
    minibatch_per_learner  or of every learner: a round has as many times that as there are learners (Li et al. 2017)
    rate            of L learners, where each has a minibatch of its own: as-is, the learning rate of the schedule;
                    fastest, under adpsgd and hadpsgd so much larger that the model moves as far as that of the fastest
                    alone; linear, so much larger that the model moves by the sum of all gradients; gain, between the
                    two, by the noise of gradients; auto: gain under adpsgd and hadpsgd, else as-is (docs/stability.md)
    minibatch_unit  of either: frames, or sequences, for networks that train on pieces of utterances. So many sequences
                    are the frames that as many pieces have on average
    order           of an epoch: shuffle (all frames), blocks (of some seconds, and what is in some hundred of them), or
                    auto: blocks from 50 hours of training speech on (docs/corpora.md)
    precision       auto: bfloat16 autocast where the processor has it in hardware
    clip            scale every learner's gradient down to this Euclidean norm where it is longer; null: never
    device          cpu; cuda: learners compute on the GPUs of their host (docs/models.md)
    threads         torch threads of each learner; null: the cores of its host shared out evenly (procs only)
    compile         compile the model's forward and backward by torch.compile; the first minibatches take long
    augment         SpecAugment: time_masks, frequency_masks and how wide they are (docs/features.md)
    stragglers      learners made slow on purpose: 1:3x or 1:+0.4 (seconds)
    record          take down what every learner did, in which order, for `roundelay replay` (procs only)
    on_death        what the death of a learner means. Asynchronous strategies: replace (the default), go-on (without
                    it), or stop. Synchronous: stop (the default), go-on (without it, in the mean of the others),
                    or go on from the last checkpoint with one learner fewer (shrink) or as many (replace)
    patience_seconds  how long a learner waits for another before the run stops and says who waits for whom
    keep_checkpoints  the last so many stay on disk, beside the best and the one that the running epoch began with
    average         the model that a run leaves is the mean over the ends of its last so many epochs
    checkpoint_minutes  a checkpoint inside an epoch after so many minutes of training; null: at the end of epochs only
    disk_patience   seconds for which a full disk is waited for before the run stops; 0: it stops at once
    curve_points    points of curves inside an epoch, at most, of loss, learning rate, gradient norm, speed, staleness

    On several hosts (docs/hosts.md):
    host_patience   seconds of silence after which a host counts as dead
    wire            codec by which rows (and gradients of ssgd) go between hosts where the strategy says none: fp32, or
                    bf16, int8, int4 with error feedback; auto: rows that no learner waits for by what the link bears,
                    everything else in fp32
    fragments       an exchange between hosts carries one of so many parts of the row, in turn; auto: as many as make it
                    short on the link there is, where no learner waits, else 1
    encrypt         hide what goes between hosts; without it everything is authenticated all the same
    exchange_share  of the time of a host's busy cores, what exchanges with other hosts that no learner waits for may
                    take; 1: as often as the link allows
    means           way of means over hosts: chain (the bits of one host), gloo or nccl (faster, equal to rounding,
                    unprotected), or auto: nccl between GPUs on a trusted network, else chain
    trusted_network  whoever can reach the network between hosts may read and change what gloo and nccl send
    """

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
    """Recognition of words (docs/decoding.md).

    graph           kind of the decoding graph: what the columns of the log-likelihoods are

    The language model:
    order, method, discount, cutoffs, prune   of the n-gram that is estimated: absolute or kneser-ney
    text            files with a sentence a line, beside the training transcripts; `join` runs consecutive lines
                    together to so many words at least; each transcript counts `transcript_weight` times
    arpa            a given model instead; `prune` applies to it too
    rescore         another model of any size, an ARPA file or a binary one of KenLM: whatever the graph's own model
                    found is rescored with it
    rescore_order   or with an n-gram of this order, made of the same words and texts with other cut-offs, those in
                    `rescore_cutoffs`, and not pruned; 0: none

    The words:
    vocabulary      transcripts: the words of the training transcripts; dictionary, or null: those of the lexicon; a
                    number: so many of the most frequent words of the text, and all of the transcripts
    lexicon         a pronunciation dictionary in CMU's format; null: that of the corpus
    guess           guess pronunciations of words that neither has, from their spelling

    The search:
    scales          acoustic scales tried on dev; `scale` fixes it
    word_costs      costs of a word (nats) tried on dev, at the best scale; empty: `word_cost`
    beams, max_actives   widths of the search tried on dev, at the best scale and cost; empty: `beam`, `max_active`.
                    The narrowest is taken with at most a share `search_slack` more errors than the best
    workers         processes; 0: one a core

    What is written beside the words:
    nbest           the best word strings, so many
    lattice         word lattices, of word strings up to `lattice_beam` worse than the best
    ctm             times and confidences of words
    """

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
    """A named experiment. `corpus` is made by `roundelay prepare`.

    alignment   made by `roundelay align`; null for objectives that need none (docs/objectives.md)
    units       of those: what a transcript is written in (docs/objectives.md)
    adaptation  made by `roundelay adapt` (docs/adaptation.md); null: the folder `adaptation` beside the alignment
    model       name of the network (docs/models.md)
    init        the model that the run starts from (init.py)
    optimizer   name: sgd (with momentum, nesterov, weight_decay), muon (matrices by it, the rest by `others`), or one
                of torch.optim with its `options`
    schedule    rule: newbob or anneal (schedule.py)
    """

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
