"""Formats of transcripts by name: each a function from one transcript to text."""

from collections.abc import Callable, Mapping

from roundelay_speech.transcription.formats.subtitles import srt, vtt
from roundelay_speech.transcription.formats.timed import ctm, json_document, textgrid
from roundelay_speech.transcription.formats.words import trn, txt
from roundelay_speech.transcription.transcript import ChannelTranscript

FORMATS: Mapping[str, Callable[[ChannelTranscript], str]] = {
    "txt": txt,
    "json": json_document,
    "ctm": ctm,
    "srt": srt,
    "vtt": vtt,
    "trn": trn,
    "TextGrid": textgrid,
}
"""Formats by name, which is also the ending of their files."""
ALONE = frozenset({"srt", "vtt", "TextGrid"})
"""Formats of which a file holds one transcript; the others may be joined."""
TIMED = frozenset(FORMATS) - {"txt", "trn"}
"""Formats with the times of words."""
NEEDS_TIMES = frozenset({"ctm", "TextGrid"})
"""Formats that need times, and are refused if a model gives none."""
