"""An acoustic recipe as a job, and its model on disk.

Legend: P parameters, S tied states.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from roundelay.core.checksums import write_checked
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, write_text
from roundelay.core.flat import load as load_flat
from roundelay.job import AfterDeath, Job
from roundelay.learner.module import ModuleLearner, autocast_pays
from roundelay.runtime.base import Cluster, Runtime, Straggler, parse_straggler
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.options import AUTO
from roundelay.runtime.hosts.terms import HostTerms, check_hosts, check_may_be_recorded, check_options
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths, OnDeath, check_may_go_on
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy, parse_strategy
from roundelay.strategies.base import Strategy
from roundelay.strategies.hadpsgd import HAdPsgd
from roundelay_speech.acoustic_task import HELD_OUT, TRAIN, AcousticTask, Units
from roundelay_speech.data.problems import counted, listing
from roundelay_speech.hmm.alignment import SUMMARY, require_summary
from roundelay_speech.kaldi_io.tables import symbol_table
from roundelay_speech.model_input import ModelInput
from roundelay_speech.models import AcousticNetwork
from roundelay_speech.objectives import LfMmi
from roundelay_speech.prepared import load_corpus, read_summary
from roundelay_speech.recipes.recipe import Recipe, Training, complete, completed, with_order
from roundelay_speech.starting import beginning_of
from roundelay_speech.trained import MODEL_META, UNITS, TrainedSizes
from roundelay_speech.unit_labels import units_of
from roundelay_speech.units import Chain

TRACE = "trace"


def _on_death(wanted: str, strategy: Strategy) -> str:
    """Return the policy that `training.on_death` stands for under a strategy.

    Raises:
        UserError: the strategy does not allow that policy.
    """
    synchronous = strategy.traits.synchronous
    possible = ("stop", "go-on", "shrink", "replace") if synchronous else ("replace", "go-on", "stop")
    if wanted not in ("auto", *possible):
        raise UserError(
            f"training.on_death is {wanted!r}: under {strategy.label} the others go on anyway. Choose one of "
            f"{', '.join(possible)}."
        )
    if wanted == "go-on":
        check_may_go_on(strategy)
    return possible[0] if wanted == "auto" else wanted


def _several_hosts(recipe: Recipe, place: HostPlace, strategy: Strategy) -> Strategy:
    """Return the strategy on several hosts: nodes are hosts, unless the recipe says how large they are.

    Raises:
        UserError: the strategy cannot be trained on these hosts.
    """
    training = recipe.training
    if training.runtime != "procs":
        raise UserError(f"training.runtime is {training.runtime}: hosts train together on procs. Start it on one host.")
    check_hosts(strategy, training.on_death)
    if training.record:
        check_may_be_recorded(strategy, training, training.device == "cuda")
    check_options(strategy, training)
    if recipe.optimizer.by_parameters and training.fragments not in (AUTO, 1):
        raise UserError(
            f"training.fragments is {training.fragments}, and optimizer.name is {recipe.optimizer.name}, which updates "
            "matrices as a whole: give 1, or an elementwise optimizer."
        )
    if isinstance(strategy, HAdPsgd):
        chosen = "node_size" in {**training.options, **parse_strategy(training.strategy)[1]}
        strategy = strategy.on_host(place.ranks, chosen)
    return strategy


def renumbered(stragglers: Sequence[str], former: Sequence[int]) -> list[str]:
    """Return the stragglers among the learners that are left, with their new ranks; `former` has their old ranks."""
    rests = {parse_straggler(text).rank: text.partition(":")[2] for text in stragglers}
    return [f"{rank}:{rests[one]}" for rank, one in enumerate(former) if one in rests]


def make_job(recipe: Recipe, exp: Path | None = None, place: HostPlace | None = None) -> Job:
    """Return the job that a recipe describes. A trace, if it is to be recorded, goes into the run directory `exp`;
    `place` is that of this host among several.

    Raises:
        UserError: a part that the recipe names is missing, or two do not fit together.
    """
    corpus = read_summary(recipe.corpus)
    recipe = with_order(recipe, corpus.splits.get(TRAIN, {}).get("hours", 0.0))
    training = recipe.training
    task = _task(recipe)
    stragglers, shared = _stragglers(training), not training.size.per_learner
    if training.record and training.runtime == "sim":
        raise UserError("training.record is for the procs runtime; a simulation repeats itself anyway.")
    strategy = _strategy(recipe, place)
    on_death = _on_death(training.on_death, strategy)
    cluster = Cluster(
        strategy, task, recipe.optimizer, training.learners, training.seed, stragglers, shared, training.rate
    )

    def make_runtime(cluster: Cluster) -> Runtime:
        if training.runtime == "sim":
            return SimRuntime(cluster, recipe.cost, goes_on=on_death == "go-on")
        if place is not None and not place.alone:
            return MultiHostRuntime(cluster, place, make_terms(recipe, strategy, exp), exp)
        deaths = Deaths(learners_deaths(on_death))
        return ProcsRuntime(cluster, training.patience_seconds, training.threads, _trace(recipe, exp), deaths)

    def with_learners(learners: int) -> Job:
        kept = tuple(text for text in training.stragglers if parse_straggler(text).rank < learners)
        changed = dataclasses.replace(training, learners=learners, stragglers=kept)
        return make_job(dataclasses.replace(recipe, training=changed), exp, place)

    return Job(
        cluster=cluster,
        make_runtime=make_runtime,
        runtime_name=training.runtime,
        minibatch=training.size,
        schedule=recipe.schedule,
        corpus=corpus.name,
        held_out=HELD_OUT,
        final_splits=tuple(split for split in corpus.splits if split != TRAIN),
        recipe=plain(recipe),
        save_model=lambda x, path: save_model(task, x, path),
        begin=beginning_of(recipe, exp, make_job),
        complete=complete if exp is None else lambda old: completed(old, exp, plain(recipe)),
        with_learners=with_learners,
        after_death=_after_death(on_death, strategy),
        keep_checkpoints=training.keep_checkpoints,
        average=training.average,
        disk_patience=training.disk_patience,
        curve_points=training.curve_points,
        checkpoint_seconds=math.inf if training.checkpoint_minutes is None else 60 * training.checkpoint_minutes,
        remarks=partial(_remarks, task),
    )


def _remarks(task: AcousticTask) -> tuple[str, ...]:
    """Return sentences on utterances that are not trained on."""
    targets = task.targets() if task.units is not None else None
    if not isinstance(targets, Units) or not targets.left_out:
        return ()
    some = counted(len(targets.left_out), "utterance")
    return (f"{some} left out:\n{listing([one.reason for one in targets.left_out])}",)


def _task(recipe: Recipe) -> AcousticTask:
    """Return the task of a recipe, whose training order must be given.

    Raises:
        UserError: there is no such device, or no alignment; objective, model and minibatch do not fit together.
    """
    training = recipe.training
    _check_objective(recipe)
    if not recipe.unaligned and not (recipe.aligned / SUMMARY).is_file():
        require_summary(recipe.aligned)  # says so before anything is begun
    return AcousticTask(
        recipe.corpus,
        None if recipe.unaligned else recipe.aligned,
        recipe.model,
        training.seed,
        _autocast(training),
        training.clip,
        training.device,
        training.compile,
        training.augment,
        training.objective,
        "blocks" if training.order == "blocks" else "shuffle",
        units_of(recipe.units, load_corpus(recipe.corpus)) if recipe.unaligned else None,
    )


def _check_objective(recipe: Recipe) -> None:
    """Raise a UserError unless objective, model and minibatch fit together."""
    objective, subsampling = recipe.training.objective.name, getattr(recipe.model, "subsampling", 1)
    if not recipe.unaligned:
        if subsampling > 1:
            raise UserError(
                f"model.subsampling is {subsampling}: training.objective {objective} has a label for every frame. Give "
                "model.subsampling=1, or training.objective=ctc or lfmmi."
            )
    elif recipe.training.minibatch_unit != "sequences":
        raise UserError(
            f"training.objective {objective} trains on whole utterances: give training.minibatch_unit=sequences, and "
            "in training.minibatch the utterances of a round, 16 for example."
        )
    elif isinstance(recipe.units, Chain) != isinstance(recipe.training.objective, LfMmi):
        fit = "units=chain" if objective == "lfmmi" else "units=phones, characters or bpe"
        raise UserError(
            f"units.name is {recipe.units.name}: training.objective {objective} does not learn them. Give {fit}."
        )


def _strategy(recipe: Recipe, place: HostPlace | None) -> Strategy:
    """Return the strategy of the recipe, on one host or several.

    Raises:
        UserError: the strategy cannot be trained with the recipe's number of learners, or on several hosts.
    """
    training = recipe.training
    strategy = make_strategy(training.strategy, training.options).under(training.rate, not training.size.per_learner)
    if place is not None and not place.alone:
        strategy = _several_hosts(recipe, place, strategy)
    strategy.check(training.learners)
    strategy.check_optimizer(recipe.optimizer)
    return strategy


def _autocast(training: Training) -> bool:
    """Return True if gradients are to be computed under bfloat16 autocast.

    Raises:
        UserError: there is no such device.
    """
    if training.device == "cuda" and not torch.cuda.is_available():
        raise UserError("training.device is cuda: torch sees no GPU here. Choose cpu, or install torch for CUDA.")
    if training.precision == "auto":
        return training.device == "cuda" or autocast_pays()
    return training.precision == "bf16"


def _stragglers(training: Training) -> tuple[Straggler, ...]:
    """Return the learners that are made slow on purpose.

    Raises:
        UserError: one is named twice, or does not exist.
    """
    stragglers = tuple(parse_straggler(text) for text in training.stragglers)
    if twice := sorted({s.rank for s in stragglers if [t.rank for t in stragglers].count(s.rank) > 1}):
        raise UserError(f"stragglers: learner {twice[0]} is named twice. Give each one handicap.")
    if beyond := [s.rank for s in stragglers if not 0 <= s.rank < training.learners]:
        raise UserError(f"stragglers {beyond} do not exist: learners are 0 to {training.learners - 1}.")
    return stragglers


def _after_death(on_death: str, strategy: Strategy) -> AfterDeath:
    """Return the action after a death that the strategy itself cannot survive."""
    if not strategy.traits.synchronous or on_death == "stop":
        return "stop"
    return "go-on" if on_death == "go-on" else "shrink" if on_death == "shrink" else "restart"


def learners_deaths(on_death: str) -> OnDeath:
    """Return the runtime's policy for a dead learner under `training.on_death`."""
    return "replace" if on_death == "replace" else "go-on" if on_death == "go-on" else "stop"


