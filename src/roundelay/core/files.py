"""Files that are either whole or absent; and JSON and YAML of others, read with one kind of error.

The libraries of these raise more than their own errors: RecursionError for thousands of brackets, ValueError for a
number of thousands of digits or a date that is none, AttributeError for `!!timestamp x`. Code that reads text that may
be damaged calls these, so that no caller can forget one.
"""

import errno
import gzip
import json
import math
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from roundelay.core.errors import UserError


class DiskFull(UserError):
    """The disk, or the user's quota on it, has no room for a file."""


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; on success flush it to disk and rename it over `path`.

    A kill, an exception or a full disk leaves the previous file untouched and no temporary file behind (a kill may
    leave one, named `.NAME.PID.part`, which nothing ever reads; see `sweep`).

    Raises:
        UserError: the disk is full or the folder cannot be written; names the path.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(temporary, "wb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(temporary):
            raise  # about another file, which the caller was reading meanwhile
        raise unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def open_regular(path: Path) -> BufferedReader:
    """Open a file to be read, if it is a regular one or a link to one: a pipe or a device in its place may never
    end, and opening a pipe may wait for ever.

    Raises:
        OSError: the file is missing, unreadable, or of another kind (`strerror` says which).
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        raise OSError(errno.EINVAL, f"not a file but {_KINDS.get(kind, 'something else')}", str(path))
    return os.fdopen(handle, "rb")


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


BYTE_ORDER_MARK = "\ufeff"
"""U+FEFF, put before UTF-8 text by some editors; it is invisible, and no part of the first word."""
MOST_TEXT = 1 << 30
"""Bytes of a text that is read as a whole, unpacked; a large dictionary has 10 MB."""


def read_text(path: Path, needed: str, most: int = MOST_TEXT) -> str:
    """Read a file of UTF-8 text, plain or packed with gzip, without its byte order mark. At most `most` bytes are read
    or unpacked; `needed` says in the error what the file is needed for.

    Raises:
        UserError: the file is missing, unreadable, damaged, too large, or no UTF-8 (names the line).
    """
    data = b""
    try:
        data = read_packed(path, most)
        return data.decode().removeprefix(BYTE_ORDER_MARK)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {needed}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: a damaged gzip file ({error}); get it again.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{not_utf8(data, error)}") from None


def read_packed(path: Path, most: int) -> bytes:
    """Return the bytes of a file, unpacked if it is packed with gzip; never more than `most` of them are in memory.

    Raises:
        UserError: the file has more than `most`.
        OSError, EOFError, zlib.error, gzip.BadGzipFile: the file is missing, unreadable or damaged.
    """
    with open_regular(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        data = (gzip.GzipFile(fileobj=file) if packed else file).read(most + 1)
    if len(data) > most:
        what = f"unpacks to more than {most:,} bytes" if packed else f"has more than {most:,} bytes"
        raise UserError(f"{path}: {what}, the most that is read at once; is it the right file?")
    return data


def not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    """Return a sentence that begins with a line number on bytes that are no UTF-8 text: where, and what they may be."""
    line = data.count(b"\n", 0, error.start) + 1
    if what := _kind_of(data):
        return f"1: {what}"
    column = error.start - (data.rfind(b"\n", 0, error.start) + 1)
    return (
        f"{line}: not UTF-8 text (byte 0x{data[error.start]:02x}, at byte {column} of the line); if it is Latin-1, "
        "convert it with `iconv -f latin1 -t utf-8`"
    )


_NO_TEXTS = {
    **dict.fromkeys((b"RIFF", b"fLaC", b"OggS", b"ID3", b"NIST_1A", b"FORM", b"\xff\xfb"), "a recording"),
    **dict.fromkeys((b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf"), "an archive"),
    b"\x7fELF": "a program",
    b"%PDF": "a PDF",
    b"\x89PNG": "a picture",
}


def _kind_of(data: bytes) -> str:
    """Guess in words what kind of file `data` is; "" if it may be text of one byte a character."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "text in UTF-16, not UTF-8; convert it with `iconv -f utf-16 -t utf-8`"
    for begin, what in _NO_TEXTS.items():
        if data.startswith(begin):
            return f"no text, but {what}; is it the right file?"
    some = data[:4096]
    zeros = some.count(0)
    if 3 * zeros > len(some) and len({place % 2 for place, byte in enumerate(some) if not byte}) == 1:
        ends = "le" if some[1:2] == b"\0" else "be"
        return f"text in UTF-16, not UTF-8; convert it with `iconv -f utf-16{ends} -t utf-8`"
    if zeros or 10 * sum(byte < 32 and byte not in b"\t\n\r\f" for byte in some) > len(some):
        return "no text, but bytes; is it the right file?"
    return ""


def sweep(folder: Path) -> None:
    """Remove temporary files, and folders named like them, that killed processes left in `folder`; those of living
    processes stay."""
    for path in folder.glob(".*.part"):
        writer = path.name.split(".")[-2]
        if writer.isdigit() and (int(writer) == os.getpid() or not Path("/proc", writer).exists()):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


_OURS = {
    "packed.json": "a packed model",
    "corpus.json": "a prepared corpus",
    "align.json": "an alignment",
    "model.json": "a run directory",
    "events.jsonl": "a run directory",
}


def refuse_ours(out: Path) -> None:
    """Raise a UserError if `out`, a folder to be written for other programs, is one of Roundelay's own."""
    for name, what in _OURS.items():
        if (out / name).is_file():
            raise UserError(f"{out} is {what} ({name} is in it): give --out another folder.")


def unwritable(path: Path, error: OSError) -> UserError:
    """Return an error that names the file that could not be written, why, and what to do; `DiskFull` if the disk is
    full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"{path}: the disk is full. Nothing already written is lost: free some space and run the same command "
            "again."
        )
    return UserError(f"{path}: cannot be written ({error.strerror or error}). Check the folder and its permissions.")


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())


def finite(value: object) -> object:
    """Return `value` with None in the place of every float that is NaN or infinite: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_line(value: object) -> str:
    """Return `value` as one line of standard JSON, in ASCII; a NaN or an infinity is written as null."""
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False)


def json_text(value: object) -> str:
    """Return `value` as indented standard JSON text; a NaN or an infinity is written as null."""
    return json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: object) -> None:
    """Write `json_text(value)` atomically."""
    write_text(path, json_text(value))


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        UserError: the file is missing or is not JSON; names file, line and column.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MOST_TEXT + 1)
        if len(data) > MOST_TEXT:
            raise UserError(f"{path}: has more than {MOST_TEXT:,} bytes, the most that is read at once.")
        return json.loads(data.decode())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON ({error.msg}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}).") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UserError(f"{path}: not valid JSON ({error}).") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: `text` is not JSON, not UTF-8, or nested too deeply; says where, if the parser does.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document of plain values.

    Raises:
        ValueError: `text` is not YAML, or nested too deeply; says where, if the parser does.
    """
    try:
        return yaml.safe_load(text)
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
