"""Models that runs start from: another run's, one of its checkpoints, or that of a first phase.

A run asks for it once, when it begins: the model is in its first checkpoint, and a run that goes on does not look at
the source again. Layers are found by name, so the source may have been trained by any strategy and number of learners.
The scale of inputs is not taken over: it is fitted to the corpus that is trained on.

Legend: P parameters.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from roundelay.checkpoint import latest, load_checkpoint
from roundelay.core.checksums import read_checked
from roundelay.core.configure import build, plain, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.flat import pieces
from roundelay.core.folders import RECIPE
from roundelay.core.progress import Progress
from roundelay.job import Begin, Beginning, Interrupt, Job
from roundelay.learner.base import Learner
from roundelay.learner.module import ModuleLearner
from roundelay.runtime.resize import TrainedBy, model_of
from roundelay.runtime.sim.cost import CostModel
from roundelay.saving import FOLDER
from roundelay.schedule import Anneal
from roundelay.strategies import make_strategy
from roundelay.training import train
from roundelay_speech.features.store import StoredPart
from roundelay_speech.hmm.alignment import TREE
from roundelay_speech.model_input import ModelInput, mismatches, refuse
from roundelay_speech.models.network import AcousticNetwork
from roundelay_speech.prepared import load_corpus
from roundelay_speech.recipes.recipe import Decoding, FirstPhase, Init, Recipe, Training, as_it_was, kept_recipe
from roundelay_speech.trained import MODEL, MODEL_META, PACKED_NETWORK
from roundelay_speech.unit_labels import units_of
from roundelay_speech.units.base import UnitSet

PHASES = "first"
"""Folder of first phases, beside the runs that share them."""

MakeJob = Callable[[Recipe, Path], Job]


def beginning_of(recipe: Recipe, exp: Path | None, make_job: MakeJob) -> Begin | None:
    """Return the function that finds the model from which a run of `recipe` in `exp` starts; None: its own initial
    model."""
    init = recipe.init
    if init.model is None and not (init.first.epochs and exp):
        return None

    def begin(learner: Learner, progress: Progress, interrupt: Interrupt) -> Beginning | None:
        assert isinstance(learner, ModuleLearner)
        if exp is None or not init.first.epochs:
            return _started(recipe, init, learner)
        phase, folder = first_phase(recipe, init.first, exp.parent)
        if train(make_job(phase, folder), folder, progress, interrupt) is None:
            return None
        found = _started(recipe, Init(model=folder), learner)
        epochs = f"{init.first.epochs} epoch{'s' * (init.first.epochs > 1)}"
        return dataclasses.replace(found, source=f"a first phase of {epochs} on one learner, {folder}")

    return begin


def first_phase(recipe: Recipe, first: FirstPhase, beside: Path) -> tuple[Recipe, Path]:
    """Return the recipe of the first phase of `recipe`, and its run directory in the folder `beside`, whose name
    depends on everything that decides the phase, and on nothing else of the run."""
    asked = recipe.training
    training = Training(
        runtime=asked.runtime,
        objective=asked.objective,
        minibatch=asked.size.number if first.minibatch is None else first.minibatch,
        minibatch_unit=asked.minibatch_unit,
        seed=asked.seed,
        precision=asked.precision,
        clip=asked.clip,
        device=asked.device,
        compile=asked.compile,
        augment=asked.augment,
        order=asked.order,
    )
    rate = recipe.schedule.learning_rate if first.learning_rate is None else first.learning_rate
    phase = dataclasses.replace(
        recipe,
        training=training,
        init=Init(),
        schedule=Anneal(rate, max_epochs=first.epochs, anneal_from=first.epochs, factor=1.0),
        decode=Decoding(),
        cost=CostModel(),
    )
    text = json.dumps(plain(phase), sort_keys=True)
    return phase, beside / PHASES / hashlib.sha256(text.encode()).hexdigest()[:12]


def targets_of(alignment: Path) -> str:
    """Return a digest of the tied states of an alignment; "" if it cannot be read."""
    try:
        tree = read_json(alignment / TREE)
    except UserError:
        return ""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def targets_of_units(units: UnitSet) -> str:
    """Return a digest of units, in their order."""
    return hashlib.sha256(json.dumps(units.columns).encode()).hexdigest()[:16]


def _targets_of_recipe(recipe: Recipe) -> str:
    """Return the digest of the targets (tied states or units) of a recipe; "" if they cannot be read."""
    if recipe.unaligned:
        return targets_of_units(units_of(recipe.units, load_corpus(recipe.corpus)))
    return targets_of(recipe.aligned)


# Sources --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A model to start from: parameters by name, and facts known of it."""

    path: Path
    tensors: Mapping[str, Tensor]
    targets: str  # digest of its tied states; empty: not known
    what: str