def _trace(recipe: Recipe, exp: Path | None) -> Path | None:
    """Return the folder of the trace that is to be recorded, if one is."""
    return exp / TRACE if recipe.training.record and exp else None


def make_terms(recipe: Recipe, strategy: Strategy, exp: Path | None = None) -> HostTerms:
    """Return the terms between hosts. The recipe, and how much data it names, must be the same on all of them. A trace,
    if one is to be recorded, goes into the folder `exp`."""
    recipe = with_order(recipe, read_summary(recipe.corpus).splits.get(TRAIN, {}).get("hours", 0.0))
    training, corpus = recipe.training, read_summary(recipe.corpus)
    if recipe.optimizer.by_parameters:  # no exchange is to change a part of a matrix alone
        training = dataclasses.replace(training, fragments=1)
    utterances = {name: int(sizes["utterances"]) for name, sizes in corpus.splits.items()}
    agreement = {"recipe": plain(recipe), "utterances": utterances}
    if isinstance(strategy, HAdPsgd):
        agreement["nodes of"] = strategy.node_size
    return HostTerms.of(
        training,
        patience_seconds=training.patience_seconds,
        on_death=learners_deaths(_on_death(training.on_death, strategy)),
        agreement=json.loads(json.dumps(agreement)),
        threads=training.threads,
        on_gpus=training.device == "cuda",
        trace=_trace(recipe, exp),
    )


def save_model(task: AcousticTask, x: Tensor, path: Path) -> None:
    """Write parameters `x` (P,) by name, with the front end's buffers and the prior; beside it a JSON with sizes, and
    with the units if columns are units."""
    learner = task.build()
    assert isinstance(learner, ModuleLearner)
    network = learner.module.cpu()
    assert isinstance(network, AcousticNetwork)
    load_flat(network, x)
    corpus, targets = load_corpus(task.corpus), task.targets()
    tensors = {name: value.detach().clone().contiguous() for name, value in network.state_dict().items()}
    tensors["prior"] = torch.from_numpy(targets.prior(targets.examples(network)))
    with atomic_write(path) as file:
        file.write(save(tensors))
    features = int(network.frontend.scale.shape[1])
    known = ModelInput.of(corpus, corpus.features())
    sizes = TrainedSizes(
        task.model, features, targets.columns, network.frontend.parts, known, targets.digest, task.units
    )
    write_checked(path.with_name(MODEL_META), plain(sizes), [path.name])
    if task.units is not None:
        write_text(path.with_name(UNITS), symbol_table(task.units.columns))
