"""Files beside a JSON are held to what was written, and so is the JSON."""

from pathlib import Path

import pytest

from roundelay.core.checksums import Damaged, read_checked, write_checked, write_checked_with
from roundelay.core.files import read_json, write_json

REMEDY = "Make it again."


def written(folder: Path) -> Path:
    (folder / "table.bin").write_bytes(bytes(range(256)))
    (folder / "large.bin").write_bytes(b"large")
    path = folder / "index.json"
    write_checked(
        path, {"numbers": {1: 0.1, 20: float("nan")}, "text": "é", "pair": (1, 2)}, ["table.bin", "large.bin"]
    )
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read_checked(path, REMEDY) == {"numbers": {"1": 0.1, "20": None}, "text": "é", "pair": [1, 2]}
    assert set(read_json(path)["checksums"]) == {"table.bin", "large.bin", ""}


@pytest.mark.parametrize("change", [b"", b"\0", bytes(range(255)), bytes(range(255)) + b"\0", bytes(257)])
def test_another_content_is_named_with_the_remedy(tmp_path: Path, change: bytes) -> None:
    path = written(tmp_path)
    (tmp_path / "table.bin").write_bytes(change)
    with pytest.raises(Damaged, match=r"table\.bin: damaged, .* index\.json\. Make it again\."):
        read_checked(path, REMEDY)
    (tmp_path / "table.bin").unlink()
    with pytest.raises(Damaged, match=r"table\.bin: missing, .*Make it again\."):
        read_checked(path, REMEDY)


def test_large_files_may_be_left_for_later(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "large.bin").write_bytes(b"other")
    read_checked(path, REMEDY, skip=["large.bin"])
    with pytest.raises(Damaged, match=r"large\.bin"):
        read_checked(path, REMEDY)


def test_the_json_is_held_to_its_own_checksum_whatever_its_layout(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = read_json(path)
    write_json(path, dict(reversed(content.items())))
    assert read_checked(path, REMEDY)["text"] == "é"
    write_json(path, {**content, "text": "e"})
    with pytest.raises(Damaged, match=r"index\.json: damaged"):
        read_checked(path, REMEDY)


def test_no_file_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    path = written(tmp_path / "inside")
    write_checked_with(path, {}, {"../index.json": "0"})
    with pytest.raises(Damaged, match=r"index\.json: names a file outside its folder\. Make it again"):
        read_checked(path, REMEDY)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"checksums": 1}', '{"checksums": {}}'])
def test_what_is_no_such_json_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "index.json"
    path.write_text(text)
    with pytest.raises(Damaged, match=r"index\.json.* Make it again\."):
        read_checked(path, REMEDY)


def test_a_json_without_checksums_is_of_an_earlier_version(tmp_path: Path) -> None:
    write_json(tmp_path / "index.json", {"numbers": [1]})
    assert read_checked(tmp_path / "index.json", REMEDY) == {"numbers": [1]}