def _started(recipe: Recipe, init: Init, learner: ModuleLearner) -> Beginning:
    assert init.model is not None
    assert isinstance(learner.module, AcousticNetwork)
    source = _source(recipe, init.model, init, learner.module)
    if init.output == "keep":
        _check_targets(source, recipe)
    row = learner.initial()
    _fit(dict(zip(_names(learner.module), pieces(learner.module, row), strict=True)), source, init, learner.module)
    return Beginning(row, source.what + ", new output layer" * (init.output == "new"))


def _source(recipe: Recipe, path: Path, init: Init, module: AcousticNetwork) -> _Source:
    """Load the model that `path` names.

    Raises:
        UserError: there is no such model, or it was trained on other features.
    """
    if path.is_dir() and (networks := sorted(path.glob(f"{PACKED_NETWORK}*/{MODEL}"))):
        if len(networks) > 1:
            known = ", ".join(str(network.parent) for network in networks)
            raise UserError(f"init.model: {path} is a packed model of several networks. Give one of them: {known}.")
        return _model(recipe, networks[0])
    if path.is_dir() and init.which == "final":
        if not (path / MODEL).is_file():
            if not (path / RECIPE).is_file():
                raise UserError(
                    f"init.model: {path} is no run directory: it has neither {MODEL} nor {RECIPE}. Nor is it a packed "
                    "model."
                )
            raise UserError(
                f"init.model: {path} has no {MODEL}: the run has not finished. Resume it, or give "
                "init.which=best for its best checkpoint so far."
            )
        return _model(recipe, path / MODEL)
    if path.is_dir():
        return _checkpoint(_best(path), module)
    if path.name == MODEL and path.is_file():
        return _model(recipe, path)
    if path.suffix == ".json" and path.is_file():
        return _checkpoint(path, module)
    raise UserError(
        f"init.model: {path} is no run directory, no {MODEL} and no checkpoint (the JSON of one). Give one of them."
    )


def _model(recipe: Recipe, path: Path) -> _Source:
    told = read_checked(path.with_name(MODEL_META), f"Restore it, or train {path.parent} again.")
    try:
        tensors = load(path.read_bytes())
        parts = tuple(build(StoredPart, part) for part in told.get("parts", ()))
        known = build(ModelInput, told["input"]) if told.get("input") else None
    except (OSError, TypeError, KeyError, SafetensorError) as error:
        raise UserError(f"{path}: not the model {MODEL_META} describes ({error}). Train again.") from error
    if parts:
        corpus = load_corpus(recipe.corpus)
        refuse(mismatches(corpus.features(), parts, known), parts, corpus, known, str(path))
    return _Source(path, tensors, str(told.get("targets") or _targets_of_run(path.parent)), f"{path}")


def _best(exp: Path) -> Path:
    """Return the JSON of the checkpoint with the lowest held-out loss so far.

    Raises:
        UserError: there is no checkpoint.
    """
    newest = latest(exp / FOLDER)
    if newest is None:
        raise UserError(f"init.model: {exp} has no checkpoint. Give a run directory in which something was trained.")
    best = load_checkpoint(newest).position.get("best") or newest.stem
    return exp / FOLDER / f"{best}.json"


