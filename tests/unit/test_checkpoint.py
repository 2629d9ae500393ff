"""Checkpoints: whole or absent, and damage is named."""

import zlib
from pathlib import Path

import pytest
import torch

from roundelay.checkpoint import Checkpoint, latest, load_checkpoint, prune, save_checkpoint
from roundelay.core.checksums import Damaged
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.runtime.base import ClusterState


def some(value: float) -> Checkpoint:
    vectors = {"row": torch.full((2, 5), value), "momentum": torch.arange(10.0).view(2, 5)}
    return Checkpoint(ClusterState(vectors, {"steps": [3, 4]}, virtual_ns=17), {"frames": 99})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    read = load_checkpoint(save_checkpoint(tmp_path, "epoch-0001", some(1.5)))
    assert torch.equal(read.state.vectors["row"], some(1.5).state.vectors["row"])
    assert (read.state.integers, read.state.virtual_ns, read.position) == ({"steps": [3, 4]}, 17, {"frames": 99})


def test_the_newest_is_the_one_furthest_in_the_data(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    for name in ("epoch-0002", "epoch-0002-at-000000128", "epoch-0001"):
        save_checkpoint(tmp_path, name, some(0))
    newest = latest(tmp_path)
    assert newest is not None
    assert newest.stem == "epoch-0002-at-000000128"


def test_a_kill_between_tensors_and_json_leaves_the_one_before(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "epoch-0001", some(1))
    save_checkpoint(tmp_path, "epoch-0002", some(2))
    (tmp_path / "epoch-0002.json").unlink()
    newest = latest(tmp_path)
    assert newest is not None
    assert newest.stem == "epoch-0001"


def test_damage_is_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, "epoch-0001", some(1))
    tensors = path.with_suffix(".safetensors")
    data = bytearray(tensors.read_bytes())
    data[-3] ^= 1
    tensors.write_bytes(data)
    with pytest.raises(UserError, match=r"epoch-0001\.safetensors: damaged"):
        load_checkpoint(path)
    tensors.unlink()
    with pytest.raises(UserError, match=r"epoch-0001\.safetensors: cannot be read"):
        load_checkpoint(path)


def test_pruning_keeps_what_it_is_told(tmp_path: Path) -> None:
    for number in range(3):
        save_checkpoint(tmp_path, f"epoch-{number:04d}", some(number))
    prune(tmp_path, {"epoch-0002"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch-0002.json", "epoch-0002.safetensors"]


def test_no_bit_of_a_checkpoint_can_change_unnoticed(tmp_path: Path) -> None:
    """In the JSON too: a learning rate or a step count with another digit would train on without a word."""
    path = save_checkpoint(tmp_path, "epoch-0001", some(1.5))
    content = load_checkpoint(path)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        for bit in range(8 * len(whole)):
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
    assert load_checkpoint(path).position == {"frames": 99}
    write_json(path, {**new, "version": 1, "bytes": len(data), "crc32": zlib.crc32(data) ^ 1})
    with pytest.raises(Damaged, match="checksum does not fit"):
        load_checkpoint(path)
