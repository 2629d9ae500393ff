"""A folder of transcripts that grows file by file: what is there and whole is not made again.

DIR/NAME.FORMAT     a transcript
DIR/settings.json   model, format and options: other ones need another folder
DIR/done.jsonl      a line for each recording: its size and time of change, its transcripts and their checksums
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from roundelay.core.checksums import checksum, file_checksum
from roundelay.core.errors import UserError
from roundelay.core.files import json_line, read_json, sweep, unwritable, write_json, write_text
from roundelay_speech.transcription.formats import FORMATS
from roundelay_speech.transcription.inputs import Recording
from roundelay_speech.transcription.transcript import ChannelTranscript

SETTINGS, DONE = "settings.json", "done.jsonl"


@final
@dataclass(frozen=True)
class KeptText:
    """A transcript that was there: its words, and the file's name in the folder."""

    name: str
    text: str
    file: str
    checksum: str


@final
class TranscriptFolder:
    """A folder of transcripts in one format.

    Args:
        folder: where; made where it is not there.
        extension: name of the format.
        settings: whatever decides what is in a transcript.

    Raises:
        UserError: it holds transcripts made with other settings; names the first that differs.
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
        """Return the transcripts of a recording, if all are there as they were written and it has not changed since."""
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
        """Write the transcripts of a recording, then its line.

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
