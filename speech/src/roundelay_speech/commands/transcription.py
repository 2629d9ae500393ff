"""Transcription: words of recordings, by a packed model, at once, as they come, or for clients over HTTP."""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from roundelay.commands.arguments import count
from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.core.folders import check_packed
from roundelay.terminal import Bar, complain, console, write
from roundelay_speech.packed.given import model_folder

if TYPE_CHECKING:
    from roundelay_speech.decode.alternatives import Wishes
    from roundelay_speech.packed.model import Model
    from roundelay_speech.transcription.transcribing import Options

_TRANSCRIBE = """
transcribe: recognise recordings of any kind and length with a packed model
model MODEL <packed> <is-packed> | the folder of a packed model (`roundelay pack`), or an4, which comes with the
    package
recordings FILE + | wav, flac, mp3, ogg, and where ffmpeg is installed others, such as m4a; a folder of them; a list
    (.txt, .scp); - for standard input
--format {txt,json,ctm,srt,vtt,trn,TextGrid} =txt | of the transcripts
--out DIR <path> | a file for each recording there (default: all to standard output); whole ones are kept
--ref FILE <path> | transcripts, as trn or `NAME words` lines: prints the word error rate
--channel each|mix|N <channel> =each | each channel by itself, their mean, or channel N, from 1 (default: each; equal
    channels are one)
--speaker {file,folder,all} =file | whose speech is normalised together: that of a file, of all files of a folder, of
    all
--longest SECONDS <positive> =40 | no piece is longer; recordings of more than ten seconds are cut at pauses
--pause SECONDS <positive> =0.5 | a silence that parts two pieces
--detector {energy,silero} =energy | detector of speech: energy, or a network, of pip install
    'roundelay[detector]', that knows noise
--workers N <whole> | processes; 0 for as many as there are cores (default: 1 up to ten minutes of audio, then 0)
--nbest N <whole> =0 | with --format json: so many alternatives of each segment, and of each word
--favour WORDS = | words of the model that become likelier, parted by blanks or commas
--bonus NATS <non_negative> | by which the cost of these words is less (default: 2)
--stream | recognise as the audio comes, from one FILE or, with -, from a recorder (arecord -t wav); --format txt, or
    json, which has the words so far as well
--rate HZ <count> | of bare 16-bit samples on standard input (default: it is WAV)
--chunk FRAMES <count> | with --stream: frames that a conformer of dynamic_chunks evaluates together (default: as it was
    trained)
$ roundelay transcribe models/an4 talk.mp3
$ roundelay transcribe models/an4 talks interview.m4a --format srt --out subtitles
$ roundelay transcribe models/an4 list.txt --format ctm --out words --speaker folder --ref ref.trn
$ roundelay transcribe an4 - --format json --nbest 5 --favour "rubout, October"
$ roundelay transcribe models/an4 talk.wav --stream
"""
_SERVE = """
serve: serve a packed model: a page for a browser, and an HTTP endpoint for clients
model MODEL <packed> | the folder of a packed model (`roundelay pack`), or an4, which comes with the package
--host =127.0.0.1 | address to listen on (default: 127.0.0.1, this machine alone; elsewhere anybody may ask,
    unencrypted)
--port <whole> =8000 | 0 for any that is free
--max-megabytes N <count> =100 | of an upload
--max-minutes N <positive> =60 | of a recording
$ roundelay serve models/an4
$ roundelay serve models/an4 --port 9000 --max-minutes 10
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _transcribe, _TRANSCRIBE, packed=model_folder, channel=_channel)
    add_described(command, _serve, _SERVE, packed=model_folder)


def _channel(text: str) -> str:
    if text not in ("each", "mix"):
        count(text)
    return text


def _asked(options: argparse.Namespace, model: "Model") -> "Wishes":
    """Return the wishes for the search in the options, and print words to favour that the model does not know."""
    from roundelay_speech.decode.alternatives import USUAL_BONUS, Wishes, words_of

    if options.nbest and options.format != "json":
        raise UserError("--nbest: alternatives are in --format json alone.")
    if options.bonus is not None and not options.favour.strip():
        raise UserError("--bonus is for words to favour: give --favour WORDS.")
    known, unknown = model.in_vocabulary(words_of(options.favour))
    if unknown:
        complain(f"--favour: not in the model's vocabulary: {', '.join(unknown)}. `roundelay pack --words` adds words.")
    return Wishes(options.nbest, tuple(known), USUAL_BONUS if options.bonus is None else options.bonus)


def _options(options: argparse.Namespace, seconds: float, asked: "Wishes") -> "Options":
    from roundelay_speech.audio.activity import Cutting
    from roundelay_speech.transcription.formats import TIMED
    from roundelay_speech.transcription.many import ENOUGH_FOR_PROCESSES
    from roundelay_speech.transcription.transcribing import Options

    channel = {"each": None, "mix": 0}.get(options.channel, options.channel)
    workers = options.workers
    if workers is None:
        workers = 1 if seconds < ENOUGH_FOR_PROCESSES else 0
    return Options(
        cutting=Cutting(options.longest, options.pause, detector=options.detector),
        channel=None if channel is None else int(channel),
        speaker=options.speaker,
        workers=workers,
        times=options.format in TIMED,
        asked=asked,
    )


def _transcribe(options: argparse.Namespace) -> int:
    if options.stream:
        _stream(options)
        return 0
    if options.rate is not None:
        raise UserError("--rate is of bare samples that come: give --stream.")
    if options.chunk is not None:
        raise UserError("--chunk is for words while somebody speaks: give --stream.")
    from roundelay_speech.transcription.inputs import STANDARD_INPUT, recordings, spooled

    with ExitStack() as stack:
        spool = None
        if STANDARD_INPUT in options.recordings:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            spool = spooled(sys.stdin.buffer, Path(folder) / "stdin")
        if options.ref is not None and not options.ref.is_file():
            raise UserError(f"--ref {options.ref}: no such file.")
        named = recordings(options.recordings, spool)  # a slip is named before torch is loaded
        if options.ref is not None:
            from roundelay_speech.transcription.scoring import check_reference

            check_reference(options.ref, [one.name for one in named])

        from roundelay_speech.packed.model import load_model
        from roundelay_speech.transcription.formats import NEEDS_TIMES
        from roundelay_speech.transcription.many import TranscriptFolder, options_of, transcribe_all
        from roundelay_speech.transcription.scoring import scored
        from roundelay_speech.transcription.transcribing import total_seconds

        model = load_model(options.model)
        if options.format in NEEDS_TIMES and not model.gives_times:
            raise UserError(
                f"--format {options.format} needs the times of words, and the model {options.model} gives none: its "
                "columns are units and a blank. Give --format txt, json, srt, vtt or trn."
            )
        _warn(model.caveats)
        how = _options(options, total_seconds(named) or 0.0, _asked(options, model))
        say = complain if options.out is None else console.print
        if options.out is None:
            outcome = transcribe_all(model, named, how, options.format, write, Bar(quiet=True))
        else:
            settings = {"model": model.digest, **options_of(how, options.format)}
            kept = TranscriptFolder(options.out, options.format, settings)
            outcome = transcribe_all(model, named, how, options.format, kept, Bar(quiet=True))
        for line in outcome.report(len(named)):
            say(line)
        if options.ref is not None and outcome.texts:
            from roundelay_speech.packed.transcripts import cleaner_of

            summary, remarks = scored(options.ref, outcome.texts, cleaner_of(model))
            say(str(summary))
            for remark in remarks:
                complain(remark)
    return 1 if outcome.failed else 0


def _stream(options: argparse.Namespace) -> None:
    from contextlib import nullcontext

    from roundelay_speech.transcription.inputs import STANDARD_INPUT

    refused = {"--out": options.out, "--ref": options.ref, "--workers": options.workers}
    if wrong := [name for name, value in refused.items() if value is not None]:
        raise UserError(f"--stream: words go to standard output as they come; leave {', '.join(wrong)} out.")
    if len(options.recordings) > 1 or options.format not in ("txt", "json"):
        raise UserError("--stream: one FILE, or -, and --format txt or json.")
    (name,) = options.recordings
    if options.rate is not None and name != STANDARD_INPUT:
        raise UserError("--rate is of bare samples on standard input: give - for FILE.")

    from roundelay_speech.audio.activity import Cutting
    from roundelay_speech.audio.arriving import Pipe, arriving
    from roundelay_speech.audio.sound import open_sound
    from roundelay_speech.data.problems import Unusable
    from roundelay_speech.packed.model import load_model
    from roundelay_speech.transcription.formats.timed import update_line
    from roundelay_speech.transcription.live import Latencies, Live, delays, heard_in

    model = load_model(options.model)
    _warn(model.caveats)
    channel = {"each": 0, "mix": 0}.get(options.channel, options.channel)
    asked = _asked(options, model)
    complain(delays(model, options.chunk))
    latencies = Latencies()
    cutting = Cutting(options.longest, options.pause, detector=options.detector)
    with (
        nullcontext(arriving(cast(Pipe, sys.stdin.buffer), options.rate))
        if name == STANDARD_INPUT
        else open_sound(Path(name)) as sound
    ):
        try:
            live = Live(model, cutting, latencies, chunk=options.chunk, asked=asked)
            for update in heard_in(live, sound, int(channel)):
                if options.format == "json":
                    write(update_line(update.segment, update.at, final=update.final))
                elif update.final and update.segment.words:
                    write(f"{update.segment.text}\n")
                elif not update.final and console.is_terminal:
                    console.print(f"  {update.segment.text}"[: console.width], end="\r")
        except Unusable as error:
            raise UserError(f"{name}: {error}") from None
    for line in (*(f"{name}: {remark}" for remark in sound.remarks), *latencies.report()):
        complain(line)


def _warn(caveats: list[str]) -> None:
    for caveat in caveats:
        complain(caveat)


def _serve(options: argparse.Namespace) -> int:
    need("serve", "serve")
    check_packed(options.model)
    from roundelay_speech.api.serving import serve

    name = options.model.resolve().name
    return 128 + serve(
        options.model,
        options.host,
        options.port,
        max_megabytes=options.max_megabytes,
        max_minutes=options.max_minutes,
        ready=lambda address: console.print(f"{name} is served at {address} (Ctrl-C ends it)"),
        remark=complain,
    )
