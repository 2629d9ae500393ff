"""A recogniser that waits until it may go on, and somebody who asks its server."""

import http.client
import io
import json
import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import soundfile

from support.recogniser import Heard, Samples, ToneRecogniser, tones

RATE = 8000


class HeldRecogniser(ToneRecogniser):
    """Says when it has begun, and ends only when it is let go on."""

    def __init__(self) -> None:
        super().__init__(RATE)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def recognise_many(
        self, recordings: Iterable[tuple[str, Sequence[Samples]]], workers: int = 0, *, times: bool = True
    ) -> Iterator[tuple[str, list[Heard]]]:
        self.begun.set()
        self.go_on.wait()
        yield from super().recognise_many(recordings, workers, times=times)


def asked(port: int) -> tuple[int, str]:
    """Status and words of a recording that says LOW, or why it was refused."""
    sound = io.BytesIO()
    soundfile.write(sound, np.asarray(tones(["LOW"], RATE)), RATE, format="WAV", subtype="PCM_16")
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body += sound.getvalue() + b"\r\n--x--\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/audio/transcriptions", body, {"Content-Type": "multipart/form-data; boundary=x"})
    reply = connection.getresponse()
    said = json.loads(reply.read())
    return reply.status, said["text"] if "text" in said else said["error"]["message"]
