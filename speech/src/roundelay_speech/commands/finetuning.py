"""Packed models trained on with somebody's own speech: finetune."""

import argparse
from pathlib import Path

from roundelay.commands.arguments import count, positive, share, whole
from roundelay.commands.base import Command
from roundelay.core.folders import check_packed, check_there
from roundelay.terminal import console
from roundelay_speech.commands.examples import EXAMPLES
from roundelay_speech.packed.given import model_folder


def add(command: Command) -> None:
    """Add its options."""
    sub = command(
        "finetune",
        _finetune,
        "train a packed model on with a few minutes of speech, into a new one",
        EXAMPLES["finetune"],
    )
    sub.add_argument("model", type=model_folder, check=check_packed, help="the folder that `roundelay pack` made")
    sub.add_argument(
        "--data",
        type=Path,
        check=check_there,
        required=True,
        metavar="DIR",
        help="recordings with their words (NAME.wav and NAME.txt, or a file text), a Kaldi data directory or a "
        "prepared corpus",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the folder to make")
    sub.add_argument(
        "--words",
        type=Path,
        metavar="FILE",
        help="words that are to be recognised besides, one a line, with their phones behind them if no dictionary has "
        "them; words of the transcripts are added anyway",
    )
    sub.add_argument(
        "--split",
        action="append",
        default=[],
        metavar="NAME",
        help="of a prepared corpus; may be repeated (default: train, or all where there is none)",
    )
    sub.add_argument(
        "--source",
        type=Path,
        metavar="DIR",
        help="the folder that paths in wav.scp begin at (default: the directory itself or the one above)",
    )
    sub.add_argument("--epochs", type=count, help="through the speech (default: 10)")
    sub.add_argument("--learning-rate", type=positive, help="of Adam, at first (default: 0.0005)")
    sub.add_argument(
        "--hold", type=share, help="share of the loss that holds the model to what it said before (default: 0)"
    )
    sub.add_argument("--layers", choices=["first", "all"], help="layers that are trained (default: first)")
    sub.add_argument("--seed", type=whole, default=0, help="of the order of the speech, and of dropout (default: 0)")
    sub.add_argument(
        "--confidence",
        type=share,
        help="without transcripts: train on the model's own words in utterances of which it is this sure (0: all)",
    )


def _finetune(options: argparse.Namespace) -> None:
    from roundelay_speech.api.packing import finetune

    named = ("source", "epochs", "learning_rate", "layers", "hold", "seed", "confidence")
    given = {name: value for name in named if (value := getattr(options, name)) is not None}
    done = finetune(options.model, options.data, options.out, words=options.words, splits=options.split, **given)
    for remark in done.remarks:
        console.print(f"warning: {remark}", markup=False)
    console.print(
        f"{done.utterances:,} utterances, {done.seconds:,.0f} s: mean loss {done.before:.3f} before, {done.after:.3f} "
        "after, on this speech itself",
        markup=False,
    )
    console.print(
        f"{options.out} is a model of {done.card.vocabulary.words:,} words for audio at {done.card.sampling_rate:,} "
        f"Hz. Is it better? roundelay evaluate {options.out} --data OTHER_SPEECH, and the same with {options.model}.",
        markup=False,
    )
