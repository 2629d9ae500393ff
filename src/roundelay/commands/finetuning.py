"""Packed models trained on with somebody's own speech: finetune."""

import argparse
import tempfile
from pathlib import Path

from roundelay.commands.arguments import count, positive, share, whole
from roundelay.commands.base import Command
from roundelay.terminal import Bar, console


def add(command: Command) -> None:
    """Its options."""
    sub = command("finetune", _finetune, "train a packed model on with a few minutes of speech, into a new one")
    sub.add_argument("model", type=Path, help="the folder that `roundelay pack` made")
    sub.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="recordings with their words (NAME.wav and NAME.txt, or a file text), a Kaldi data directory or a "
        "prepared corpus; speech without any words is transcribed by the model first",
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
    sub.add_argument("--seed", type=whole, default=0, help="of the order of the speech, and of dropout (default: 0)")
    sub.add_argument(
        "--confidence",
        type=share,
        help="without transcripts: train on utterances of whose words the model is this sure (default: 0.9)",
    )


def _finetune(options: argparse.Namespace) -> None:
    from roundelay.packed.finetuning import CONFIDENT, Finetuning, finetune
    from roundelay.packed.making import refuse_existing
    from roundelay.packed.small_steps import SmallSteps
    from roundelay.packed.speech_data import read_training_speech
    from roundelay.speech.corpus.formats.recordings import RecordingOptions

    given = {"epochs": options.epochs, "learning_rate": options.learning_rate, "seed": options.seed}
    steps = SmallSteps(**{name: value for name, value in given.items() if value is not None})
    confidence = CONFIDENT if options.confidence is None else options.confidence
    how = Finetuning(options.out, options.words, steps, confidence)
    refuse_existing(options.out)
    with tempfile.TemporaryDirectory() as converted:
        recordings = RecordingOptions(Path(converted), together=True)
        data = read_training_speech(options.data, options.split, options.source, Bar(), recordings)
        done = finetune(options.model, data, how, Bar())
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
