"""Serves until a signal ends it: SIGINT or SIGTERM, also where a shell has started it in the background with SIGINT
ignored."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from roundelay.core.errors import UserError
from roundelay.transcription.serving.endpoint import Endpoint
from roundelay.transcription.serving.http import Limits, listen
from roundelay.transcription.serving.replies import refusal

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
@dataclass(frozen=True)
class ServingPlace:
    """Address that is listened on, with the limits of what is sent there, and the folder that recordings are kept in
    while they are recognised; port 0: any that is free."""

    host: str
    port: int
    limits: Limits
    folder: Path


def serve(
    endpoint: Endpoint, place: ServingPlace, ready: Callable[[int], None], remark: Callable[[str], None]
) -> signal.Signals:
    """Serve until a signal comes, which is returned. The recording at hand is finished and answered; recordings that
    wait are refused. A second signal ends the process at once.

    Args:
        ready: told the port.
        remark: told what is waited for.

    Raises:
        UserError: the address cannot be listened on.
    """
    ended: list[signal.Signals] = []

    async def until_a_signal() -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.current_task()
        assert serving is not None

        def end(number: signal.Signals) -> None:
            if ended:
                shutil.rmtree(place.folder, ignore_errors=True)
                os._exit(128 + number)
            ended.append(number)
            if endpoint.at_hand:
                remark(f"ending once {endpoint.at_hand} is recognised; the same again ends it at once.")
            endpoint.end()
            serving.cancel()

        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, end, number)
        await listen(place.host, place.port, place.limits, endpoint.answer, refusal, ready)

    try:
        asyncio.run(until_a_signal())
    except asyncio.CancelledError:
        return ended[0]
    except OSError as error:
        raise UserError(
            f"{place.host}:{place.port} cannot be listened on ({error.strerror or error}). Give another --port, or "
            "end what uses it."
        ) from None
    raise AssertionError("nobody ended it")
