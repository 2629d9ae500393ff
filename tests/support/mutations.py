"""Files that have been damaged: a strategy for bytes that are nearly right."""

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

from roundelay.core.errors import UserError

_NUMBERS = [struct.pack("<i", n) for n in (-1, 0, 1, 2**31 - 1, -(2**31), 65536)] + [b"9" * 12, b"-1", b"1e999", b"nan"]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw `whole` with up to four changes: bytes changed, taken out, put in, numbers overwritten, the end cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["change", "cut", "insert", "number", "end", "repeat"])):
            case "change":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "number":
                number = draw(st.sampled_from(_NUMBERS))
                data[at : at + len(number)] = number
            case "end":
                del data[at:]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 30))]
    return bytes(data)


@contextmanager
def may_be_refused(pattern: str) -> Iterator[None]:
    """Allow the body to fail by a UserError whose message matches `pattern`; any other error is a defect."""
    said = None
    try:
        yield
    except UserError as error:
        said = str(error)
    assert said is None or re.search(pattern, said), said
