"""Limits of what clients may ask for, and the error of those who ask for more."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import final


@final
@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body: bytes of a request.
        bodies: bytes of all requests together, while they are held.
        head_seconds: that a request may take to say what it wants.
        body_seconds: that the rest of it may take.
        seconds: that a client may send nothing, or take nothing, of what is awaited.
        work_seconds: that a recording may be recognised.
        connections: at a time.
        of_an_address: connections of one address.
        recordings: that are recognised at a time.
        speakers: people who speak at a time.
    """

    body: int = 100 << 20
    bodies: int = 400 << 20
    head_seconds: float = 10.0
    body_seconds: float = 300.0
    seconds: float = 30.0
    work_seconds: float = 660.0
    connections: int = 64
    of_an_address: int = 24
    recordings: int = 8
    speakers: int = 4


USUAL_LIMITS = Limits()


class Refused(Exception):
    """The request cannot be answered."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
