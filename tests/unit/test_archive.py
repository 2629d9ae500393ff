"""Kaldi's archives: what was written is read back; ranges mean what Kaldi means; every broken file is named."""

import gzip
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from roundelay.core.errors import UserError
from roundelay_speech.kaldi_io.locations import ArchiveError, parse_location, read_scp
from roundelay_speech.kaldi_io.objects import read_archive, read_int_vectors, read_matrix, write_archive

KEYS = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=6).filter(lambda s: s.split() == [s])
REALS = st.sampled_from([np.float32, np.float64])


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, dict[str, npt.NDArray[Any]]]:
    """The kind of an archive, and what is in it."""
    kind = draw(st.sampled_from(["matrix", "vector", "ints"]))
    objects: dict[str, npt.NDArray[Any]] = {}
    for key in draw(st.lists(KEYS, max_size=4, unique=True)):
        if kind == "ints":
            objects[key] = np.array(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)), np.int32)
        else:
            shape = (draw(st.integers(1, 4)), draw(st.integers(1, 4))) if kind == "matrix" else draw(st.integers(0, 5))
            objects[key] = draw(arrays(draw(REALS), shape))
    return kind, objects


@settings(max_examples=80)
@given(table=tables(), text=st.booleans(), packed=st.booleans())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    table: tuple[Any, dict[str, npt.NDArray[Any]]],
    text: bool,
    packed: bool,
) -> None:
    """Bit for bit, but for the bits of a NaN in text, and for the width, which text does not tell."""
    kind, objects = table
    path = tmp_path_factory.getbasetemp() / "a.ark"
    places = write_archive(path, objects.items(), text=text)
    if packed:
        path = path.with_suffix(".ark.gz")
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    found = dict(read_archive(path, kind))
    assert list(found) == list(objects) == list(places)
    for key, value in objects.items():
        if not text:
            assert found[key].dtype == value.dtype
        np.testing.assert_array_equal(found[key].astype(value.dtype), value)
        if kind == "matrix":
            np.testing.assert_array_equal(read_matrix(places[key]).astype(value.dtype), value)


def test_as_kaldi_writes_them(tmp_path: Path) -> None:
    """The bytes of `copy-feats` and `copy-int-vector`."""
    matrix = np.array([[1, 2.5], [-3, 0]], np.float32)
    write_archive(tmp_path / "b.ark", [("a", matrix)], scp=tmp_path / "b.scp")
    sizes = b"\4\2\0\0\0\4\2\0\0\0"
    assert (tmp_path / "b.ark").read_bytes() == b"a \0BFM " + sizes + matrix.tobytes()
    assert (tmp_path / "b.scp").read_text() == f"a {tmp_path}/b.ark:2\n"
    write_archive(tmp_path / "t.ark", [("a", matrix)], text=True)
    assert (tmp_path / "t.ark").read_text() == "a  [\n  1.0 2.5 \n  -3.0 0.0 ]\n"
    write_archive(tmp_path / "i.ark", [("a", np.array([7, -1]))])
    assert (tmp_path / "i.ark").read_bytes() == b"a \0B\4\2\0\0\0\4\7\0\0\0\4\xff\xff\xff\xff"
    write_archive(tmp_path / "i.txt", [("a", np.array([7, -1])), ("b", np.array([], np.int32))], text=True)
    assert (tmp_path / "i.txt").read_text() == "a 7 -1\nb \n"


