"""Traces that are damaged are named."""

from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.trace import Recorder, read_entries


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b'{"what": "st\xe9rt"}\n', b"[]\n", b"{\n", b"7\n"])
def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / Recorder.FILE).write_bytes(text)
    with pytest.raises(UserError, match=str(tmp_path / Recorder.FILE)):
        list(read_entries(tmp_path))
