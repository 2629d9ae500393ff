"""An update and a snapshot in one pass: with any kernel the learner ends where it does chunk by chunk. What the GPU's
kernel computes is tested in tests/gpu."""

import numpy as np
import pytest
import torch
from torch import Tensor

from roundelay.algorithms import local_update
from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.one_pass import StepNumbers, sgd_kernel
from roundelay.core.flat import CHUNK
from roundelay.core.state import Gradient, Statistics
from roundelay.runtime.base import Counts
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.rows import NoLock, Row

SIZE = CHUNK + 27


def by_the_equations(
    x: Tensor, gradient: Tensor, memory: Tensor | None, copy: Tensor | None, numbers: StepNumbers
) -> None:
    sgd = Sgd(numbers.momentum, numbers.nesterov, numbers.weight_decay)
    sgd.update_(x, gradient, {} if memory is None else {"momentum": memory}, numbers.rate)
    if copy is not None:
        copy.copy_(x)


def learner(sgd: Sgd, apart: bool) -> LearnerState:
    x = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    memory = {name: torch.zeros(SIZE) for name in sgd.memory}
    row, snapshot = Row(0, x, np.zeros(1, np.int64), NoLock()), torch.empty(SIZE) if apart else None
    tables = LearnerTables(np.zeros(1, np.int64), Counts.zeros(1, False), np.zeros(0))
    me = LearnerState(LearnerPlace(0, 1, 0), LearnerVectors(row, torch.empty(SIZE), snapshot, memory), sgd, tables)
    me.begin_segment(None, (0,), "row")
    me.learning_rate = 0.1
    return me


def end(sgd: Sgd, apart: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Row, snapshot and memory after three steps."""
    me, drawn = learner(sgd, apart), torch.Generator().manual_seed(1)
    for _ in range(3):
        version = me.snapshot().version
        me.step(Gradient(torch.randn(SIZE, generator=drawn), version, Statistics(), 1.0))
    return me.x, me.snapshot().vector, dict(me.memory)


@pytest.mark.parametrize("apart", [True, False], ids=["a snapshot apart", "the row is the snapshot"])
@pytest.mark.parametrize("sgd", [Sgd(), Sgd(0.9), Sgd(0.9, nesterov=True), Sgd(0.5, weight_decay=0.1)])
def test_one_pass_ends_where_chunks_do(sgd: Sgd, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, snapshot, memory = end(sgd, apart)
    assert torch.equal(x, snapshot)
    monkeypatch.setattr(local_update, "sgd_kernel", lambda device: by_the_equations)
    there, copy, kept = end(sgd, apart)
    assert torch.equal(there, x)
    assert torch.equal(copy, snapshot)
    assert all(torch.equal(kept[name], vector) for name, vector in memory.items())


def test_a_processor_walks_chunk_by_chunk() -> None:
    """There the cache makes one pass of several."""
    assert sgd_kernel(torch.device("cpu")) is None
