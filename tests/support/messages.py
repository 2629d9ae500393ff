"""Messages as they arrive, without a link."""

import json
from typing import Any

from roundelay.runtime.messages import Dialect, Frame, M, Message, plain

MOST = {"rank": 100.0, "row": 100.0, "elements": 2.0**40}


class Word(Message):
    """A message of any content."""

    n: int = 0


WORDS = Dialect(Word)


def received(message: M, payload: Any = b"", **changed: Any) -> M:
    """Return the message as the other end reads it, with fields `changed` on the way."""
    header = json.loads(json.dumps(message.header, default=plain)) | changed
    found = Dialect(type(message), **MOST).read(Frame(message.kind, header, memoryview(payload)))
    assert isinstance(found, type(message))
    return found
