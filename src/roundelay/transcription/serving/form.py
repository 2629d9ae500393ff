"""Forms as browsers and clients send them: `multipart/form-data` (RFC 7578)."""

import email.parser
import email.policy
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import final

from roundelay.transcription.serving.http import Refused

_MOST_FIELDS = 32
_HEADERS = email.parser.BytesHeaderParser(policy=email.policy.HTTP)


@final
@dataclass(frozen=True)
class Field:
    """A field of a form; `file` is the name of a file, where it is one."""

    value: bytes
    file: str | None = None

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode(errors="replace").strip()


def read_form(kind: str, body: bytes) -> Mapping[str, Field]:
    """The fields of a form by name; of several of one name the last.

    Args:
        kind: the Content-Type.

    Raises:
        Refused: it is no form, or a broken one.
    """
    head = _HEADERS.parsebytes(f"Content-Type: {kind}\r\n\r\n".encode("latin-1", "replace"))
    boundary = head.get_param("boundary")
    if (
        head.get_content_type() != "multipart/form-data"
        or not isinstance(boundary, str)
        or not 1 <= len(boundary) <= 200
    ):
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send multipart/form-data, with the recording as `file`.")
    mark = b"--" + boundary.encode("latin-1", "replace")
    fields: dict[str, Field] = {}
    place = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    if place == 1:
        raise _broken()
    for _ in range(_MOST_FIELDS + 1):
        place += len(mark)
        if body[place : place + 2] == b"--":
            return fields
        begin = body.find(b"\r\n\r\n", place)
        end = body.find(b"\r\n" + mark, place)
        if begin < 0 or end < begin + 2:
            raise _broken()
        about = _HEADERS.parsebytes(body[place:begin].lstrip(b"\r\n") + b"\r\n\r\n")
        name = about.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise _broken()
        fields[name] = Field(body[begin + 4 : end], about.get_filename())
        place = end + 2
    raise Refused(HTTPStatus.BAD_REQUEST, f"The form has more than {_MOST_FIELDS} fields.")


def _broken() -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, "The form is broken: a part of it has no end, or no name.")
