"""Learners of a small network on a GPU, where there is one (`make test-gpu`): they end where learners on the processor
do."""

import mmap

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.codecs import CODECS
from roundelay.algorithms.local_update import Sgd
from roundelay.core.codec import Codec
from roundelay.core.flat import CHUNK
from roundelay.runtime.base import ClusterState
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.memory.device_rows import pinned, unpin
from support.blobs import BlobTask
from support.clusters import ASYNCHRONOUS, MINIBATCH, SYNCHRONOUS, cluster, plan
from support.on_gpu import DEVICE, NEEDED, ON_GPU

pytestmark = NEEDED
PROCESSOR = None


def end(name: str, learners: int, device: str | None) -> tuple[ClusterState, float]:
    """State and held-out loss after two epochs."""
    with ProcsRuntime(cluster(name, learners, BlobTask(device, dropout=0.0), momentum=0.9), threads=1) as runtime:
        for epoch in range(2):
            outcome = runtime.segment(plan(0, learners, examples=9 * MINIBATCH + 2, epoch=epoch))
            assert outcome.counts.frames.sum() == 9 * MINIBATCH + 2
        return runtime.state(), BlobTask(PROCESSOR, dropout=0.0).build().evaluate(runtime.consensus(), "dev").mean_loss


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_synchronous_strategies_end_where_they_do_on_the_processor(name: str) -> None:
    learners = 1 if name == "sgd" else 2
    there, here = end(name, learners, DEVICE)[0], end(name, learners, PROCESSOR)[0]
    assert there.integers == here.integers
    for vector, value in here.vectors.items():
        torch.testing.assert_close(there.vectors[vector], value, rtol=1e-3, atol=1e-4, msg=vector)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_strategies_learn(name: str) -> None:
    before = BlobTask(PROCESSOR, dropout=0.0).build()
    assert end(name, 2, DEVICE)[1] < 0.9 * before.evaluate(before.initial(), "dev").mean_loss


@pytest.mark.parametrize("name", ["adpsgd", "easgd"])
def test_rows_lie_on_the_device_and_are_kept_there_between_epochs(name: str) -> None:
    made = cluster(name, 2, BlobTask(DEVICE, dropout=0.0), momentum=0.9)
    with ProcsRuntime(made, threads=1) as runtime:
        assert all(row.vector.device.type == DEVICE for row in runtime.arena.rows())
        runtime.segment(plan(9, 2))
        state = runtime.state()
        assert all(vector.device.type == "cpu" for vector in state.vectors.values())
        runtime.load(state)
        assert all(torch.equal(runtime.state().vectors[key], vector) for key, vector in state.vectors.items())
        sums = total(runtime)
        runtime.segment(plan(9, 2, rate=0.0, epoch=1))
        torch.testing.assert_close(total(runtime), sums, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["async-diloco period=2", "bmuf period=2 quorum=1"])
def test_what_lies_beside_the_centre_is_on_the_device(name: str) -> None:
    """Exchanges with the centre find it there, of more than one chunk of the processor's."""
    with ProcsRuntime(
        cluster(name, 2, BlobTask(DEVICE, dropout=0.0, width=12_000), momentum=0.9), threads=1
    ) as runtime:
        beside = runtime.arena.rows()[-1].memory
        assert beside.keys() == set(runtime.cluster.strategy.centre_memory)
        assert all(vector.device.type == DEVICE for vector in beside.values())
        runtime.segment(plan(6, 2))
        state = runtime.state()
        assert any(vector.any() for key, vector in state.vectors.items() if key.startswith("centre "))
        runtime.load(state)
        assert all(torch.equal(runtime.state().vectors[key], vector) for key, vector in state.vectors.items())


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_what_is_coded_there_has_the_bits_of_the_processor(codec: Codec) -> None:
    x = torch.randn(CHUNK + 1027, generator=torch.Generator().manual_seed(0))
    here, there = torch.empty_like(x), torch.empty_like(x, device=DEVICE)
    left_here, left_there = torch.zeros_like(x), torch.zeros_like(x, device=DEVICE)
    for _ in range(3):
        codec.send(x, left_here, here)
        codec.send(x.to(DEVICE), left_there, there)
        assert torch.equal(there.cpu(), here)
        assert torch.equal(left_there.cpu(), left_here)


