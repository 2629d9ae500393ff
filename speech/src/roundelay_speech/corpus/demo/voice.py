"""The one place that loads espeak-ng (GPL-3, from the extra `roundelay[demo]`), in a process of its own.

    python -m roundelay_speech.corpus.demo.voice < requests > replies

A request is a line of JSON: {"file", "text", "voice", "rate", "pitch"}. Each makes a 16-bit mono WAV file and a line of
reply: {"file", "sampling_rate", "samples", "phones": [[name, first sample], ...],
"words": [[place in text, length, first sample], ...]}.

The library carries state from one sentence to the next, so a sentence is repeatable only as part of the same requests
in the same order in a fresh process. Nothing of Roundelay is imported: this program speaks JSON and WAV only.
"""

import ctypes
import json
import sys
import wave
from pathlib import Path
from typing import Any

import espeakng_loader

# speak_lib.h
_SYNCHRONOUS = 2
_PHONEME_EVENTS_DONT_EXIT = 0x0001 | 0x8000
_RATE, _PITCH = 1, 3
_BY_CHARACTER, _UTF8 = 1, 1
_EVENT_END, _EVENT_WORD, _EVENT_PHONEME = 0, 1, 7


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Voice:
    """The initialised library of the synthesiser, one per process."""

    def __init__(self) -> None:
        self.data = Path(espeakng_loader.get_data_path())
        self.library = ctypes.CDLL(str(espeakng_loader.get_library_path()))
        self.sampling_rate: int = self.library.espeak_Initialize(
            _SYNCHRONOUS, 200, str(self.data).encode(), _PHONEME_EVENTS_DONT_EXIT
        )
        if self.sampling_rate <= 0:
            raise RuntimeError(f"espeak-ng cannot start with its data in {self.data}")
        self.samples: list[bytes] = []
        self.phones: list[tuple[str, int]] = []
        self.words: list[tuple[int, int, int]] = []
        self.callback = _CALLBACK(self._receive)  # kept: the library holds only its address
        self.library.espeak_SetSynthCallback(self.callback)

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self.samples.append(ctypes.string_at(samples, 2 * count))
        i = 0
        while events[i].type != _EVENT_END:
            event = events[i]
            if event.type == _EVENT_PHONEME:
                self.phones.append((bytes(event.id.string).split(b"\0")[0].decode(), event.sample))
            elif event.type == _EVENT_WORD:
                self.words.append((event.text_position - 1, event.length, event.sample))
            i += 1
        return 0

    def _check_variant(self, variant: str) -> None:
        path = self.data / "voices" / "!v" / variant
        # The library takes an unknown variant for none, without a word.
        if not path.is_file():
            raise RuntimeError(f"espeak-ng has no voice variant {variant}")
        # Measured: all variants with breath noise, and only they, differ from process to process.
        if any(line.startswith("breath") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()):
            raise RuntimeError(f"the voice variant {variant} has breath noise, which espeak-ng does not repeat")

    def say(self, text: str, voice: str, rate: int, pitch: int) -> bytes:
        """Speak a text; return 16-bit samples, and leave its events in `phones` and `words`."""
        self.samples, self.phones, self.words = [], [], []
        variant = voice.partition("+")[2]
        if variant:
            self._check_variant(variant)
        encoded = text.encode() + b"\0"
        results = (
            self.library.espeak_SetVoiceByName(voice.encode()),
            self.library.espeak_SetParameter(_RATE, rate, 0),
            self.library.espeak_SetParameter(_PITCH, pitch, 0),
            self.library.espeak_Synth(encoded, len(encoded), 0, _BY_CHARACTER, 0, _UTF8, None, None),
        )
        if any(results) or not self.samples:
            raise RuntimeError(f"espeak-ng cannot say {text!r} as {voice} (results {results})")
        return b"".join(self.samples)


def main() -> None:
    """Write a wave file for each request on standard input, a line of JSON with text, voice, rate, pitch and file;
    answer each by a line of JSON with its phones and words."""
    voice = Voice()
    for line in sys.stdin:
        request = json.loads(line)
        samples = voice.say(request["text"], request["voice"], request["rate"], request["pitch"])
        with wave.open(request["file"], "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(voice.sampling_rate)
            file.writeframes(samples)
        reply = {
            "file": request["file"],
            "sampling_rate": voice.sampling_rate,
            "samples": len(samples) // 2,
            "phones": voice.phones,
            "words": voice.words,
        }
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
