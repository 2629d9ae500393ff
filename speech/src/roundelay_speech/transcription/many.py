"""One call of `roundelay transcribe`: a list of recordings into a folder or onto standard output.
What is there in a folder and whole is not made again:

DIR/NAME.FORMAT     a transcript
DIR/settings.json   model, format and options: other ones need another folder
DIR/done.jsonl      a line for each recording: its size and time of change, its transcripts and their checksums
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from roundelay.core.checksums import checksum, file_checksum
from roundelay.core.errors import UserError
from roundelay.core.files import json_line, read_json, sweep, unwritable, write_json, write_text
from roundelay.core.progress import Progress
from roundelay_speech.data.problems import counted
from roundelay_speech.decode.alternatives import Wishes
from roundelay_speech.transcription.formats import ALONE, FORMATS, TIMED
from roundelay_speech.transcription.inputs import Recording
from roundelay_speech.transcription.transcribing import Finished, Options, Recogniser, SpeakerIs, Transcriber
from roundelay_speech.transcription.transcript import ChannelTranscript

SETTINGS, DONE = "settings.json", "done.jsonl"


@final
@dataclass(frozen=True)
class KeptText:
    """A transcript that already existed: its words, and its file's name in the folder."""

    name: str
    text: str
    file: str
    checksum: str


