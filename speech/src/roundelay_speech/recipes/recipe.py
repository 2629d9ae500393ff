"""Recipes: every option of a run, as frozen dataclasses with defaults; a YAML file names those that differ.

The docstring beneath a field is its meaning (`roundelay list options`), here and in the sections of other modules.

A recipe that a run directory keeps is read again from any working directory, and where run and data have moved.
`recipe.yaml` holds paths as they were given. `place.json` beside it (see run_directory) says where the run directory
and the working directory were then. A path is looked for, in this order, where a relative one leads

1. seen from the run directory, as it was then: run and data were moved, or copied, together;
2. in the working directory of then: the command runs elsewhere, or the run alone was moved;

and an absolute one the other way round. A run of an earlier version has no place.json: its relative paths are looked
for in the working directory, then in the folders above the run directory.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.muon import Muon
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.bounds import Count, NonNegative, Positive, Whole
from roundelay.core.configure import build, check_values, plain, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE, check_run
from roundelay.core.minibatch import PER_LEARNER, TOTAL, MinibatchSize, Unit
from roundelay.core.plugins import OrPlugins
from roundelay.core.rates import LearnersRate
from roundelay.learner.objectives import CrossEntropy
from roundelay.run_directory import Origin, read_origin
from roundelay.runtime.hosts.options import HostOptions
from roundelay.runtime.sim.cluster import load_cluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.schedule import Anneal, Newbob
from roundelay_speech.adapt.config import AdaptConfig
from roundelay_speech.decode.graphs import AnyGraph, HmmGraph
from roundelay_speech.decode.lattice import LATTICE_BEAM
from roundelay_speech.decode.search import BEAM, MAX_ACTIVE, SCALES
from roundelay_speech.hmm.flat_start import AlignConfig
from roundelay_speech.models import AnyModel, DnnConfig
from roundelay_speech.models.frontend import AugmentConfig
from roundelay_speech.objectives import AnyObjective
from roundelay_speech.recipes.known import apply_overrides, read_recipe
from roundelay_speech.units import AnyUnits, Phones


@dataclass(frozen=True)
class FirstPhase:
    """A first phase: one learner trains by `sgd` at a fixed rate. Runs of a comparison share it."""

    epochs: Whole = 0
    """First phase that runs of a comparison share, epochs of sgd on one learner; 0 for none."""
    learning_rate: NonNegative | None = None
    """Its learning rate, which is fixed; null for schedule.learning_rate."""
    minibatch: Count | None = None
    """Its minibatch; null for that of one learner of the run."""

    def __post_init__(self) -> None:
        check_values(self, "init.first")


@dataclass(frozen=True)
class Init:
    """The model that a run starts from; with neither `model` nor epochs of `first`, the network's own initial model,
    drawn by training.seed."""

    model: Path | None = None
    """Model that the run starts from (`train --init`), a run directory, a packed model, a model.safetensors or a
    checkpoint; null for one of its own."""
    which: Literal["final", "best"] = "final"
    """Model taken of a run directory, its final one or its best checkpoint so far."""
    output: Literal["keep", "new"] = "keep"
    """Keep the output layer of init.model, which needs the same tied states, or draw a new one."""
    first: FirstPhase = FirstPhase()

    def __post_init__(self) -> None:
        if self.model is not None and self.first.epochs:
            first = f"init.first.epochs is {self.first.epochs}"
            raise UserError(f"init.model is {self.model}, and {first}: a run starts from one of them.")


LARGE_HOURS = 50.0
"""Hours of training speech from which on `training.order: auto` means blocks: the numbers of all frames would take each
learner 150 MB, and twice that while they are shuffled."""

MINIBATCH = 256
"""Frames of a round by default."""


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
    objective: Annotated[AnyObjective, OrPlugins("objectives")] = CrossEntropy()
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
        """Set the size of a minibatch to its default unless it is given.

        Raises:
            UserError: the size is given twice, or too small.
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
        """Size of a minibatch, in the unit and form given."""
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
        """Number of words taken from the text, besides those of the transcripts; None: all words of the dictionary."""
        named: dict[object, int | None] = {"transcripts": 0, "dictionary": None}
        return named[self.vocabulary] if isinstance(self.vocabulary, str) else self.vocabulary

    @property
    def rescored(self) -> bool:
        """True if a second language model chooses the best words of a lattice."""
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
    model: AnyModel = DnnConfig()
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
        """True if the objective needs no alignment; one that is named is then ignored."""
        return not self.training.objective.aligned

    @property
    def aligned(self) -> Path:
        """The folder of the alignment.

        Raises:
            UserError: the recipe names no alignment.
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
    """Complete a recipe written by an earlier version: newer options get the values that mean what that version did."""
    return plain(build(Recipe, as_it_was(mapping)))  # type: ignore[no-any-return]


def with_order(recipe: Recipe, hours: float) -> Recipe:
    """Return the recipe with `auto` replaced by the order of an epoch for so many hours of training speech.

    A run keeps this recipe, and so goes on in the order in which it began.
    """
    if recipe.training.order != "auto":
        return recipe
    return replace(recipe, training=replace(recipe.training, order="shuffle" if hours < LARGE_HOURS else "blocks"))


def as_it_was(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return a kept recipe with explicit values for options whose defaults have changed: earlier versions shuffled
    every corpus, and pair averages had equal weights at the learning rate of one learner."""
    training, then = mapping.get("training", {}), {"order": "shuffle"}
    if not isinstance(training, dict):
        return mapping
    if str(training.get("strategy", "")).startswith(("adpsgd", "hadpsgd")):
        then["rate"] = "as-is"
    return {**mapping, "training": {**then, **training}}


