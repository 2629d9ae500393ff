"""Word errors of the models that a run had at the ends of its epochs, decoded after the training.

EXP/models/epoch-0001/   the model after the first epoch, kept by a job that `keeps_models`; not needed once decoded
EXP/events.jsonl         gets a record `decoded` for each, with the seconds of its evaluation

All are searched with the settings that the decoding of the model that the run has left has chosen on held-out speech.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Prefixed, Progress
from roundelay.core.records import Decoded, Evaluation, WordErrors
from roundelay.job import Interrupt
from roundelay.reports.runs import Run, load_run
from roundelay.run_directory import append
from roundelay.saving import MODELS
from roundelay_speech.decode.graphs.ctc import CtcGraph
from roundelay_speech.prepared import load_corpus
from roundelay_speech.recipes.recipe import Decoding, Recipe
from roundelay_speech.recognition.graph import columns_of, searched
from roundelay_speech.recognition.loglikelihoods import Models, ensemble
from roundelay_speech.recognition.recognise import recognise_split
from roundelay_speech.recognition.settings import chosen_settings
from roundelay_speech.scoring.summary import word_errors
from roundelay_speech.trained import MODEL, load_model


def decode_epochs(exp: Path, recipe: Recipe, split: str, progress: Progress, interrupt: Interrupt) -> bool:
    """Decode a split with the models at the ends of a run's epochs, after the run in `exp` itself was decoded; epochs
    already done are skipped. Return False if `interrupt` asked to stop.

    Raises:
        UserError: models of epochs were not kept; names them.
    """
    run = load_run(exp)
    left = run.results.wer[split]
    own_models = [e for e in run.evaluations if e.epoch >= 0 and e.accepted]
    done = {one.epoch for one in run.epochs_decoded if one.split == split and one.acoustic_scale == left.acoustic_scale}
    missing = [e for e in own_models if e.epoch not in done]
    if (
        missing and missing[-1] is own_models[-1] and recipe.training.average == 1
    ):  # it is the one that the run has left
        _keep(run, missing.pop(), split, left, 0.0)
    if not missing:
        return True
    _check_kept(exp, missing)
    fixed, own = replace(recipe, decode=_fixed(recipe.decode, exp, split)), load_corpus(recipe.corpus)
    source = Models(ensemble(exp, fixed, ()))
    with searched(exp, fixed, own, columns_of(fixed, own, source), progress, "") as graph:
        options, _ = chosen_settings(graph.run, source, own, fixed.decode, progress, graph.columns)
        for evaluation in missing:
            if interrupt.asked:
                return False
            folder, said = _folder(exp, evaluation), Prefixed(progress, f"epoch {evaluation.epoch + 1}")
            member = replace(source.members[0], exp=folder, model=load_model(folder))
            found, _ = recognise_split(graph, Models([member]), own.splits[split], split, options, said)
            errors = word_errors(found.summary, found.subsets, options.scale)
            _keep(run, evaluation, split, errors, found.real_time_factor)
    return True


def _folder(exp: Path, evaluation: Evaluation) -> Path:
    return exp / MODELS / f"epoch-{evaluation.epoch + 1:04d}"


def _check_kept(exp: Path, missing: list[Evaluation]) -> None:
    gone = [folder for e in missing if not ((folder := _folder(exp, e)) / MODEL).is_file()]
    if gone:
        raise UserError(
            f"{exp}: it was trained without --wer, which keeps the models of epochs ({gone[0]} is missing). Remove "
            f"{exp}, and the same command trains it again; or leave --wer out."
        )


def _fixed(config: Decoding, exp: Path, split: str) -> Decoding:
    """Return the options of decoding one split with the settings that the run's own decoding chose, to write words
    alone."""
    told: Mapping[str, Any] = read_json(exp / "decode" / split / "decode.json")
    graph = config.graph
    if isinstance(graph, CtcGraph):
        graph = replace(graph, blank_cost=told.get("blank_cost", graph.blank_cost), blank_costs=())
    return replace(
        config,
        graph=graph,
        splits=(split,),
        scale=told["acoustic_scale"],
        beam=told["beam"],
        max_active=told["max_active"],
        word_cost=told["word_cost"],
        word_costs=(),
        beams=(),
        max_actives=(),
        nbest=0,
        lattice=False,
        ctm=False,
    )


def _keep(run: Run, evaluation: Evaluation, split: str, errors: WordErrors, real_time_factor: float) -> None:
    """Write the word errors of an epoch into the run's log."""
    record = Decoded(
        wall_s=evaluation.wall_s,
        virtual_s=evaluation.virtual_s,
        split=split,
        wer=errors.wer,
        errors={"ins": errors.ins, "del": errors.del_, "sub": errors.sub, "ref": errors.ref},
        acoustic_scale=errors.acoustic_scale,
        real_time_factor=real_time_factor,
        epoch=evaluation.epoch,
    )
    append(run.folder, record)
