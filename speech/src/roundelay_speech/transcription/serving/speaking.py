"""Words of live speech, over a connection: samples in one direction, words in the other.

The client sends messages of 16-bit samples of one channel, lowest byte first, and at the end the text
`{"type": "end"}`. It is sent texts of JSON: `transcript.text.partial`, the words so far of the present segment;
`transcript.text.segment`, its final words, with times and confidences; and at the end `transcript.text.done`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from roundelay.core.files import json_line, parse_json
from roundelay_speech.audio.speed import Resampler
from roundelay_speech.transcription.formats.timed import as_segment
from roundelay_speech.transcription.serving.wanted import named

if TYPE_CHECKING:  # they load torch, which the server does without
    from roundelay_speech.transcription.live import Listening, Update

SAMPLE_BYTES = 2
"""Number of bytes of a sample."""


@final
@dataclass
class Speaker:
    """A client that sends live speech."""

    listening: "Listening"  # the recogniser, of this client alone
    rate: int  # of the samples that come, Hz
    tell: Callable[[str], None]  # sends a text
    unknown: list[str] = field(default_factory=list)  # words that cannot be favoured
    _said: list[str] = field(default_factory=list)

    def listen(self, messages: Iterable[bytes]) -> None:
        """Recognise messages of samples to their end, and send their words."""
        resampler, taken = Resampler(self.rate, self.listening.sample_rate), 0
        for message in messages:
            samples = np.frombuffer(message, "<i2").astype(np.float32) / np.float32(32768)
            taken += len(samples)
            self._hear(self.listening.push(resampler.push(samples)))
        self._hear(self.listening.push(resampler.finish()))
        self._hear(self.listening.finish())
        text, seconds = " ".join(filter(None, self._said)), round(taken / self.rate, 3)
        self._tell({"type": "transcript.text.done", "text": text, "duration": seconds, **named(self.unknown)})

    def _hear(self, updates: "Iterable[Update]") -> None:
        for update in updates:
            if update.final:
                self._tell({"type": "transcript.text.segment", **as_segment(len(self._said), update.segment)})
                self._said.append(update.segment.text)
            else:
                self._tell({"type": "transcript.text.partial", "at": round(update.at, 3), "text": update.segment.text})

    def _tell(self, event: dict[str, Any]) -> None:
        self.tell(json_line(event))


def is_end(message: str) -> bool:
    """Return True if a text message ends the samples."""
    try:
        told = parse_json(message)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("type") == "end"
