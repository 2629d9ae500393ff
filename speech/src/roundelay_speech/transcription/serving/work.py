"""The work of a process of recognition: one recording to its reply, or one person who speaks, to the end.

The words of a recording may be sent as they are found: as server-sent events, `transcript.text.delta` and
`transcript.text.done`. A delta is the words of an utterance, final, with a blank before them where others came before:
all deltas together are the text. They are the final words of `roundelay transcribe --stream`.

Recordings come in forms as browsers and clients send them: `multipart/form-data` (RFC 7578), read by starlette and
python-multipart. A form is a stranger's: it is read in the process of its recording, so that one which takes for ever,
or too much, is ended with that.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast, final

import torch
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartParser

from roundelay.core.files import json_line
from roundelay.core.streams import stream
from roundelay_speech.audio.activity import Cutting
from roundelay_speech.audio.reading import AudioError
from roundelay_speech.audio.sound import Sound, open_sound
from roundelay_speech.bindings import soundfile
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.problems import Unusable
from roundelay_speech.decode.alternatives import Wishes
from roundelay_speech.packed.model import load_model
from roundelay_speech.transcription.inputs import Recording
from roundelay_speech.transcription.live import Listening, Live, heard_in
from roundelay_speech.transcription.serving.forking import END, PIECE, REPLY_HEAD, TEXT
from roundelay_speech.transcription.serving.speaking import Speaker
from roundelay_speech.transcription.serving.wanted import (
    EVENT_STREAM,
    REPLIES,
    Refused,
    Reply,
    event,
    named,
    refusal,
    wanted,
)
from roundelay_speech.transcription.transcribing import Options, Recogniser, Transcriber
from roundelay_speech.transcription.transcript import ChannelTranscript

MOST_FIELDS, _MOST_OF_A_FIELD = 32, 1 << 16
_READ_AT_ONCE = 1 << 18
_VERBOSE = "response_format=verbose_json"
_AS_IT_IS = ("", "7bit", "8bit", "binary", "identity")
MOST_WORDS = 1000
"""Most words of a model that the page shows."""
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # only the client is told the fault


@final
@dataclass(frozen=True)
class Recognising:
    """A loaded model with options of its use; the `ForkedWorker` of `Recognisers`."""

    model: Recogniser
    options: Options  # of transcribing; one channel, in this process
    # makes a recogniser of live speech: with words so far or, given False, without.
    listen: Callable[[bool, Cutting, Wishes], Listening]
    words: Sequence[str] = ()  # that it knows
    caveats: Sequence[str] = ()  # sentences on its limits, for people

    def facts(self) -> Mapping[str, Any]:
        """Return the facts of the model that the server shows."""
        return {
            "sample_rate": self.model.sample_rate,
            "most_seconds": self.options.most_seconds,
            "words": len(self.words),
            "some_words": self.words[:MOST_WORDS],
            "caveats": self.caveats,
        }

    def work(self, asked: Mapping[str, Any], link: Connection, file: int | None) -> None:
        """Answer a form (`kind` is its Content-Type, the file its body), or recognise live speech (`rate`, and other
        options in `fields`)."""
        if file is None:
            how, unknown = self._options(asked["fields"])
            listening = self.listen(True, how.cutting, how.asked)
            speaker = Speaker(listening, asked["rate"], lambda text: link.send_bytes(TEXT + text.encode()), unknown)
            speaker.listen(iter(link.recv_bytes, b""))
        else:
            with os.fdopen(file, "rb") as body:
                for piece in self._reply(asked["kind"], body):
                    link.send_bytes(piece)
        link.send_bytes(END)

    def _reply(self, kind: str, body: BinaryIO) -> Iterator[bytes]:
        try:
            recording, fields = read_form(kind, body)
            how, unknown = self._options(fields)
            if _is_true(fields.get("stream")):
                yield from self._streamed(recording, how, unknown)
            else:
                yield from self._whole(recording, fields, how, unknown)
        except Refused as refused:
            yield from _pieces(refusal(refused))

    def _options(self, fields: Mapping[str, str]) -> tuple[Options, list[str]]:
        """Return the options wanted, and words to favour that are not in the vocabulary."""
        told = wanted(fields)
        known, unknown = self.model.in_vocabulary(told.favoured)
        usual, asked = self.options.cutting, Wishes(told.strings, tuple(known), told.bonus)
        cutting = replace(usual, pause=told.pause or usual.pause, longest=told.longest or usual.longest)
        return replace(self.options, cutting=cutting, asked=asked), unknown

    def _whole(
        self, recording: BinaryIO, fields: Mapping[str, str], how: Options, unknown: list[str]
    ) -> Iterator[bytes]:
        form = fields.get("response_format", "json").strip()
        if form not in REPLIES:
            raise Refused(HTTPStatus.BAD_REQUEST, f"response_format {form[:40]!r}: there are {', '.join(REPLIES)}.")
        if how.asked.strings and form != "verbose_json":
            raise Refused(HTTPStatus.BAD_REQUEST, f"nbest: {form} has no place for it; give {_VERBOSE}.")
        yield from _pieces(REPLIES[form](self.transcript(recording, how), unknown))

    def transcript(self, recording: BinaryIO, how: Options) -> ChannelTranscript:
        """Transcribe a recording.

        Raises:
            Refused: the recording cannot be used.
        """
        options = replace(how, channel=0, workers=1)
        taken = Recording("recording", _path(recording), "The recording")
        (found,) = Transcriber(self.model, options).run([taken])
        if found.problem:
            raise Refused(HTTPStatus.BAD_REQUEST, found.problem)
        return found.transcripts[0]

    def _streamed(self, recording: BinaryIO, how: Options, unknown: list[str]) -> Iterator[bytes]:
        if how.asked.strings:
            raise Refused(HTTPStatus.BAD_REQUEST, f"nbest: a stream has no place for it; give {_VERBOSE} without.")
        listening = self.listen(False, how.cutting, how.asked)
        events = events_of(_path(recording), listening, how.most_seconds, unknown)
        first = next(events)  # until it is there, the recording may be refused
        yield _head(HTTPStatus.OK, EVENT_STREAM)
        yield PIECE + first
        for one in events:
            yield PIECE + one


def _path(recording: BinaryIO) -> Path:
    """Return a path to a file without a name, for this process and a program that reads in its place."""
    return Path(f"/proc/{os.getpid()}/fd/{recording.fileno()}")


def _pieces(reply: Reply) -> Iterator[bytes]:
    yield _head(reply.status, reply.kind, len(reply.body))
    yield PIECE + reply.body


def _head(status: HTTPStatus, kind: str, length: int | None = None) -> bytes:
    return REPLY_HEAD + json_line({"status": status, "kind": kind, "length": length}).encode()


def _is_true(text: str | None) -> bool:
    said = (text or "").strip().lower()
    if said not in ("true", "1", "false", "0", ""):
        raise Refused(HTTPStatus.BAD_REQUEST, f"stream {text!r}: give true or false.")
    return said in ("true", "1")


def recognising(folder: Path, most_seconds: float) -> Recognising:
    """Load the packed model in a folder, and use it once, so that all forks share everything made by that.

    Raises:
        UserError: no such model.
    """
    torch.set_num_threads(1)
    model = load_model(folder)
    words = [word for word in model.lexicon.words if not word.startswith("<")]
    options = Options(most_seconds=most_seconds)

    def listen(so_far: bool, cutting: Cutting, asked: Wishes) -> Live:
        return Live(model, cutting, so_far=so_far, asked=asked)

    found = Recognising(model, options, listen, words, model.caveats)
    # Half a second of noise, in which some models find words: no fork has to make the parts made at first use.
    with tempfile.TemporaryFile() as file:
        noise = stream(0, "first use").normal(0, 0.1, model.sample_rate // 2)
        soundfile.write(file, noise, model.sample_rate, format="WAV", subtype="PCM_16")
        file.flush()
        found.transcript(file, options)
    return found


def events_of(path: Path, listening: Listening, most_seconds: float, unknown: list[str]) -> Iterator[bytes]:
    """Yield the events of a recording's words; the last has its length, and words that could not be favoured.

    Raises:
        Refused: the recording cannot be used; once events were sent, the error is the last event instead.
    """
    text, length = "", _Length()
    try:
        with open_sound(path) as sound:
            for update in heard_in(listening, _at_most(sound, most_seconds, length)):
                if update.final and update.segment.words:
                    delta = f"{' ' if text else ''}{update.segment.text}"
                    text += delta
                    yield event({"type": "transcript.text.delta", "delta": delta})
    except AudioError as error:
        why = str(error).replace(str(path), "The recording")
        if not text:
            raise Refused(HTTPStatus.BAD_REQUEST, why) from None
        yield event({"type": "error", "error": {"message": why}})
        return
    done = {"type": "transcript.text.done", "text": text, "duration": round(length.seconds, 3)}
    yield event({**done, **named(unknown)})


@dataclass
class _Length:
    seconds: float = 0.0


def _at_most(sound: Sound, seconds: float, length: _Length) -> Sound:
    def blocks() -> Iterator[Samples]:
        taken = 0
        for block in sound.blocks:
            taken += len(block)
            if max(taken, sound.samples or 0) > seconds * sound.rate:
                raise Unusable(f"lasts longer than {seconds:g} s, the most that is transcribed")
            length.seconds = taken / sound.rate
            yield block

    return replace(sound, blocks=blocks())


def read_form(kind: str, body: BinaryIO) -> tuple[BinaryIO, Mapping[str, str]]:
    """Parse a form; return the recording, field `file`, as a file without a name, and the other fields by name (the
    last of equal names).

    Args:
        kind: Content-Type of the form.

    Raises:
        Refused: the body is no form, or a broken one, or has no recording.
    """
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send multipart/form-data, with the recording as `file`.")
    headers = Headers({"content-type": kind})
    parser = MultiPartParser(
        headers, _read_pieces(body), max_files=1, max_fields=MOST_FIELDS, max_part_size=_MOST_OF_A_FIELD
    )
    try:
        form = asyncio.run(parser.parse())
    except Exception as error:  # any error that a stranger's form causes in its reader
        raise Refused(HTTPStatus.BAD_REQUEST, f"The form is broken: {str(error) or type(error).__name__}") from None
    file = form.get("file")
    if isinstance(file, str):
        raise Refused(HTTPStatus.BAD_REQUEST, "`file` is text without a file name; send it as a file: -F file=@NAME.")
    if file is None or not file.size:
        raise Refused(HTTPStatus.BAD_REQUEST, "The form has no `file`, or an empty one, or ends within it.")
    if file.headers.get("content-transfer-encoding", "").strip().lower() not in _AS_IT_IS:
        raise Refused(HTTPStatus.BAD_REQUEST, "`file` has a Content-Transfer-Encoding. Send its bytes as they are.")
    return _on_disk(file), {name: value for name, value in form.items() if isinstance(value, str)}


async def _read_pieces(body: BinaryIO) -> AsyncGenerator[bytes, None]:
    while piece := body.read(_READ_AT_ONCE):
        yield piece


def _on_disk(upload: UploadFile) -> BinaryIO:
    spooled = cast("SpooledTemporaryFile[bytes]", upload.file)  # a small one has no descriptor yet
    spooled.rollover()
    spooled.flush()
    return upload.file
