"""Transcription from Python: transcribe, serve."""

import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.extras import load, need
from roundelay.core.progress import Progress
from roundelay.packed.model import Model, load_model
from roundelay.terminal import Bar
from roundelay.transcription.inputs import recordings
from roundelay.transcription.live import Live
from roundelay.transcription.serving.endpoint import Endpoint, Service
from roundelay.transcription.serving.http import Limits
from roundelay.transcription.serving.serve import ServingPlace
from roundelay.transcription.serving.serve import serve as serve_until_a_signal
from roundelay.transcription.transcribing import Finished, Options, Transcriber

TRANSCRIBING = Options()


def transcribe(
    model: Path | str | Model, *files: Path | str, options: Options = TRANSCRIBING, progress: Progress | None = None
) -> list[Finished]:
    """Recognise recordings of any kind and length with a packed model.

    Args:
        model: the folder of one, or what `load_model` gave.
        files: recordings, folders of them, or lists.
        options: channels, speakers, cutting and processes.

    Returns:
        For each recording its `transcripts` by channel, with text, words and times; or in `problem` what is wrong with
        it.

    Raises:
        UserError: no such model; there is no recording.
    """
    need("speech", "transcribe")
    loaded = model if isinstance(model, Model) else load_model(Path(model))
    return list(Transcriber(loaded, options).run(recordings([str(file) for file in files]), progress or Bar()))


def serve(
    model: Path | str | Model,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    max_megabytes: int = 100,
    max_minutes: float = 60.0,
    ready: Callable[[str], None] = print,
    remark: Callable[[str], None] = print,
) -> signal.Signals:
    """Serve a packed model until SIGINT or SIGTERM, which is returned: a page, and an endpoint for clients. From the
    main thread of a program; a notebook's own loop leaves no room for it.

    Args:
        model: the folder of one, or what `load_model` gave.
        host: to listen on. Elsewhere than on this machine anybody may ask, unencrypted.
        port: 0 for any that is free.
        max_megabytes: of a recording, as a file.
        max_minutes: of a recording, played.
        ready: told the address of the page.
        remark: told what is waited for at the end.

    Raises:
        UserError: no such model; the address cannot be listened on.
    """
    need("speech", "serve")
    load("wsproto", "speech", "serve")
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: there are ports up to 65535.")
    loaded = model if isinstance(model, Model) else load_model(Path(model))
    # What people say is recognised beside recordings, by searches of its own; networks and graph are read only.
    beside = replace(loaded)

    def told(found: int) -> None:
        ready(f"http://{f'[{host}]' if ':' in host else host}:{found}/")

    with tempfile.TemporaryDirectory(prefix="roundelay-") as folder:
        service = Service(
            loaded,
            loaded.folder.resolve().name,
            Options(most_seconds=60 * max_minutes),
            lambda so_far: Live(beside, so_far=so_far),
            host,
            Path(folder),
        )
        place = ServingPlace(host, port, Limits(body=max_megabytes << 20), Path(folder))
        return serve_until_a_signal(Endpoint(service), place, told, remark)
