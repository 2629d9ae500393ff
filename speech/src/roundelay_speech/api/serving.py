"""Serving from Python: serve. The server itself loads no torch: its processes do."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay_speech.packed.given import model_folder

if TYPE_CHECKING:
    from roundelay_speech.packed.model import Model
    from roundelay_speech.transcription.serving.work import Recognising


def serve(
    model: "Path | str | Model",
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    max_megabytes: int = 100,
    max_minutes: float = 60.0,
    ready: Callable[[str], None] = print,
    remark: Callable[[str], None] = print,
) -> signal.Signals:
    """Serve a packed model until SIGINT or SIGTERM, which is returned: a page, and an endpoint for clients. From the
    main thread of a program; a notebook's own loop leaves no room for it. The model is loaded in a process of its own.

    Args:
        model: the folder of a packed model, or the result of `load_model` from there.
        host: address to listen on. On any but this machine's own, all clients may connect, unencrypted.
        port: port to listen on; 0: any free one.
        max_megabytes: largest size of a recording's file.
        max_minutes: longest duration of a recording. It may be recognised for a minute, and ten seconds more for each
            of these.
        ready: called with the address of the page.
        remark: called with sentences on the model's limits, and on work waited for at the end.

    Raises:
        UserError: no such model; the address cannot be listened on.
    """
    need("serve", "serve")
    # Modules that only servers need are loaded by them alone.
    from roundelay_speech.transcription.serving.endpoint import Endpoint  # noqa: PLC0415
    from roundelay_speech.transcription.serving.recognisers import Recognisers  # noqa: PLC0415
    from roundelay_speech.transcription.serving.serve import listening  # noqa: PLC0415
    from roundelay_speech.transcription.serving.serve import serve as serve_until_a_signal  # noqa: PLC0415
    from roundelay_speech.transcription.serving.wanted import Limits  # noqa: PLC0415

    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: there are ports up to 65535.")
    folder = model_folder(model) if isinstance(model, Path | str) else model.folder

    def told(found: int) -> None:
        ready(f"http://{f'[{host}]' if ':' in host else host}:{found}/")

    sockets = listening(host, port)
    try:
        recognisers = Recognisers(partial(_recognising, folder.resolve(), 60 * max_minutes))
    except BaseException:
        for one in sockets:
            one.close()
        raise
    try:
        body = max_megabytes << 20
        limits = Limits(body=body, bodies=4 * body, work_seconds=60 + 10 * max_minutes)
        for caveat in recognisers.facts["caveats"]:
            remark(caveat)
        endpoint = Endpoint(recognisers, folder.resolve().name, limits, host)
        return serve_until_a_signal(endpoint, sockets, told, remark, recognisers.close)
    finally:
        recognisers.close()


def _recognising(folder: Path, most_seconds: float) -> "Recognising":
    from roundelay_speech.transcription.serving.work import recognising  # noqa: PLC0415  loads torch

    return recognising(folder, most_seconds)
