"""A file is whole or absent, whatever happens while it is written."""

import errno
import gzip
import json
import os
import signal
import textwrap
import tracemalloc
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, json_line, read_json, read_text, refuse_ours, write_json, write_text
from support.processes import run_python
from support.said import refusal


def test_the_file_appears_only_when_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    with atomic_write(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert list(path.parent.iterdir()) == [path]


def test_an_exception_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def spoil() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spoil()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_the_users_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(_: int) -> None:  # delayed allocation: the disk may say so only here
        raise OSError(code, os.strerror(code))

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"file: the disk is full.*free some space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_the_system_cuts_short_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    program = """
        import resource, sys
        from pathlib import Path
        from roundelay.core.errors import UserError
        from roundelay.core.files import atomic_write
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            with atomic_write(Path(sys.argv[1])) as file:
                file.write(bytes(1_000_000))
        except UserError as error:
            print(error)
    """
    done = run_python("-c", textwrap.dedent(program), str(path))
    assert done.stderr == ""
    assert f"{path}: cannot be written" in done.stdout
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    program = """
        import os, signal, sys
        from pathlib import Path
        from roundelay.core.files import atomic_write
        with atomic_write(Path(sys.argv[1])) as file:
            file.write(bytes(1_000_000))
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    run_python("-c", textwrap.dedent(program), str(path), expect=-signal.SIGKILL)
    assert path.read_text() == "old"
    write_text(path, "new")  # what the kill left behind does not stand in the way
    assert path.read_text() == "new"


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/below: cannot be written"):
        write_text(tmp_path / "file" / "below", "text")


def test_a_missing_input_is_not_blamed_on_the_output(tmp_path: Path) -> None:
    def copy() -> None:
        with atomic_write(tmp_path / "output") as file:
            file.write((tmp_path / "input").read_bytes())

    with pytest.raises(FileNotFoundError, match="input"):
        copy()


def test_json_survives(tmp_path: Path) -> None:
    value = {"word": "Motörhead", "counts": [1, 2.5, None]}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value
    assert "Motörhead" in (tmp_path / "value.json").read_text(encoding="utf-8")  # readable by people


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    value = {"loss": nan, "by split": {"dev": -inf, "test": 1.5}, "list": [inf, 2, (nan,)], "text": "NaN"}
    wanted = {"loss": None, "by split": {"dev": None, "test": 1.5}, "list": [None, 2, [None]], "text": "NaN"}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == wanted
    assert json_line(value) == json.dumps(wanted, separators=(",", ":"), allow_nan=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b": }\n', r"value\.json:2:7: not valid JSON"),
        (b"", r"value\.json:1:1: not valid JSON"),
        (b"\xff\xfe", r"value\.json: not UTF-8 text \(byte 0\)"),
    ],
)
def test_broken_json_names_file_and_place(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "value.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_json(tmp_path / "value.json")


def test_missing_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.json: no such file"):
        read_json(tmp_path / "nothing.json")


def test_packed_text_is_unpacked_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"bomb\.gz: unpacks to more than 1,000,000 bytes"):
        read_text(path, "a text", most=1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfword"))
    assert read_text(path, "a text", most=7) == "word"
    (tmp_path / "plain").write_text("four\n" * 10)
    with pytest.raises(UserError, match="plain: has more than 49 bytes"):
        read_text(tmp_path / "plain", "a text", most=49)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("one\ntwo caf\xe9\n".encode("latin-1"), "2: not UTF-8 text (byte 0xe9, at byte 7 of the line)"),
        (
            "gr\u00f6\u00dfe G\n".encode("latin-1"),
            "1: not UTF-8 text (byte 0xf6, at byte 2 of the line); if it is Latin-1",
        ),
        ("ja Y AA\n".encode("utf-16"), "1: text in UTF-16, not UTF-8; convert it with `iconv -f utf-16 -t utf-8`"),
        ("gr\u00f6\u00dfe G\n".encode("utf-16-le"), "1: text in UTF-16, not UTF-8; convert it with `iconv -f utf-16le"),
        ("gr\u00f6\u00dfe G\n".encode("utf-16-be"), "1: text in UTF-16, not UTF-8; convert it with `iconv -f utf-16be"),
        (b"RIFF\x80\x81\0\0WAVE", "1: no text, but a recording; is it the right file?"),
        (b"PK\x03\x04\xff", "1: no text, but an archive"),
        (bytes(range(256)), "1: no text, but bytes"),
    ],
)
def test_what_is_no_utf_8_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(data)
    assert f"words:{said}" in refusal(read_text, tmp_path / "words", "")


@pytest.mark.parametrize("name", ["packed.json", "corpus.json", "align.json", "model.json"])
def test_nothing_is_written_into_a_folder_of_ours(name: str, tmp_path: Path) -> None:
    refuse_ours(tmp_path)
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="give --out another folder"):
        refuse_ours(tmp_path)


def test_a_user_error_is_not_mistaken_for_a_defect_of_ours() -> None:
    """Code that expects a missing key or file (`except KeyError`, `except OSError`) must not swallow it."""
    assert UserError.__mro__[1] is Exception
    assert str(UserError("data/train.jsonl:3: no such speaker. Check utt2spk.")).startswith("data/train.jsonl:3")