@final
class TranscriptFolder:
    """A folder of transcripts in one format.

    Args:
        folder: the folder, made if it does not exist.
        extension: name of the format.
        settings: all settings that decide the content of a transcript.

    Raises:
        UserError: the folder holds transcripts made with other settings; names the first that differs.
    """

    def __init__(self, folder: Path, extension: str, settings: dict[str, Any]) -> None:
        self._folder, self._extension = folder, extension
        path, wanted = folder / SETTINGS, json.loads(json_line({"format": extension, **settings}))
        if path.is_file():
            there = read_json(path)
            there = there if isinstance(there, dict) else {}
            if differs := [key for key in {**wanted, **there} if wanted.get(key) != there.get(key)]:
                key = differs[0]
                raise UserError(
                    f"{folder}: its transcripts were made with {key} {there.get(key)}, not {wanted.get(key)}. Give "
                    "another --out, or remove that folder."
                )
        else:
            write_json(path, wanted)
        sweep(folder)
        self._done = self._read()

    def whole(self, recording: Recording) -> list[KeptText] | None:
        """Return the transcripts of a recording, if all exist unchanged and the recording has not changed since; else
        None."""
        line = self._done.get(recording.name)
        try:
            if line is None or line["recording"] != _identity(recording.path):
                return None
            kept = [KeptText(**one) for one in line["transcripts"]]
            whole = all(file_checksum(self._folder / one.file) == one.checksum for one in kept)
        except (OSError, KeyError, TypeError):
            return None
        return kept if whole else None

    def write(self, recording: Recording, transcripts: Sequence[ChannelTranscript]) -> None:
        """Write the transcripts of a recording, then its line in the list of finished ones.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        kept = []
        for transcript in transcripts:
            text, file = FORMATS[self._extension](transcript), f"{transcript.name}.{self._extension}"
            write_text(self._folder / file, text)
            kept.append(
                {"name": transcript.name, "text": transcript.text, "file": file, "checksum": checksum(text.encode())}
            )
        line = {"name": recording.name, "recording": _identity(recording.path), "transcripts": kept}
        path = self._folder / DONE
        try:
            with open(path, "a+b") as file_of_lines:
                # A line that a kill has torn is closed, so that the next one stands alone.
                torn = file_of_lines.tell() and _last_byte(path) != b"\n"
                file_of_lines.write(b"\n" * bool(torn) + json_line(line).encode() + b"\n")
        except OSError as error:
            raise unwritable(path, error) from error

    def _read(self) -> dict[str, dict[str, Any]]:
        path = self._folder / DONE
        if not path.is_file():
            return {}
        found = {}
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
                found[str(line["name"])] = line
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # torn: that recording is transcribed again
        return found


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _last_byte(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


ENOUGH_FOR_PROCESSES = 600.0
"""Seconds of audio from which on worker processes save more time than they take to start."""


@final
@dataclass(eq=False)
class CallResult:
    """The results of one call of `roundelay transcribe`."""

    # words by name of the transcript, those that were there already included.
    texts: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)  # recordings that could not be used
    notes: list[str] = field(default_factory=list)  # on others
    kept: int = 0  # recordings that were there already
    seconds: float = 0.0  # of audio that was heard now, all channels together
    speech: float = 0.0  # seconds of it that were recognised, pauses left out
    real_time_factor: float = 0.0  # seconds of one core per second of that audio

    def report(self, recordings: int) -> list[str]:
        """Return lines for people: remarks, amount and speed of the work, failures."""
        lines = [*self.notes[:5], *([f"... and {len(self.notes) - 5} more"] if len(self.notes) > 5 else [])]
        done = f"{counted(recordings, 'recording')}"
        done += f", {self.kept} of them transcribed before" if self.kept else ""
        if self.seconds:
            pauses = f", {self.speech:,.1f} s of them speech," if self.speech < 0.999 * self.seconds else ""
            done += f"; {self.seconds:,.1f} s of audio{pauses} at {self.real_time_factor:.3f} x real time on one core"
        lines.append(done)
        if self.failed:
            lines.append(f"{len(self.failed)} of {counted(recordings, 'recording')} could not be transcribed:")
            lines += [f"  {problem}" for problem in self.failed]
        return lines


def transcribe_all(
    model: Recogniser,
    recordings: Sequence[Recording],
    options: Options,
    name: str,
    to: TranscriptFolder | Callable[[str], None],
    progress: Progress,
) -> CallResult:
    """Transcribe all recordings; failures are in the result.

    Args:
        name: name of the format.
        to: a folder, in which finished transcripts are kept; or a function that takes text.

    Raises:
        UserError: several recordings cannot follow each other in this format.
    """
    result, pending = CallResult(), recordings
    if isinstance(to, TranscriptFolder):
        pending = _pending(recordings, to, options.speaker, result)
    elif name in ALONE and len(recordings) > 1:
        raise UserError(f"--format {name}: a file holds one transcript. Give --out DIR for a file for each recording.")
    transcriber = Transcriber(model, options)
    for one in transcriber.run(pending, progress):
        if one.note:
            result.notes.append(one.note)
        if one.problem:
            result.failed.append(one.problem)
            continue
        result.texts |= {transcript.name: transcript.text for transcript in one.transcripts}
        if isinstance(to, TranscriptFolder):
            to.write(one.recording, one.transcripts)
        else:
            to(_shown(one, name, several=len(recordings) > 1))
    result.seconds, result.speech = transcriber.heard, transcriber.seconds
    result.real_time_factor = transcriber.real_time_factor
    return result


def _shown(one: Finished, name: str, *, several: bool) -> str:
    """Return the transcripts of a recording in a format, one after the other; plain text is preceded by names if there
    are several."""
    if name in ALONE and len(one.transcripts) > 1:
        channels = ", ".join(str(transcript.channel) for transcript in one.transcripts)
        raise UserError(
            f"{one.recording.source}: --format {name}: a file holds one transcript, and channels {channels} are "
            "transcribed. Give --channel, or --out DIR for a file for each."
        )
    if name != "txt" or not (several or len(one.transcripts) > 1):
        return "".join(FORMATS[name](transcript) for transcript in one.transcripts)
    return "".join(f"{transcript.name}: {transcript.text}\n" for transcript in one.transcripts)


def _pending(
    recordings: Sequence[Recording], folder: TranscriptFolder, speaker: SpeakerIs, result: CallResult
) -> list[Recording]:
    """Return the recordings that are not in the folder, with all others whose speech is normalised together with
    theirs."""

    def group(recording: Recording) -> str:
        return {"file": recording.name, "folder": str(recording.path.parent), "all": ""}[speaker]

    there = {recording.name: folder.whole(recording) for recording in recordings}
    lacking = {group(recording) for recording in recordings if there[recording.name] is None}
    for recording in recordings:
        if group(recording) not in lacking:
            result.kept += 1
            result.texts |= {one.name: one.text for one in there[recording.name] or ()}
    return [recording for recording in recordings if group(recording) in lacking]


def options_of(options: Options, name: str) -> dict[str, object]:
    """Return the settings, besides the model, that decide the content of a transcript, for `TranscriptFolder`."""
    cutting = options.cutting
    return {
        "channel": options.channel,
        "speaker": options.speaker,
        "longest": cutting.longest,
        "pause": cutting.pause,
        "detector": cutting.detector,
        "times": name in TIMED,
        **_asked(options.asked),
    }


def _asked(asked: Wishes) -> dict[str, object]:
    """Return the wishes for the search as settings; empty if there are none, so that folders of earlier versions stay
    valid."""
    told: dict[str, object] = {"nbest": asked.strings} if asked.strings else {}
    return {**told, "favour": list(asked.favoured), "bonus": asked.bonus} if asked.favoured else told
