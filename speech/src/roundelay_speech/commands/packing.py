"""Models that leave the house: pack, evaluate."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.folders import PACKED, check_packed, check_run, check_there
from roundelay.stopping import ending, resumes_from, status
from roundelay.terminal import Bar, complain, console
from roundelay_speech.commands.recognition import weighted
from roundelay_speech.packed.given import model_folder

if TYPE_CHECKING:
    from roundelay_speech.packed.card import Card
    from roundelay_speech.packed.evaluate import Evaluated


_PACK = """
pack: put trained models and all they need to recognise into one folder
exp EXP[:WEIGHT] <is-weighted> + | run directories, and weights of their log-likelihoods (1); or a packed model that is
    to have other words
--out MODEL <path> ! | the folder to make
--set decode.KEY=VALUE ++ | recognise with other options than the first run's recipe has (`roundelay list options` names
    them)
--decoded DIR <path> | take settings and word errors from here, where `roundelay decode --out DIR` left them for the
    same runs, weights and options (default: from the run; else the runs are decoded now)
--words FILE <path> | of a packed model: add these words, one a line, with their phones behind them if no dictionary has
    them
--licence TEXT = | of the model (default: that of its corpus)
$ roundelay pack exp/demo/four --out models/demo
$ roundelay pack exp/an4/dnn exp/an4/blstm:0.5 --out models/an4 --decoded exp/an4/together
$ roundelay pack models/an4 --words names.txt --out models/an4-names
$ roundelay pack models/an4 --set decode.text=commands.txt decode.order=3 --out models/commands
"""
_EVALUATE = """
evaluate: recognise new speech with a packed model, or people whom a recipe never heard, and score it
model | the folder that `roundelay pack` made; with --folds, a recipe
--folds N <count> | train the recipe so many times, each without some of its corpus's speakers, women and men evenly;
    recognise those, and score all
