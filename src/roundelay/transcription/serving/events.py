"""The words of a recording as they are found: server-sent events, `transcript.text.delta` and `transcript.text.done`.

A delta is the words of an utterance, final, with a blank before them where others came before: all deltas together are
the text. They are the final words of `roundelay transcribe --stream`.
"""

from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from roundelay.speech.audio.reading import AudioError, Samples
from roundelay.speech.audio.sound import Sound, open_sound
from roundelay.speech.data.problems import Unusable
from roundelay.transcription.live import Listening, heard_in
from roundelay.transcription.serving.limits import Refused
from roundelay.transcription.serving.replies import event


def events_of(path: Path, listening: Listening, most_seconds: float) -> Iterator[bytes]:
    """Events of the recording in a file.

    Raises:
        Refused: it cannot be used; later, this is the last event.
    """
    text = ""
    try:
        with open_sound(path) as sound:
            for update in heard_in(listening, _at_most(sound, most_seconds)):
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
    yield event({"type": "transcript.text.done", "text": text})


def _at_most(sound: Sound, seconds: float) -> Sound:
    def blocks() -> Iterator[Samples]:
        taken = 0
        for block in sound.blocks:
            taken += len(block)
            if max(taken, sound.samples or 0) > seconds * sound.rate:
                raise Unusable(f"lasts longer than {seconds:g} s, the most that is transcribed")
            yield block

    return replace(sound, blocks=blocks())
