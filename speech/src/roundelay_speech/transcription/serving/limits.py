"""Limits of what clients may ask for, and the error of those who ask for more."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import final


@final
@dataclass(frozen=True)
class Limits:
    """Limits of a server."""

    body: int = 100 << 20  # bytes of a request
    bodies: int = 400 << 20  # bytes of all requests together, while they are held
    head_seconds: float = 10.0  # that a request may take to say what it wants
    body_seconds: float = 300.0  # that the rest of it may take
    seconds: float = 30.0  # that a client may send nothing, or take nothing, of what is awaited
    work_seconds: float = 660.0  # that a recording may be recognised
    connections: int = 64  # at a time
    of_an_address: int = 24  # connections of one address
    recordings: int = 8  # that are recognised at a time
    speakers: int = 4  # people who speak at a time


USUAL_LIMITS = Limits()


class Refused(Exception):
    """The request cannot be answered."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
