"""Forms as browsers and clients send them: `multipart/form-data` (RFC 7578), read by starlette and python-multipart.

A form is a stranger's: it is read in the process of its recording, so that one which takes for ever, or too much, is
ended with that.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartParser

from roundelay.transcription.serving.limits import Refused

MOST_FIELDS, _MOST_OF_A_FIELD = 32, 1 << 16
_READ_AT_ONCE = 1 << 18
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the client is told what is wrong, nobody else
_AS_IT_IS = ("", "7bit", "8bit", "binary", "identity")


def read_form(kind: str, body: BinaryIO) -> tuple[BinaryIO, Mapping[str, str]]:
    """The recording, `file`, as a file without a name, and all other fields by name; of several of one name the last.

    Args:
        kind: the Content-Type.

    Raises:
        Refused: it is no form, a broken one, or one without a recording.
    """
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send multipart/form-data, with the recording as `file`.")
    headers = Headers({"content-type": kind})
    parser = MultiPartParser(
        headers, _pieces(body), max_files=1, max_fields=MOST_FIELDS, max_part_size=_MOST_OF_A_FIELD
    )
    try:
        form = asyncio.run(parser.parse())
    except Exception as error:  # whatever a stranger's form makes of its reader
        raise Refused(HTTPStatus.BAD_REQUEST, f"The form is broken: {str(error) or type(error).__name__}") from None
    file = form.get("file")
    if isinstance(file, str):
        raise Refused(HTTPStatus.BAD_REQUEST, "`file` is text without a file name; send it as a file: -F file=@NAME.")
    if file is None or not file.size:
        raise Refused(HTTPStatus.BAD_REQUEST, "The form has no `file`, or an empty one, or ends within it.")
    if file.headers.get("content-transfer-encoding", "").strip().lower() not in _AS_IT_IS:
        raise Refused(HTTPStatus.BAD_REQUEST, "`file` has a Content-Transfer-Encoding. Send its bytes as they are.")
    return _on_disk(file), {name: value for name, value in form.items() if isinstance(value, str)}


def _on_disk(upload: UploadFile) -> BinaryIO:
    spooled = cast("SpooledTemporaryFile[bytes]", upload.file)  # a small one has no descriptor yet
    spooled.rollover()
    spooled.flush()
    return upload.file


async def _pieces(body: BinaryIO) -> AsyncGenerator[bytes, None]:
    while piece := body.read(_READ_AT_ONCE):
        yield piece