--set KEY=VALUE ++ ->overrides | the same as KEY=VALUE without --set
overrides * | section.key=value, for example with --folds, schedule.max_epochs=6
--exp DIR <path> | with --folds: the folder for all runs (default: exp/RECIPE/folds-N)
--data DIR <path> | a prepared corpus, a Kaldi data directory or a folder of recordings; transcripts may be missing
--split NAME ... | a split of the corpus; may be repeated (default: all but train)
--source DIR <path> | the folder that paths in wav.scp begin at (default: the directory itself or the one above)
--out DIR <path> | where words and scores go (default: only printed)
--workers <whole> =0 | processes (default: 0, one a core)
--ignore-case | upper and lower case are the same
--clean-transcripts <yes-no> | write transcripts in the model's words: in their
    case, without punctuation and marks of noises (default: as those of the model's corpus were)
--no-times | no times and confidences, which take as long again
--per-speaker | word errors of each speaker
$ roundelay evaluate models/an4 --data data/mine --out results
$ roundelay evaluate models/an4 --data s5/data/test --source s5 --per-speaker
$ roundelay evaluate kaldi --folds 5 model.width=256 schedule.max_epochs=6
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    add_described(command, _pack, _PACK, is_weighted=_check_weighted)
    add_described(command, _evaluate, _EVALUATE)


def _check_weighted(text: str) -> None:
    exp, _ = weighted(text)
    if not (model_folder(exp) / PACKED).is_file():
        check_run(exp)


def _pack(options: argparse.Namespace) -> None:
    from roundelay_speech.recipes.known import check_overrides

    check_overrides(options.set)  # names a slip before torch is loaded
    from roundelay_speech.api.packing import pack
    from roundelay_speech.packed.folder import is_packed

    named = [weighted(text) for text in options.exp]
    more = {name: getattr(options, name) for name in ("words", "decoded", "licence")}
    card = pack(named, options.out, options.set, **more, progress=Bar())
    if not is_packed(model_folder(named[0][0])):
        for split, errors in card.word_errors.items():
            console.print(f"{split}: %WER {errors['wer']:.2f} [ {errors['errors']} / {errors['words']} ]")
    _ready(options.out, card)


def _ready(out: Path, card: "Card") -> None:
    console.print(
        f"{out} is a model of {card.vocabulary.words:,} words for audio at {card.sampling_rate:,} Hz; it can "
        "be moved anywhere."
    )


def _evaluate(options: argparse.Namespace) -> int:
    """Recognise with a packed model, or train a recipe in folds."""
    of_model = {"--data": options.data, "--split": options.split, "--source": options.source, "--out": options.out}
    of_folds = {"--exp": options.exp, "KEY=VALUE": options.overrides}
    if options.folds is not None:
        if given := [name for name, value in of_model.items() if value]:
            raise UserError(f"evaluate --folds takes a recipe and its corpus: leave {', '.join(given)} out.")
        return _evaluate_folds(options)
    if given := [name for name, value in of_folds.items() if value]:
        raise UserError(f"evaluate MODEL recognises and trains nothing: leave {', '.join(given)} out, or give --folds.")
    if options.data is None:
        raise UserError("evaluate needs --data DIR, the speech to recognise; or --folds N, to train a recipe.")
    check_packed(model_folder(options.model))
    check_there(options.data)
    _evaluate_model(options)
    return 0


def _evaluate_folds(options: argparse.Namespace) -> int:
    from roundelay_speech.recipes.known import check_recipe

    check_recipe(options.model, options.overrides)  # names a slip before torch is loaded
    from roundelay_speech.api.comparing import run_planned_folds
    from roundelay_speech.grids.folds import plan_folds

    planned = plan_folds(options.model, options.overrides, options.folds, options.exp)
    go_on = resumes_from(planned.folder)
    with ending(lambda: go_on):
        outcomes, pooled, interrupt = run_planned_folds(planned, Bar(quiet=True), console.print)
    if pooled is not None:
        console.print(f"\n{pooled.text}")
        return 0
    for outcome in outcomes:
        if outcome.error:
            complain(f"{outcome.cell.exp}: {outcome.error}")
    complain(f"not all folds are finished: {go_on}")
    return status(interrupt.why) if interrupt.asked else 1


def _evaluate_model(options: argparse.Namespace) -> None:
    from roundelay_speech.api.packing import Judged, evaluate

    how: Judged = {"splits": options.split, "workers": options.workers, "ignore_case": options.ignore_case}
    if options.source is not None:
        how["source"] = options.source
    how["clean_transcripts"] = options.clean_transcripts
    how["times"] = not options.no_times

    def kept() -> str:
        return f"splits that were finished are in {options.out}" if options.out else "nothing is kept without --out"

    with ending(kept):  # else processes that recognise would be left
        _show_evaluated(options, evaluate(options.model, options.data, options.out, **how))


def _show_evaluated(options: argparse.Namespace, results: "Iterable[Evaluated]") -> None:
    from roundelay_speech.commands.recognition import unknown_words
    from roundelay_speech.corpus.words import written_so
    from roundelay_speech.data.problems import counted, listing, named

    for found in results:
        if found.unadapted:
            console.print(f"{found.split}: too little speech to adapt to {named(found.unadapted, 5)}")
        if found.summary is None:
            where = f"words are in {options.out / found.split}" if options.out else "give --out DIR to have the words"
            console.print(f"{found.split}: {found.utterances:,} utterances without transcripts; {where}")
            continue
        console.print(f"{found.split}: {found.summary}")
        for name, part in found.groups.items():
            console.print(f"  {name}: {part}")
        if options.per_speaker:
            for name, one in found.speakers.items():
                console.print(f"  {name}: {one.errors}")
        if found.confidences is not None:
            console.print(f"  confidences: {found.confidences}")
        if line := written_so(found.changes):
            console.print(f"  {line}")
        if found.left_out:
            reasons = listing([one.reason for one in found.left_out])
            console.print(f"  {counted(len(found.left_out), 'utterance')} left out:\n{reasons}")
        if found.unknown_words:
            console.print(f"  {unknown_words(found.unknown_words, found.summary.score.errors.ref)}")
        if found.other_case:
            console.print(f"  {found.other_case:,} of them are, in another case: --ignore-case")
        if found.punctuated:
            console.print(f"  {found.punctuated:,} are, without punctuation: --clean-transcripts")
