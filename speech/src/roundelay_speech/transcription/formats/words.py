"""Formats without times: txt, a line a segment; and trn, a line a recording, as sclite reads it."""

from roundelay_speech.scoring.formats.trn import trn_line
from roundelay_speech.transcription.transcript import ChannelTranscript


def txt(transcript: ChannelTranscript) -> str:
    """Return a transcript as text: the words of each segment that has any, a line each."""
    return "".join(f"{segment.text}\n" for segment in transcript.segments if segment.words)


def trn(transcript: ChannelTranscript) -> str:
    """Return a transcript as a line of a trn file, `words (name)`."""
    return trn_line(transcript.source, transcript.name, [word.word for word in transcript.words])
