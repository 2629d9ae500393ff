"""Models that leave the house: pack, evaluate."""

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import add_overrides, count, whole
from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.core.folders import PACKED, check_packed, check_run, check_there
from roundelay.stopping import ending, resumes_from, status
from roundelay.terminal import Bar, complain, console
from roundelay_speech.commands.examples import EXAMPLES
from roundelay_speech.commands.recognition import weighted
from roundelay_speech.packed.given import model_folder

if TYPE_CHECKING:
    from roundelay_speech.packed.card import Card
    from roundelay_speech.packed.evaluate import Evaluated


def add(command: Command) -> None:
    """Add their options."""
    sub = command("pack", _pack, "put trained models and all they need to recognise into one folder", EXAMPLES["pack"])
    sub.add_argument(
        "exp",
        nargs="+",
        check=_check_weighted,
        metavar="EXP[:WEIGHT]",
        help="run directories, and weights of their log-likelihoods (1); or a packed model that is to have other words",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the folder to make")
    sub.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="decode.KEY=VALUE",
        help="recognise with other options than the first run's recipe has (`roundelay list options` names them)",
    )
    sub.add_argument(
        "--decoded",
        type=Path,
        metavar="DIR",
        help="take settings and word errors from here, where `roundelay decode --out DIR` left them for the same runs, "
        "weights and options (default: from the run; else the runs are decoded now)",
    )
    sub.add_argument(
        "--words",
        type=Path,
        metavar="FILE",
        help="of a packed model: add these words, one a line, with their phones behind them if no dictionary has them",
    )
    sub.add_argument("--licence", default="", metavar="TEXT", help="of the model (default: that of its corpus)")
    _add_evaluate(
        command(
            "evaluate",
            _evaluate,
            "recognise new speech with a packed model, or people whom a recipe never heard, and score it",
            EXAMPLES["evaluate"],
        )
    )


def _add_evaluate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", help="the folder that `roundelay pack` made; with --folds, a recipe")
    sub.add_argument(
        "--folds",
        type=count,
        metavar="N",
        help="train the recipe so many times, each without some of its corpus's speakers, women and men evenly; "
        "recognise those, and score all",
    )
    add_overrides(sub, "with --folds, schedule.max_epochs=6")
    sub.add_argument(
        "--exp", type=Path, metavar="DIR", help="with --folds: the folder for all runs (default: exp/RECIPE/folds-N)"
    )
    sub.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="a prepared corpus, a Kaldi data directory or a folder of recordings; transcripts may be missing",
    )
    sub.add_argument(
        "--split",
        action="append",
        default=[],
        metavar="NAME",
        help="a split of the corpus; may be repeated (default: all but train)",
    )
    sub.add_argument(
        "--source",
        type=Path,
        metavar="DIR",
        help="the folder that paths in wav.scp begin at (default: the directory itself or the one above)",
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="where words and scores go (default: only printed)")
    sub.add_argument("--workers", type=whole, default=0, help="processes (default: 0, one a core)")
    sub.add_argument("--ignore-case", action="store_true", help="upper and lower case are the same")
    sub.add_argument(
        "--clean-transcripts",
        action=argparse.BooleanOptionalAction,
        help="write transcripts in the model's words: in their case, without punctuation and marks of noises (default: "
        "as those of the model's corpus were)",
    )
    sub.add_argument("--no-times", action="store_true", help="no times and confidences, which take as long again")
    sub.add_argument("--per-speaker", action="store_true", help="word errors of each speaker")


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
            console.print(f"{split}: %WER {errors['wer']:.2f} [ {errors['errors']} / {errors['words']} ]", markup=False)
    _ready(options.out, card)


def _ready(out: Path, card: "Card") -> None:
    console.print(
        f"{out} is a model of {card.vocabulary.words:,} words for audio at {card.sampling_rate:,} Hz; it can "
        "be moved anywhere.",
        markup=False,
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
        outcomes, pooled, interrupt = run_planned_folds(planned, Bar(quiet=True), partial(console.print, markup=False))
    if pooled is not None:
        console.print(f"\n{pooled.text}", markup=False)
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
    from roundelay_speech.corpus.cleaned import written_so
    from roundelay_speech.data.problems import counted, listing

    for found in results:
        if found.summary is None:
            where = f"words are in {options.out / found.split}" if options.out else "give --out DIR to have the words"
            console.print(f"{found.split}: {found.utterances:,} utterances without transcripts; {where}", markup=False)
            continue
        console.print(f"{found.split}: {found.summary}", markup=False)
        for name, part in found.groups.items():
            console.print(f"  {name}: {part}", markup=False)
        if options.per_speaker:
            for name, one in found.speakers.items():
                console.print(f"  {name}: {one.errors}", markup=False)
        if found.confidences is not None:
            console.print(f"  confidences: {found.confidences}", markup=False)
        if line := written_so(found.changes):
            console.print(f"  {line}", markup=False)
        if found.left_out:
            reasons = listing([one.reason for one in found.left_out])
            console.print(f"  {counted(len(found.left_out), 'utterance')} left out:\n{reasons}", markup=False)
        if found.unknown_words:
            console.print(f"  {unknown_words(found.unknown_words, found.summary.score.errors.ref)}", markup=False)
        if found.other_case:
            console.print(f"  {found.other_case:,} of them are, in another case: --ignore-case", markup=False)
        if found.punctuated:
            console.print(f"  {found.punctuated:,} are, without punctuation: --clean-transcripts", markup=False)
