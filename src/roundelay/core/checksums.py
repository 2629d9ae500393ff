"""Checksums: files that outlive a process are checked against those written before they are used.

Files that belong together lie in one folder beside a JSON that is written last. That JSON names the checksum of each of
them and of itself:

    "checksums": {"HCLG.fst": "blake2b:62...", "": "blake2b:0f..."}

The entry without a name is that of the JSON's own content without `checksums`, keys sorted. Folders written by versions
that knew no checksums are read without.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import json_line, json_text, open_regular, read_json, write_text

KEY, OWN_CHECKSUM = "checksums", ""
_METHOD, _BYTES = "blake2b", 16


class Damaged(UserError):
    """A file is missing or is not as it was written."""


def is_file_name(name: object) -> bool:
    """Return True if `name` is the plain name of a file, without a path above or below its folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\0"}


def checksum(data: bytes) -> str:
    """Return the checksum of `data` as it stands in a JSON: `blake2b:` and 32 hexadecimal digits."""
    return f"{_METHOD}:{hashlib.blake2b(data, digest_size=_BYTES).hexdigest()}"


def file_checksum(path: Path) -> str:
    """Return the checksum of a regular file's content, read piece by piece."""
    with open_regular(path) as file:
        return f"{_METHOD}:{hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_BYTES)).hexdigest()}"


def write_checked(path: Path, value: Mapping[str, Any], files: Iterable[str] = (), *, one_line: bool = False) -> None:
    """Write `value` as JSON, with its own checksum and those of `files`, which are names in the same folder."""
    sums = {name: file_checksum(path.with_name(name)) for name in files}
    write_checked_with(path, value, sums, one_line=one_line)


def write_checked_with(
    path: Path, value: Mapping[str, Any], sums: Mapping[str, str], *, one_line: bool = False
) -> None:
    """Write `value` as `write_checked` does, with the files' checksums given."""
    whole = with_checksums(value, sums)
    write_text(path, json_line(whole) + "\n" if one_line else json_text(whole))


def with_checksums(value: Mapping[str, Any], sums: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return `value` with its own checksum and the checksums `sums` of files, to be written as JSON."""
    plain = json.loads(json_line({key: item for key, item in value.items() if key != KEY}))  # as it will be read
    return {**plain, KEY: {**sums, OWN_CHECKSUM: _own(plain)}}


def read_checked(path: Path, remedy: str, skip: Collection[str] = ()) -> dict[str, Any]:
    """Return the content of a JSON written by `write_checked`, without its checksums.

    Args:
        remedy: a sentence that says how the files are made again; it ends the message of `Damaged`.
        skip: names of files that are not checked, because they are large.

    Raises:
        Damaged: the JSON, or a file that it names, is missing or is not as it was written; names the file.
    """
    value, sums = read_sums(path, remedy)
    for name, expected in sums.items():
        if name not in skip:
            check_file(path.with_name(name), expected, path.name, remedy)
    return value


def read_sums(path: Path, remedy: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of a JSON, held to its own checksum, and the checksums of other files that it has, by name. A
    JSON may have neither.

    Raises:
        Damaged: the JSON is not as it was written.
    """
    try:
        value = read_json(path)
    except UserError as error:
        raise Damaged(f"{error} {remedy}".rstrip()) from None
    if not isinstance(value, dict):
        raise Damaged(f"{path}: not an object of JSON. {remedy}".rstrip())
    sums = value.pop(KEY, None)
    if sums is None:
        if any(isinstance(item, dict) and OWN_CHECKSUM in item for item in value.values()):
            raise Damaged(f"{path}: damaged, its checksums have another name. {remedy}".rstrip())
        return value, {}
    if not isinstance(sums, dict) or sums.pop(OWN_CHECKSUM, None) != _own(value):
        raise Damaged(f"{path}: damaged, its checksum does not fit its content. {remedy}".rstrip())
    if not all(map(is_file_name, sums)):
        raise Damaged(f"{path}: names a file outside its folder. {remedy}".rstrip())
    return value, sums


def check_file(path: Path, expected: str, named_in: str, remedy: str) -> None:
    """Check that a file has the checksum `expected`.

    Raises:
        Damaged: the file is missing, cannot be read, or has another checksum.
    """
    try:
        found = file_checksum(path)
    except FileNotFoundError:
        raise Damaged(f"{path}: missing, though {named_in} names it. {remedy}".rstrip()) from None
    except OSError as error:
        raise Damaged(f"{path}: cannot be read ({error.strerror or error}). {remedy}".rstrip()) from None
    if found != expected:
        raise Damaged(f"{path}: damaged, its checksum is not the one in {named_in}. {remedy}".rstrip())


@dataclass(frozen=True)
class FileCheck:
    """The verdict on one file; `fault` is "" where it is as it was written."""

    path: Path
    fault: str


def verify(folder: Path) -> Iterator[FileCheck]:
    """Hold all files below `folder` to the checksums in the JSONs beside them. A JSON without checksums yields nothing
    unless it cannot be read."""
    for path in sorted(folder.rglob("*.json")):
        try:
            _, sums = read_sums(path, "")
        except Damaged as error:
            if not str(error).endswith("not an object of JSON."):  # then it is none of ours
                yield FileCheck(path, str(error))
            continue
        for name, expected in sums.items():
            try:
                check_file(path.with_name(name), expected, path.name, "")
            except Damaged as error:
                yield FileCheck(path.with_name(name), str(error))
            else:
                yield FileCheck(path.with_name(name), "")
        if sums:
            yield FileCheck(path, "")


def _own(value: Mapping[str, Any]) -> str:
    """Return the checksum of the content of a JSON, which does not depend on layout and order."""
    return checksum(json.dumps(value, sort_keys=True).encode())
