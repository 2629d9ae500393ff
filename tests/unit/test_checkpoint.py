"""Checkpoints: whole or absent, and damage is named."""

from pathlib import Path

import pytest
import torch

from roundelay.checkpoint import Checkpoint, latest, load_checkpoint, prune, save_checkpoint
from roundelay.core.errors import UserError
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
