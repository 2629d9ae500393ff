"""Killed at any moment of a checkpoint: one of the two is there, whole, and nothing else stays."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch

from roundelay.checkpoint import Checkpoint, latest, load_checkpoint, prune, save_checkpoint
from roundelay.core.checksums import Damaged
from roundelay.core.files import read_json, sweep, write_json
from roundelay.runtime.base import ClusterState

KILLED = """
import builtins, os, signal, sys
from pathlib import Path
from test_checkpoints import some
from roundelay.checkpoint import prune, save_checkpoint

left = 0

def mortal(call):
    def maybe(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return maybe

def write(folder, name, calls):
    global left
    left = calls
    for function in ("open", "fsync", "replace", "unlink"):
        setattr(os, function, mortal(getattr(os, function)))
    builtins.open = mortal(open)
    save_checkpoint(folder, name, some(2))
    prune(folder, {name})

root, name, calls = Path(sys.argv[1]), sys.argv[2], 0
while True:
    folder = root / str(calls)
    save_checkpoint(folder, "epoch-0001", some(1))
    child = os.fork()
    if not child:
        write(folder, name, calls)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    calls += 1
print(calls)
"""


def some(value: float) -> Checkpoint:
    return Checkpoint(ClusterState({"row": torch.full((2, 5), value)}, {"steps": [3, 4]}), {"value": value})


@pytest.mark.parametrize("name", ["epoch-0002", "epoch-0001"], ids=["another", "the same name again"])
def test_a_kill_at_any_write_or_rename_leaves_a_whole_checkpoint(tmp_path: Path, name: str) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), name],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
        env={"PYTHONPATH": ":".join(paths)},
    )
    assert run.returncode == 0, run.stderr
    kills = int(run.stdout)
    assert kills >= 8, "two files opened, synced, renamed; two old ones removed"
    found = []
    for calls in range(kills + 1):
        folder = tmp_path / str(calls)
        newest = latest(folder)
        assert newest is not None
        checkpoint = load_checkpoint(newest)
        value = float(checkpoint.state.vectors["row"][0, 0])
        assert checkpoint.position == {"value": value}, "tensors and JSON belong together"
        found.append(value)
        sweep(folder)
        prune(folder, {newest.stem})
        assert len(list(folder.iterdir())) == 2
    assert found == sorted(found)
    assert set(found) == {1.0, 2.0}


def test_temporary_files_of_the_dead_are_swept_those_of_the_living_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".a.json.{ended.pid}.part", ".b.json.1.part", ".part", "c.part", ".notes.part"):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.json.1.part", ".notes.part", ".part", "c.part"]


def test_no_bit_of_a_checkpoint_can_change_unnoticed(tmp_path: Path) -> None:
    """In the JSON too: a learning rate or a step count with another digit would train on without a word."""
    path = save_checkpoint(tmp_path, "epoch-0001", some(1.5))
    content = load_checkpoint(path)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        for bit in range(0, 8 * len(whole), 3):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            file.write_bytes(data)
            try:
                found = load_checkpoint(path)
            except Damaged:
                continue
            else:  # another way to write the same
                assert (found.position, found.state.integers) == (content.position, content.state.integers)
                assert file.suffix == ".json"
        file.write_bytes(whole)


def test_a_checkpoint_names_no_file_elsewhere(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "checkpoints", "epoch-0001", some(1.5))
    for name in ("../../../etc/passwd", "/etc/passwd", "..", ".", "", "a\0b", 7, None):
        for sums in (None, 1):
            write_json(path, {**read_json(path), "tensors": name, "checksums": sums})
            with pytest.raises(Damaged, match=r"epoch-0001\.json"):
                load_checkpoint(path)
            prune(path.parent, {"epoch-0001"})  # reads it too, and goes on
            assert path.exists()


def test_a_checkpoint_of_the_first_version_is_read(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, "epoch-0001", some(1.5))
    new, data = read_json(path), path.with_suffix(".safetensors").read_bytes()
    del new["checksums"]
    write_json(path, {**new, "version": 1, "bytes": len(data), "crc32": zlib.crc32(data)})
    assert load_checkpoint(path).position == {"value": 1.5}
    write_json(path, {**new, "version": 1, "bytes": len(data), "crc32": zlib.crc32(data) ^ 1})
    with pytest.raises(Damaged, match="checksum does not fit"):
        load_checkpoint(path)