def test_text_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "a.ark"
    path.write_text("a  [\n  1 2 \n  3 4 ]\nb [ 5 6; 7 8 ]\n\nc [ ]\nd [\n 1 nan\n -inf 2\n ]\n")
    found = dict(read_archive(path))
    np.testing.assert_array_equal(found["a"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found["b"], [[5, 6], [7, 8]])
    assert found["c"].shape == (0, 0)
    np.testing.assert_array_equal(found["d"], [[1, np.nan], [-np.inf, 2]])
    path.write_text("[ 1 2\n 3 4 ]")
    np.testing.assert_array_equal(read_matrix(str(path)), [[1, 2], [3, 4]])


def test_compressed_matrices_by_hand(tmp_path: Path) -> None:
    """All three forms, decoded by the definitions of compressed-matrix.h."""
    head = struct.pack("<ffii", -1.0, 2.0, 2, 1)
    path = tmp_path / "a.ark"
    path.write_bytes(b"a \0BCM2 " + head + struct.pack("<2H", 0, 65535) + b"b \0BCM3 " + head + bytes([0, 51]))
    found = dict(read_archive(path))
    np.testing.assert_allclose(found["a"], [[-1], [1]], atol=1e-6)
    np.testing.assert_allclose(found["b"].astype(float), np.array([[-1.0], [-0.6]]), atol=1e-6)
    # Percentiles 0, 1/4, 3/4 and 1 of the range 0 to 65535: at the codes 0, 64, 192 and 255, and half way between.
    head = struct.pack("<ffii", 0.0, 65535.0, 7, 1) + struct.pack("<4H", 0, 16384, 49152, 65535)
    path.write_bytes(b"a \0BCM " + head + bytes([0, 32, 64, 128, 192, 224, 255]))
    expected = np.array([0, 8192, 16384, 32768, 49152, 49152 + 16383 * 32 / 63, 65535])
    np.testing.assert_allclose(dict(read_archive(path))["a"][:, 0].astype(float), expected, rtol=1e-6)


def test_ranges_include_their_ends(tmp_path: Path) -> None:
    matrix = np.arange(20, dtype=np.float32).reshape(5, 4)
    (place,) = write_archive(tmp_path / "a.ark", [("a", matrix)]).values()
    np.testing.assert_array_equal(read_matrix(f"{place}[1:3]"), matrix[1:4])
    np.testing.assert_array_equal(read_matrix(f"{place}[1:3,0:1]"), matrix[1:4, :2])
    np.testing.assert_array_equal(read_matrix(f"{place}[:,2:2]"), matrix[:, 2:3])
    np.testing.assert_array_equal(read_matrix(f"{place}[2:7]"), matrix[2:])  # Kaldi's three frames of grace
    np.testing.assert_array_equal(read_matrix("a.ark:2", tmp_path), matrix)
    for odd in ("[2:8]", "[5:6]", "[:,0:4]", "[3:1]", "[1]", "[a:b]", "[]", "[0:1,0:1,0:1]", "[-1:2]"):
        with pytest.raises(ArchiveError, match=r"a\.ark"):
            read_matrix(place + odd)


@pytest.mark.parametrize("where", ["gunzip -c a.gz |", "| cat", "-", "", "[0:1]", "a\0b"])
def test_only_files(where: str) -> None:
    with pytest.raises(ArchiveError):
        parse_location(where)


def test_locations() -> None:
    place = parse_location("/x/a b:c.ark:12[0:3]")
    assert (str(place.path), place.offset, place.rows, place.columns) == ("/x/a b:c.ark", 12, (0, 3), None)
    assert parse_location("a.mat", Path("/f")).path == Path("/f/a.mat")


def test_script_files(tmp_path: Path) -> None:
    path = tmp_path / "a.scp"
    path.write_text("a  x.ark:5 \n\nb y z.ark:7[0:1]\n")
    assert read_scp(path) == {"a": "x.ark:5", "b": "y z.ark:7[0:1]"}
    path.write_text("a x.ark:5\na y\nb\n")
    with pytest.raises(ArchiveError) as error:
        read_scp(path)
    assert f"{path}:2: a is already on line 1" in str(error.value)
    assert f"{path}:3: b has nothing beside it" in str(error.value)
    for content in (b"", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(ArchiveError, match=r"a\.scp"):
            read_scp(path)
    with pytest.raises(ArchiveError, match="no such file"):
        read_scp(tmp_path / "none.scp")


FAULTS = {
    "another kind": (b"a \0BFV \4\1\0\0\0abcd", r"byte 2: a: a vector, where a matrix is expected"),
    "unknown": (b"a \0BSM \4\1\0\0\0abcd", r"byte 2: a: an object of a kind that is not read here"),
    "cut": (b"a \0BFM \4\1\0\0\0\4\2\0\0\0abcd", r"byte 17: a: cut short: the matrix needs 8 bytes, 4 are left"),
    "width": (b"a \0BFM \x08\1\0\0\0", r"byte 7: a: a length of 8 bytes"),
    "negative": (b"a \0BFM \4\xff\xff\xff\xff\4\2\0\0\0", r"a: impossible size -1 x 2"),
    "ragged": (b"a [\n 1 2\n 3\n]\n", r"byte 9: a: row 1 has 1 numbers, the first 2"),
    "word": (b"a [\n 1 x ]\n", r"byte 4: a: not a number"),
    "open": (b"a [\n 1 2\n", r"cut short: the last line has no end"),
    "after": (b"a [ 1 ] 2\n", r"something after `\]`"),
    "twice": (b"a [ 1 ]\na [ 1 ]\n", r"byte 8: the key a is there for the second time"),
    "alone": (b"abc", r"byte 0: cut short: a key without an object"),
    "nothing": (b"a ", r"byte 2: a: cut short"),
    "binary key": (b"\xff\xff [ 1 ]\n", r"byte 0: a key that is not UTF-8"),
    "mark": (b"a \0X", r"not an object of Kaldi's"),
}


@pytest.mark.parametrize("content", FAULTS.values(), ids=FAULTS)
def test_faults_name_file_and_byte(tmp_path: Path, content: tuple[bytes, str]) -> None:
    path = tmp_path / "a.ark"
    path.write_bytes(content[0])
    with pytest.raises(ArchiveError, match=content[1]) as error:
        list(read_archive(path))
    assert str(error.value).startswith(f"{path}: byte ")


def test_whole_numbers_out_of_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a.ark"
    for odd in ("2147483648", "9" * 30, "1_0", "1.5", "x", "9" * 5000):
        path.write_text(f"a 1 {odd}\n")
        with pytest.raises(ArchiveError, match=r"a\.ark: byte 2: a: "):
            list(read_int_vectors(path))
    path.write_text("a 1 2")  # there may have been more
    with pytest.raises(ArchiveError, match="cut short"):
        list(read_int_vectors(path))


def test_places_outside_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.ark").write_bytes(b"a [ 1 ]\n")
    with pytest.raises(ArchiveError, match=r"a\.ark: byte 99: the file ends at byte 8"):
        read_matrix(f"{tmp_path}/a.ark:99")
    with pytest.raises(ArchiveError, match="cannot be read"):
        read_matrix(f"{tmp_path}/none.ark:2")
    os.mkfifo(tmp_path / "fifo.ark")
    for odd in (tmp_path, tmp_path / "fifo.ark"):
        with pytest.raises(ArchiveError, match="not a plain file"):
            list(read_archive(odd))


@pytest.mark.parametrize("head", [b"FM ", b"DM ", b"CM ", b"CM2 ", b"CM3 "])
@pytest.mark.parametrize("packed", [False, True])
def test_lying_headers_take_no_memory(tmp_path: Path, head: bytes, packed: bool) -> None:
    size = struct.pack("<i", 2**31 - 1)
    sizes = struct.pack("<ff", 0, 1) + size * 2 if head.startswith(b"C") else b"\4" + size + b"\4" + size
    content = b"a \0B" + head + sizes + b"x" * 1000
    path = tmp_path / ("a.ark.gz" if packed else "a.ark")
    path.write_bytes(gzip.compress(content) if packed else content)
    tracemalloc.start()
    with pytest.raises(ArchiveError, match="cut short"):
        list(read_archive(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.ark"
    real = np.zeros((1, 1), np.float32)
    bad: list[tuple[str, npt.NDArray[Any]]] = [
        ("a b", real),
        ("", real),
        ("a", np.array([2**31])),
        ("a", np.zeros((1, 1), int)),
        ("a", np.zeros((1, 1, 1), np.float32)),
        ("a", np.zeros(1, complex)),
    ]
    for key, values in bad:
        with pytest.raises(UserError, match=r"a\.ark"):
            write_archive(path, [(key, values)])
    with pytest.raises(UserError, match="no two keys are equal"):
        write_archive(path, [("a", real), ("a", real)])
    assert not path.exists()


def example(kind: str, text: bool) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(3)
    if kind == "ints":
        return {"s-1": rng.integers(0, 9, 6), "s-2": rng.integers(0, 9, 4)}
    if kind == "vector":
        return {"s-1": rng.standard_normal(6).astype(np.float32), "s-2": rng.standard_normal(4)}
    return {"s-1": rng.standard_normal((3, 2)).astype(np.float32), "s-2": rng.standard_normal((2, 2))}


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("kind", ["matrix", "vector", "ints"])
def test_every_cut_is_noticed(tmp_path: Path, kind: Any, text: bool) -> None:
    """Cut anywhere but between two objects, an archive is an error; objects before the cut are what they were."""
    path = tmp_path / "a.ark"
    objects = example(kind, text)
    write_archive(path, objects.items(), text=text)
    whole = path.read_bytes()
    second = whole.index(b"s-2 ")
    between = {0, len(whole), second}
    if text and kind != "ints":  # after the bracket, before the end of its line
        between |= {second - 1, len(whole) - 1}
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = {}
        try:
            for key, value in read_archive(path, kind):
                found[key] = value
            assert length in between
        except ArchiveError:
            assert length not in between
        for key, value in found.items():
            np.testing.assert_array_equal(value.astype(objects[key].dtype), objects[key])


def test_every_cut_of_a_packed_archive_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.ark.gz"
    write_archive(tmp_path / "a.ark", example("ints", False).items())
    whole = gzip.compress((tmp_path / "a.ark").read_bytes())
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveError, match=r"a\.ark\.gz: byte "):
            list(read_int_vectors(path))