def total(runtime: ProcsRuntime) -> Tensor:
    """The vector that exchanges keep: the sum of all rows, (P,)."""
    rows = runtime.rows().sum(0)
    return rows + runtime.centre() if runtime.cluster.centre else rows


@pytest.mark.parametrize("sgd", [Sgd(), Sgd(0.9), Sgd(0.9, nesterov=True), Sgd(0.5, weight_decay=0.1)])
def test_updates_are_those_of_the_processor(sgd: Sgd) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, generator=generator)
    there, memory = x.to(DEVICE), {name: torch.zeros(1000) for name in sgd.memory}
    kept = {name: vector.to(DEVICE) for name, vector in memory.items()}
    for _ in range(5):
        gradient = torch.randn(1000, generator=generator)
        sgd.update_(x, gradient, memory, 0.1)
        sgd.update_(there, gradient.to(DEVICE), kept, 0.1)
    torch.testing.assert_close(there.cpu(), x, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not ON_GPU, reason="a processor's memory is nowhere pinned")
def test_memory_of_the_host_is_pinned_until_it_is_given_back() -> None:
    torch.zeros(1, device="cuda")
    vector = torch.frombuffer(mmap.mmap(-1, 1 << 20), dtype=torch.float32)
    assert pinned(vector).is_pinned()
    assert pinned(vector) is vector
    unpin(vector.data_ptr(), 1 << 20)
    assert not vector.is_pinned()
    assert pinned(vector).is_pinned()


@pytest.mark.skipif(not ON_GPU, reason="Triton compiles for GPUs")
@pytest.mark.parametrize("sgd", [Sgd(), Sgd(0.9), Sgd(0.9, nesterov=True), Sgd(0.5, weight_decay=0.1)])
@pytest.mark.parametrize("copies", [True, False])
def test_an_update_in_one_pass_is_that_of_the_processor(sgd: Sgd, copies: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CHUNK + 1027, generator=generator)
    there, memory = x.cuda(), {name: torch.zeros_like(x) for name in sgd.memory}
    kept = {name: vector.cuda() for name, vector in memory.items()}
    copy = torch.full_like(there, torch.nan) if copies else None
    update = sgd.attach_copying(there, kept, copy)
    assert update is not None, "Triton does not run here"
    for _ in range(5):
        gradient = torch.randn(len(x), generator=generator)
        sgd.update_(x, gradient, memory, 0.1)
        update.update_(gradient.cuda(), 0.1)
        assert copy is None or torch.equal(copy, there)
    torch.testing.assert_close(there.cpu(), x, rtol=1e-5, atol=1e-5)
    for name, vector in memory.items():
        torch.testing.assert_close(kept[name].cpu(), vector, rtol=1e-5, atol=1e-5)


def test_points_and_gradients_on_the_device_are_not_copied() -> None:
    learner, here = BlobTask(DEVICE, dropout=0.0).build(), BlobTask(PROCESSOR, dropout=0.0).build()
    plan_ = plan(1, 1).epoch
    expected, found = torch.empty(learner.parameters), torch.empty(learner.parameters, device=DEVICE)
    here.gradient(here.initial(), plan_.piece(0), plan_, expected)
    point = learner.initial().to(DEVICE)
    learner.gradient(point, plan_.piece(0), plan_, found, resident=True)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-5)
    learner.gradient(point.mul_(2), plan_.piece(0), plan_, found, resident=True)  # it looks at the point itself
    here.gradient(2 * here.initial(), plan_.piece(0), plan_, expected)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-5)
