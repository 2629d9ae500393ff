"""Rows on devices that a process of its own keeps; a processor stands in for the device."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.row_host import RowHost, RowRequest, RowsNotHosted, mapped


@pytest.fixture
def learner() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield process
    process.kill()
    process.wait()


def test_rows_are_the_same_memory_for_all_and_go_with_the_last_learner(learner: "subprocess.Popen[bytes]") -> None:
    wanted = RowRequest(("row", "momentum"), 1000, True, ("cpu", "cpu"), (learner.pid, learner.pid), ("outer",))
    keeper = RowHost(wanted, 100)
    here, there = (mapped(handles, ("row", "momentum"), 1000, True, 2, ("outer",)) for handles in keeper.handles)
    with pytest.raises(ValueError, match="another centre"):
        mapped(keeper.handles[0], ("row", "momentum"), 1000, True, 2)
    names = [("row", 0), ("row", 1), ("momentum", 0), ("momentum", 1)]
    for number, (name, rank) in enumerate(names):
        assert not here.vectors[name][rank].any()
        here.vectors[name][rank].fill_(number + 1)
    assert here.centre is not None
    assert there.centre is not None
    there.centre.fill_(7)
    assert [float(there.vectors[name][rank].mean()) for name, rank in names] == [1, 2, 3, 4]
    assert torch.equal(here.centre, torch.full((1000,), 7.0))
    layout = Layout(2, 1000, ("momentum",), centre=True, centre_memory=("outer",))
    arena = Arena(create_file(layout), layout, Patience(0, 1), here)
    there.beside["outer"].fill_(8)
    assert torch.equal(arena.rows()[-1].memory["outer"], torch.full((1000,), 8.0))
    arena.close()
    assert keeper.process.poll() is None
    learner.kill()
    assert keeper.process.wait(60) == 0


def test_what_cannot_be_kept_says_why(learner: "subprocess.Popen[bytes]") -> None:
    with pytest.raises(RowsNotHosted, match="nowhere"):
        RowHost(RowRequest(("row",), 10, False, ("nowhere",), (learner.pid,)), 100)
