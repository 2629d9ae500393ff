"""Archives against two independent readers and writers: what one writes the other reads."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from roundelay_speech.kaldi_io.locations import read_scp
from roundelay_speech.kaldi_io.objects import read_archive, read_int_vectors, read_matrix, write_archive

kaldi_native_io = pytest.importorskip("kaldi_native_io")
kaldiio = pytest.importorskip("kaldiio")


def matrices(dtype: type = np.float32) -> dict[str, npt.NDArray[np.floating]]:
    rng = np.random.default_rng(7)
    return {f"u-{i}": (4 * rng.standard_normal((i, 5))).astype(dtype) for i in (1, 2, 9, 40)}


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_they_read_what_we_write(tmp_path: Path, text: bool, dtype: type) -> None:
    expected = matrices(dtype)
    write_archive(tmp_path / "a.ark", expected.items(), scp=tmp_path / "a.scp", text=text)
    for key, read in kaldiio.load_scp(str(tmp_path / "a.scp")).items():
        # It reads text in single precision.
        np.testing.assert_array_equal(read, expected[key].astype(np.float32 if text else dtype))
    name = "SequentialDoubleMatrixReader" if dtype is np.float64 else "SequentialFloatMatrixReader"
    with getattr(kaldi_native_io, name)(f"scp:{tmp_path}/a.scp") as reader:
        found = {key: np.array(value) for key, value in reader}
    assert list(found) == list(expected)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])


@pytest.mark.parametrize("text", [False, True])
def test_they_read_our_whole_numbers(tmp_path: Path, text: bool) -> None:
    expected = {"a": [3, 1, 2], "b": [7]}
    write_archive(tmp_path / "a.ark", ((key, np.array(value)) for key, value in expected.items()), text=text)
    with kaldi_native_io.SequentialInt32VectorReader(f"ark:{tmp_path}/a.ark") as reader:
        assert {key: list(value) for key, value in reader} == expected


@pytest.mark.parametrize("text", [False, True])
def test_we_read_what_kaldi_native_io_writes(tmp_path: Path, text: bool) -> None:
    expected = matrices()
    form = "ark,t,scp" if text else "ark,scp"
    with kaldi_native_io.FloatMatrixWriter(f"{form}:{tmp_path}/a.ark,{tmp_path}/a.scp") as writer:
        for key, value in expected.items():
            writer.write(key, value)
    for key, place in read_scp(tmp_path / "a.scp").items():
        # Kaldi's text has six significant digits.
        np.testing.assert_allclose(read_matrix(place), expected[key], rtol=1e-4 if text else 0)
    with kaldi_native_io.Int32VectorWriter(f"ark{',t' if text else ''}:{tmp_path}/i.ark") as writer:
        writer.write("a", [3, 1, 2])
        writer.write("b", [])
    assert {key: value.tolist() for key, value in read_int_vectors(tmp_path / "i.ark")} == {"a": [3, 1, 2], "b": []}


@pytest.mark.parametrize("method", [2, 3, 4, 5, 6, 7])
def test_compressed_matrices_expand_to_the_same(tmp_path: Path, method: int) -> None:
    """All of compress-matrix's methods, decoded by us, by kaldi_native_io and by kaldiio."""
    path = tmp_path / "a.ark"
    kaldiio.save_ark(str(path), matrices(), compression_method=method)
    ours = dict(read_archive(path))
    theirs = dict(kaldiio.load_ark(str(path)))
    with kaldi_native_io.SequentialFloatMatrixReader(f"ark:{path}") as reader:
        native = {key: np.array(value) for key, value in reader}
    assert list(ours) == list(theirs) == list(native)
    for key, value in ours.items():
        np.testing.assert_allclose(value, theirs[key], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(value, native[key], rtol=1e-5, atol=1e-5)


def test_ranges_are_kaldis(tmp_path: Path) -> None:
    expected = matrices()
    places = write_archive(tmp_path / "a.ark", expected.items())
    where = f"{places['u-9']}[2:6,1:3]"
    native = np.array(kaldi_native_io.FloatMatrix.read(where))
    np.testing.assert_array_equal(read_matrix(where), native)
    np.testing.assert_array_equal(native, expected["u-9"][2:7, 1:4])
