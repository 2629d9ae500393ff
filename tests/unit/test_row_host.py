"""Rows on devices that a process of its own keeps; a processor stands in for the device."""

import subprocess

import pytest
import torch
from torch import Tensor

from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.device_rows import DeviceVectors
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.row_host import RowHost, RowRequest, RowsNotHosted, mapped


def _vector(rows: DeviceVectors, name: str, rank: int) -> Tensor:
    found = rows.vectors[name][rank]
    assert found is not None
    return found


def test_rows_are_the_same_memory_for_all_and_go_with_the_last_that_holds_them() -> None:
    """One closes its session, another is killed."""
    wanted = RowRequest(("row", "momentum"), 1000, True, ("cpu", "cpu"), 2, ("outer",))
    both = [True, True]
    keeper = RowHost(wanted, 100)
    here, there = (mapped(handles, ("row", "momentum"), 1000, True, both, ("outer",)) for handles in keeper.handles)
    with pytest.raises(ValueError, match="another centre"):
        mapped(keeper.handles[0], ("row", "momentum"), 1000, True, both)
    names = [("row", 0), ("row", 1), ("momentum", 0), ("momentum", 1)]
    for number, (name, rank) in enumerate(names):
        assert not _vector(here, name, rank).any()
        _vector(here, name, rank).fill_(number + 1)
    assert here.centre is not None
    assert there.centre is not None
    there.centre.fill_(7)
    assert [float(_vector(there, name, rank).mean()) for name, rank in names] == [1, 2, 3, 4]
    assert torch.equal(here.centre, torch.full((1000,), 7.0))
    layout = Layout(2, 1000, ("momentum",), centre=True, centre_memory=("outer",))
    arena = Arena(create_file(layout), layout, Patience(0, 1), here)
    there.beside["outer"].fill_(8)
    assert torch.equal(arena.rows()[-1].memory["outer"], torch.full((1000,), 8.0))
    arena.close()
    assert there.hold is not None
    with subprocess.Popen(["sleep", "1000"], pass_fds=[there.hold._descriptor]) as learner:
        for one in (keeper, here, there):
            one.close()
        with pytest.raises(subprocess.TimeoutExpired):
            keeper.process.wait(0.1)
        learner.kill()
    assert keeper.process.wait(60) == 0


def test_what_cannot_be_kept_says_why() -> None:
    with pytest.raises(RowsNotHosted, match="nowhere"):
        RowHost(RowRequest(("row",), 10, False, ("nowhere",), 1), 100)