def _checkpoint(path: Path, module: AcousticNetwork) -> _Source:
    """Load the model at a checkpoint that would be evaluated: the centre, or the mean of the rows that are models."""
    exp = path.parent.parent
    if not (exp / RECIPE).is_file():
        raise UserError(f"init.model: {path} is not in the folder {FOLDER} of a run directory, which has its recipe.")
    training = as_it_was(read_yaml(exp / RECIPE))["training"]
    checkpoint = load_checkpoint(path)
    state, trained = checkpoint.state, checkpoint.trained
    if trained is None:
        shared, rate = not training.get("minibatch_per_learner"), training.get("rate", "auto")
        strategy = make_strategy(training["strategy"], training["options"]).under(rate, shared)
        trained = TrainedBy.of(strategy, range(len(state.vectors["row"])))
    row = model_of(state, trained.holders, trained.weighed)
    return _Source(path, _named(row, module, path), _targets_of_run(exp), str(path))


def _named(row: Tensor, module: AcousticNetwork, path: Path) -> dict[str, Tensor]:
    """Split a row (P,) into parameters by name, for a network like `module` that may have another number of tied
    states.

    Raises:
        UserError: the row is of another network.
    """
    parameters, ours = dict(module.named_parameters()), _output(module)
    others = sum(p.numel() for name, p in parameters.items() if name not in ours)
    per_state = sum(parameters[name].numel() // len(parameters[name]) for name in ours)
    states, rest = divmod(row.numel() - others, per_state)
    if rest or states < 1:
        raise UserError(
            f"init.model: {path} has {row.numel():,} parameters, and this model {others:,} with {per_state:,} for each "
            "tied state: it is of another network. Give the section `model` of that run."
        )
    found, at = {}, 0
    for name, p in parameters.items():
        shape = torch.Size((states, *p.shape[1:])) if name in ours else p.shape
        found[name], at = row[at : at + shape.numel()].view(shape), at + shape.numel()
    return found


# Checks ---------------------------------------------------------------------------------------------------------------


def _targets_of_run(exp: Path) -> str:
    """Return a digest of the tied states on which a run was trained; "" if its alignment no longer exists."""
    try:
        return _targets_of_recipe(kept_recipe(exp))
    except UserError:
        return ""


def _check_targets(source: _Source, recipe: Recipe) -> None:
    """Raise a UserError if the output layer's tied states, or units, are known to differ from the recipe's."""
    if not source.targets or source.targets == _targets_of_recipe(recipe):
        return
    if recipe.unaligned:
        raise UserError(
            f"init.model: {source.path} was trained on other targets than the {recipe.units.name} of {recipe.corpus}, "
            "so its output layer means something else. Give init.output=new for a new one."
        )
    raise UserError(
        f"init.model: {source.path} was trained on other tied states than those of {recipe.alignment}, so its "
        "output layer means something else. Give init.output=new for a new one, or an alignment of the same states."
    )


def _fit(layers: Mapping[str, Tensor], source: _Source, init: Init, module: AcousticNetwork) -> None:
    """Write the source's layers into `layers`, those of the learner's model by name.

    Raises:
        UserError: a layer is missing, or has another shape; names all of them.
    """
    output, wrong = _output(module), []
    theirs = _places(name for name in source.tensors if not name.startswith(("frontend.", "prior")))
    for place, name in _places(layers).items():
        found, ours = source.tensors.get(theirs.pop(place, "")), layers[name]
        if init.output == "new" and name in output:
            continue
        if found is None:
            wrong.append(f"{name} is not there")
        elif found.shape != ours.shape:
            wrong.append(f"{name} is {_shape(found)} there and {_shape(ours)} here")
        else:
            ours.copy_(found)
    wrong += [f"{name} is not here" for name in theirs.values()]
    if wrong:
        only = all(text.partition(" ")[0] in output for text in wrong)
        remedy = "Give init.output=new" if only else "Give the section `model` of that run, and the same features"
        raise UserError(f"init.model: {source.path} does not fit this model: {'; '.join(wrong)}. {remedy}.")


def _names(module: AcousticNetwork) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def _output(module: AcousticNetwork) -> set[str]:
    """Return the names of the parameters of the output layer."""
    return {name for name in _names(module) if name.startswith(f"{module.output_layer}.")}


def _places(names: Iterable[str]) -> dict[tuple[str, int], str]:
    """Return names of parameters by their parts without numbers, and their order, since dropout layers, without
    parameters, count in the numbers of a Sequential, and only one of two models may have them."""
    found: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)]):
        found.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    return {(place, number): name for place, some in found.items() for number, name in enumerate(some)}


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
