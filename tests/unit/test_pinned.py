"""Host memory that is registered with CUDA, by a driver that only keeps account."""

import pytest
import torch

from roundelay.runtime.procs.memory import device_rows as room
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.device_rows import pinned
from roundelay.runtime.procs.memory.locks import Patience


class Driver:
    """Registers ranges of memory, none twice."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, at: int, size: int, flags: int) -> int:
        assert not any(at < first + many and first < at + size for first, many in self.registered.items())
        self.registered[at] = size
        return 0

    def cudaHostUnregister(self, at: int) -> int:
        del self.registered[at]
        return 0


def test_what_an_arena_has_registered_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next arena may be mapped at the same address, and the driver would write to pages of the first."""
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    own = torch.zeros(2000)
    arenas = [Arena(create_file(layout := Layout(2, 3000)), layout, Patience(0, 1)) for _ in range(2)]
    for arena in arenas:
        for _ in range(2):
            assert pinned(vector := arena.vector("gradient", 1)) is vector
    pinned(own)
    assert len(driver.registered) == 3
    for arena in arenas:
        arena.close()
    assert driver.registered == {own.data_ptr(): 8000}
    room.unpin(own.data_ptr(), 8000)
    assert not driver.registered
