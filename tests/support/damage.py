"""Files as an earlier version wrote them."""

from pathlib import Path

from roundelay.core.files import read_json, write_json


def forget_checksums(path: Path) -> None:
    """Take the checksums out of a JSON file, as an earlier version wrote it."""
    value = read_json(path)
    del value["checksums"]
    write_json(path, value)
