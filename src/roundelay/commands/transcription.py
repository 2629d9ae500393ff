"""Transcription: words of recordings, by a packed model."""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import count, positive, whole
from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.terminal import Bar, complain, console, write

if TYPE_CHECKING:
    from roundelay.transcription.transcribing import Options

_FORMATS = ("txt", "json", "ctm", "srt", "vtt", "trn", "TextGrid")


def add(command: Command) -> None:
    """Its options."""
    sub = command("transcribe", _transcribe, "recognise recordings of any kind and length with a packed model")
    sub.add_argument("model", type=Path, metavar="MODEL", help="the folder of a packed model (`roundelay pack`)")
    sub.add_argument(
        "recordings",
        nargs="+",
        metavar="FILE",
        help="wav, flac, mp3, ogg, and where ffmpeg is installed others, such as m4a; a folder of them; a list (.txt, "
        ".scp); - for standard input",
    )
    sub.add_argument("--format", choices=_FORMATS, default="txt", help="of the transcripts (default: txt)")
    sub.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="a file for each recording there (default: all to standard output); what is there and whole is kept",
    )
    sub.add_argument(
        "--ref",
        type=Path,
        metavar="FILE",
        help="what was said, as trn or `NAME words` lines: prints the word error rate",
    )
    sub.add_argument(
        "--channel",
        type=_channel,
        default="each",
        metavar="each|mix|N",
        help="each channel by itself, their mean, or channel N, from 1 (default: each; equal channels are one)",
    )
    sub.add_argument(
        "--speaker",
        choices=["file", "folder", "all"],
        default="file",
        help="whose speech is normalised together: that of a file, of all files of a folder, of all (default: file)",
    )
    sub.add_argument(
        "--longest",
        type=positive,
        default=40.0,
        metavar="SECONDS",
        help="a recording that is longer is cut at pauses; no piece is longer (default: 40)",
    )
    sub.add_argument(
        "--pause", type=positive, default=0.5, metavar="SECONDS", help="a silence that parts two pieces (default: 0.5)"
    )
    sub.add_argument(
        "--workers",
        type=whole,
        metavar="N",
        help="processes; 0 for as many as there are cores (default: 1 up to ten minutes of audio, then 0)",
    )


def _channel(text: str) -> str:
    if text not in ("each", "mix"):
        count(text)
    return text


def _options(options: argparse.Namespace, seconds: float) -> "Options":
    from roundelay.speech.audio.activity import Cutting
    from roundelay.transcription.formats import TIMED
    from roundelay.transcription.many import ENOUGH_FOR_PROCESSES
    from roundelay.transcription.transcribing import Options

    channel = {"each": None, "mix": 0}.get(options.channel, options.channel)
    workers = options.workers
    if workers is None:
        workers = 1 if seconds < ENOUGH_FOR_PROCESSES else 0
    return Options(
        Cutting(options.longest, options.pause),
        None if channel is None else int(channel),
        options.speaker,
        workers,
        options.format in TIMED,
    )


def _transcribe(options: argparse.Namespace) -> int:
    from roundelay.transcription.inputs import STANDARD_INPUT, recordings, spooled

    with ExitStack() as stack:
        spool = None
        if STANDARD_INPUT in options.recordings:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            spool = spooled(sys.stdin.buffer, Path(folder) / "stdin")
        if options.ref is not None and not options.ref.is_file():
            raise UserError(f"--ref {options.ref}: no such file.")
        named = recordings(options.recordings, spool)  # a slip is named before torch is loaded

        from roundelay.packed.model import load_model
        from roundelay.transcription.kept import TranscriptFolder
        from roundelay.transcription.many import options_of, transcribe_all
        from roundelay.transcription.scoring import scored
        from roundelay.transcription.transcribing import total_seconds

        model = load_model(options.model)
        how = _options(options, total_seconds(named) or 0.0)
        say = complain if options.out is None else _print
        if options.out is None:
            outcome = transcribe_all(model, named, how, options.format, write, Bar(quiet=True))
        else:
            settings = {"model": model.digest, **options_of(how, options.format)}
            kept = TranscriptFolder(options.out, options.format, settings)
            outcome = transcribe_all(model, named, how, options.format, kept, Bar(quiet=True))
        for line in outcome.report(len(named)):
            say(line)
        if options.ref is not None and outcome.texts:
            say(str(scored(options.ref, outcome.texts)))
    return 1 if outcome.failed else 0


def _print(line: str) -> None:
    console.print(line, markup=False)
