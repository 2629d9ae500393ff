"""Copies of the newest checkpoint that the first host sends to the next."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roundelay.runtime.hosts.control import copies
from roundelay.runtime.hosts.control.copies import CopyReceiver, CopySender
from roundelay.runtime.hosts.control.messages import FilePiece
from roundelay.runtime.messages import InvalidMessage
from support.messages import received
from support.until import until


def receiver(exp: Path, host: int, said: list[str], standing: str = "in") -> Any:
    """Another host, which keeps what it is sent."""
    kept = CopyReceiver(exp, said.append)

    def say(message: FilePiece, payload: list[bytes]) -> None:
        kept.take(received(message, payload[0]))

    return SimpleNamespace(host=host, standing=standing, monitored=SimpleNamespace(say=say))


def write(exp: Path, name: str, size: int) -> None:
    """A checkpoint of that name, and the log so far."""
    (exp / "checkpoints").mkdir(parents=True, exist_ok=True)
    for beside in copies.COPIED_BESIDE:
        (exp / beside).write_text(f"{beside} at {name}")
    (exp / "checkpoints" / f"{name}.safetensors").write_bytes(bytes(range(256)) * (size // 256))
    (exp / "checkpoints" / f"{name}.json").write_text(name)


def files(exp: Path) -> dict[str, bytes]:
    """Complete files; those still being written are gone at any moment."""
    whole = [path for path in exp.rglob("*") if path.is_file() and path.suffix != ".part"]
    return {str(path.relative_to(exp)): path.read_bytes() for path in whole}


def test_the_next_host_has_the_newest_checkpoint_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPY_LOOK_SECONDS", 0.0)
    said = list[str]()
    first, next_, third = (tmp_path / name for name in ("first", "next", "third"))
    sender = CopySender(first)
    for remote in (receiver(third, 2, said), receiver(next_, 1, said), receiver(tmp_path / "gone", 0, said, "gone")):
        sender.wanted(remote)
    write(first, "epoch-0001", 5 * copies.PIECE // 2)

    def arrived(so: Callable[[], bool]) -> None:
        def look() -> bool:
            sender.look()
            return so()

        until(look)

    arrived(lambda: files(next_) == files(first))
    for name in ("epoch-0001-at-000000128", "epoch-0002"):
        write(first, name, copies.PIECE)
        arrived(lambda name=name: (next_ / "checkpoints" / f"{name}.json").exists())  # type: ignore[misc]
    arrived(lambda: len(list((next_ / "checkpoints").iterdir())) == 2)
    newest = {name: data for name, data in files(first).items() if "epoch" not in name or "0002" in name}
    assert files(next_) == newest
    assert not third.exists()
    assert not (tmp_path / "gone").exists()
    assert said == []


@pytest.mark.parametrize(
    "name", ["../x.json", "checkpoints/../x.json", "x/y.json", "/x.json", ".x.json", "model.pt", ""]
)
def test_nothing_but_files_of_a_run_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidMessage):
        CopyReceiver(tmp_path / "exp", print).take(received(FilePiece(name, 0, True), b"x"))
    assert list(tmp_path.iterdir()) == []


def test_a_piece_that_does_not_follow_is_refused_and_a_disk_that_is_full_ends_copies_only(tmp_path: Path) -> None:
    said = list[str]()
    kept = CopyReceiver(tmp_path, said.append)
    kept.take(received(FilePiece("recipe.yaml", 0, False), b"xyz"))
    with pytest.raises(InvalidMessage, match="a piece at 4 after 3 bytes"):
        kept.take(received(FilePiece("recipe.yaml", 4, True), b"x"))
    assert not (tmp_path / "recipe.yaml").exists()
    (tmp_path / "checkpoints").write_text("in the way of a folder")
    for _ in range(2):
        kept.take(received(FilePiece("checkpoints/a.json", 0, True), b"x"))
    assert len(said) == 1
    assert "no copies of checkpoints are kept any more" in said[0]
