"""Damaged files of arrays are an error of one kind."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundelay_speech.data.arrays import map_array

HEAD = b"\x93NUMPY\x01\x00"
HEADERS = (
    b"",
    b"(" * 500,
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999, 99999999999), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
    b"{'descr': [], 'shape': (4,)}",
    b"\xff",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    b"'",
    b"{[]: 1}",
    b"1 if",
)
ARRAY = np.arange(600, dtype=np.float32).reshape(150, 4)


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_headers(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(HEAD + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match=r"array\.npy"):
        map_array(path)


@pytest.mark.parametrize("size", [None, 0, 1, 7, 100, 200])
def test_missing_and_cut_files(size: int | None, tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, ARRAY)
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"array\.npy"):
        map_array(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 127), value=st.integers(0, 255))
def test_any_byte_of_the_header_may_be_another(at: int, value: int, tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, ARRAY)
    data = bytearray(path.read_bytes())
    data[at] = value
    path.write_bytes(data)
    try:
        map_array(path)
    except ValueError as error:
        assert "array.npy" in str(error)  # noqa: PT017 (it may also be read)
