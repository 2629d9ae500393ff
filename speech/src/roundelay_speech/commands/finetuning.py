"""Packed models trained on with a speaker's own speech: finetune."""

import argparse

from roundelay.commands.base import Command, add_described
from roundelay.terminal import console
from roundelay_speech.packed.given import model_folder

_FINETUNE = """
finetune: train a packed model on with a few minutes of speech, into a new one
model <packed> <is-packed> | the folder that `roundelay pack` made
--data DIR <path> <is-there> ! | recordings with their words (NAME.wav and NAME.txt, or a file text), a Kaldi data
    directory or a prepared corpus
--out MODEL <path> ! | the folder to make
--words FILE <path> | words that are to be recognised besides, one a line, with their phones behind them if no
    dictionary has them; words of the transcripts are added anyway
--split NAME ... | of a prepared corpus; may be repeated (default: train, or all where there is none)
--source DIR <path> | the folder that paths in wav.scp begin at (default: the directory itself or the one above)
--epochs <count> | through the speech (default: 10)
--learning-rate <positive> | of Adam, at first (default: 0.0005)
--hold <share> | share of the loss that holds the model to its earlier outputs (default: 0)
--layers {first,all} | layers that are trained (default: first)
--seed <whole> =0 | of the order of the speech, and of dropout
--confidence <share> | without transcripts: train on the model's own words in utterances of which it is this sure (0:
    all)
$ roundelay finetune models/an4 --data recordings/mine --out models/mine
$ roundelay finetune models/an4 --data recordings/mine --words names.txt --out models/mine
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _finetune, _FINETUNE, packed=model_folder)


def _finetune(options: argparse.Namespace) -> None:
    from roundelay_speech.api.packing import finetune

    named = ("source", "epochs", "learning_rate", "layers", "hold", "seed", "confidence")
    given = {name: value for name in named if (value := getattr(options, name)) is not None}
    done = finetune(options.model, options.data, options.out, words=options.words, splits=options.split, **given)
    for remark in done.remarks:
        console.print(f"warning: {remark}")
    console.print(
        f"{done.utterances:,} utterances, {done.seconds:,.0f} s: mean loss {done.before:.3f} before, {done.after:.3f} "
        "after, on this speech itself"
    )
    console.print(
        f"{options.out} is a model of {done.card.vocabulary.words:,} words for audio at {done.card.sampling_rate:,} "
        f"Hz. Is it better? roundelay evaluate {options.out} --data OTHER_SPEECH, and the same with {options.model}."
    )
