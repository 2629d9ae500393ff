"""Models that leave the house: pack."""

import argparse
from pathlib import Path

from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.terminal import Bar, console


def add(command: Command) -> None:
    """Its options."""
    sub = command("pack", _pack, "put trained models and all they need to recognise into one folder")
    sub.add_argument(
        "exp", nargs="+", metavar="EXP[:WEIGHT]", help="run directories, and weights of their log-likelihoods (1)"
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
    sub.add_argument("--licence", default="", metavar="TEXT", help="of the model (default: that of its corpus)")


def _pack(options: argparse.Namespace) -> None:
    from roundelay.recipes.known import check_overrides

    check_overrides(options.set)  # names a slip before torch is loaded
    from roundelay.commands.recognition import decode_recipe, weighted
    from roundelay.packed.making import Packing, pack
    from roundelay.speech.trained import check_trained

    named = [weighted(text) for text in options.exp]
    for exp, weight in named:
        if not weight > 0:
            raise UserError(
                f"pack {exp}:{weight:g}: weights of runs must be above 0; leave out a run that is not to count."
            )
    runs = [(exp, decode_recipe(exp, options.set, None), weight) for exp, weight in named]
    for exp, *_ in runs:
        check_trained(exp)
    card = pack(runs, Packing(options.out, options.decoded, options.licence), Bar())
    for split, errors in card.word_errors.items():
        console.print(f"{split}: %WER {errors['wer']:.2f} [ {errors['errors']} / {errors['words']} ]", markup=False)
    console.print(
        f"{options.out} is a model of {card.vocabulary.words:,} words for audio at {card.sampling_rate:,} Hz; it can "
        "be moved anywhere.",
        markup=False,
    )
