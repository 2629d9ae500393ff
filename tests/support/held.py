"""A recogniser that waits until it may go on, and a client of its server."""

import http.client
import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from roundelay_speech.decode.alternatives import WORDS_ALONE, Wishes
from roundelay_speech.transcription.serving.work import Recognising
from roundelay_speech.transcription.transcribing import Options
from support.recogniser import Heard, Samples, ToneRecogniser, listen, tones

RATE = 8000


class HeldRecogniser(ToneRecogniser):
    """A recogniser that reports its beginning by a file, one for each process, in a folder; a recording of two words
    ends only once there is a file `go_on`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(RATE)
        self.folder = folder

    def recognise_many(
        self,
        recordings: Iterable[tuple[str, Sequence[Samples]]],
        workers: int = 0,
        *,
        times: bool = True,
        asked: Wishes = WORDS_ALONE,
    ) -> Iterator[tuple[str, list[Heard]]]:
        found = list(super().recognise_many(recordings, workers, times=times))
        (self.folder / str(os.getpid())).touch()
        while any(len(heard.words) > 1 for _, some in found for heard in some) and not (self.folder / "go_on").exists():
            time.sleep(0.01)
        yield from found


def held_worker(folder: Path) -> Recognising:
    """Return a worker of a server with a recogniser that waits for files in `folder`."""
    return Recognising(HeldRecogniser(folder), Options(), listen(RATE))


def begun(folder: Path) -> list[int]:
    """Return the ids of processes that have begun to recognise."""
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def form(words: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """Return a recording of these words as a form: body and headers."""
    sound = io.BytesIO()
    soundfile.write(sound, np.asarray(tones(words, RATE)), RATE, format="WAV", subtype="PCM_16")
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return body + sound.getvalue() + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


def asked(port: int, words: Sequence[str] = ("LOW", "TOP")) -> tuple[int, str]:
    """Send a recording to the server; return the status, and the words heard or the reason of a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/audio/transcriptions", *form(words))
    reply = connection.getresponse()
    said = json.loads(reply.read())
    return reply.status, said["text"] if "text" in said else said["error"]["message"]