def _read_cluster(mapping: dict[str, Any]) -> None:
    """Replace the file that `cost.cluster` names by its content, the virtual cluster, to which a run belongs."""
    cost = mapping.get("cost")
    if isinstance(cost, dict) and isinstance(cost.get("cluster"), str):
        cost["cluster"] = plain(load_cluster(Path(cost["cluster"])))


NEEDED = ("corpus", "alignment")
_OTHERS = ("init.model", "decode.arpa", "decode.rescore", "decode.lexicon", "decode.graph.units", "decode.text")


def kept_recipe(exp: Path, overrides: Sequence[str] = (), corpus: Path | None = None) -> Recipe:
    """Return the recipe of the run in `exp`, with paths made valid from the present working directory, as in overrides.

    Args:
        corpus: used if the run's own is not found.

    Raises:
        UserError: `exp` is no run directory; its corpus or alignment is not found (names all places searched); an
            override is invalid.
    """
    mapping = read_kept(exp)
    try:
        unaligned = build(Recipe, mapping).unaligned  # before overrides, so that an error is known to be the file's
    except UserError as error:
        raise UserError(f"{exp / RECIPE}: {error}") from None
    origin = read_origin(exp)
    for holder, key in _paths(mapping):
        instead = corpus if key == "corpus" else None
        needed = key in NEEDED and not (key == "alignment" and unaligned)
        holder[key] = str(_found(exp, origin, Path(str(holder[key])), key, instead, needed=needed))
    apply_overrides(mapping, overrides)
    return build(Recipe, mapping)


def read_kept(exp: Path) -> dict[str, Any]:
    """Return the mapping in a run's recipe.yaml, unchanged.

    Raises:
        UserError: `exp` is no run directory.
    """
    check_run(exp)
    return as_it_was(read_yaml(exp / RECIPE))


def with_kept_order(recipe: Recipe, exp: Path) -> Recipe:
    """Return the recipe with the epoch order of the run in `exp`, if it leaves the order to the corpus, so that the two
    can be compared without reading the corpus.

    Raises:
        UserError: `exp` is no run directory.
    """
    if recipe.training.order != "auto":
        return recipe
    order = as_it_was(read_kept(exp))["training"]["order"]
    return replace(recipe, training=replace(recipe.training, order=order))


def completed(mapping: dict[str, Any], exp: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return a kept recipe with all present options, and with the paths of `asked` if they lead to the same places."""
    whole, origin = complete(mapping), read_origin(exp)
    given = {key: holder[key] for holder, key in _paths(asked)}
    for holder, key in _paths(whole):
        if origin is not None and key in given and holder[key] is not None:
            here = _candidates(exp, origin, Path(holder[key]))
            wanted = os.path.realpath(os.path.expanduser(given[key]))
            same = next((path for path in here if os.path.realpath(path) == wanted), None)
            # The same words may mean another place by now, seen from another folder.
            holder[key] = given[key] if same is not None else str(_seen_from_here(here[0]))
    return whole


def _paths(mapping: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield (mapping or list, key or position) of every path in a recipe."""
    for where in (*NEEDED, *_OTHERS):
        *sections, key = where.split(".")
        holder: Any = mapping
        for section in sections:
            holder = holder.get(section) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            yield holder, key
        elif isinstance(holder, dict) and isinstance(holder.get(key), list | tuple):
            holder[key] = list(holder[key])
            yield from ((holder[key], i) for i in range(len(holder[key])))


def _candidates(exp: Path, origin: Origin | None, given: Path) -> list[Path]:
    """Return the places where a path of a kept recipe may be, the likeliest first."""
    given = given.expanduser()
    if origin is None:
        if given.is_absolute():
            return [given]
        return [given, *(above / given for above in Path(os.path.realpath(exp)).parents)]
    absolute = origin.working_directory / given
    moved = Path(os.path.normpath(Path(os.path.realpath(exp)) / os.path.relpath(absolute, origin.run)))
    return [absolute, moved] if given.is_absolute() else [moved, absolute]


def _found(exp: Path, origin: Origin | None, given: Path, key: object, instead: Path | None, *, needed: bool) -> Path:
    candidates = list(dict.fromkeys(_candidates(exp, origin, given)))
    there = next((path for path in candidates if path.exists()), None)
    if there is None and instead is not None:
        return instead
    if there is None and needed:
        looked = " nor ".join(str(path) for path in candidates[:3])
        raise UserError(
            f"{exp}: its {key}, `{given}` in its recipe, is not found: neither {looked} is there. Run and {key} can be "
            f"moved together; if only one was, write the {key}'s place into {exp / RECIPE}"
            f"{', or decode with --corpus DIR' if key == 'corpus' else ''}."
        )
    path = there or candidates[0]
    return given if os.path.realpath(given.expanduser()) == os.path.realpath(path) else _seen_from_here(path)


def _seen_from_here(path: Path) -> Path:
    relative = os.path.relpath(path)
    return path if relative.startswith(os.path.join(os.pardir, os.pardir)) else Path(relative)
