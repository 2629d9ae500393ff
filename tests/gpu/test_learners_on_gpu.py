"""Learner processes with rows in the memory of a GPU that they share: recorded and repeated, killed, and started from
a process that knows nothing of the GPU."""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.algorithms.local_update import LocalOptimizer, Sgd
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.progress import Silent
from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import Inputs
from roundelay.runtime.base import Glance, SegmentPlan, Straggler
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.replay.whole import replay
from roundelay_speech.models import BlstmConfig, DnnConfig, ModelConfig
from support.blobs import Blobs
from support.clusters import MINIBATCH, cluster, plan
from support.on_gpu import DEVICE, NEEDED, ON_GPU
from support.processes import run_python
from support.toy_corpus import FILTERS
from support.toy_models import toy

pytestmark = [*NEEDED, pytest.mark.usefixtures("one_thread")]
MODELS: dict[str, ModelConfig] = {
    "dnn": DnnConfig(layers=2, width=32, context=2),
    "blstm": BlstmConfig(layers=2, cells=16, bottleneck=8, dropout=0.2, chunk=21, context=0, deltas=0),
}
FRAMES = 120
MANY = 2_000_000
"""Examples, more than are ever trained."""


@dataclass(frozen=True)
class Acoustic(Task):
    """A tiny acoustic model with dropout, on the device."""

    name: str
    autocast: bool = False

    def build(self) -> Learner:
        store, labels, splits, states = toy()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = MODELS[self.name].network(FILTERS, states)
        examples = network.examples(store, labels, splits)
        return ModuleLearner(network, examples, self.autocast, clip=5.0, device=torch.device(DEVICE))


@dataclass(frozen=True)
class Points(Task):
    """A network small enough for many steps a second, on the device."""

    def build(self) -> Learner:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        return ModuleLearner(module, Again(), device=torch.device(DEVICE))


class Again(Blobs):
    """The same points, over and over."""

    def count(self, split: str) -> int:
        return MANY

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Inputs, Tensor]:
        return super().batch(split, numbers % 640)


def epochs(learners: int, examples: int) -> list[SegmentPlan]:
    return [
        SegmentPlan(EpochPlan(epoch, examples, FRAMES * learners, learners, 1), 0.05 / (1 + epoch))
        for epoch in range(2)
    ]


@pytest.mark.parametrize(
    ("strategy", "model", "autocast", "optimizer"),
    [
        ("adpsgd:random-ring", "blstm", False, Sgd(0.9)),
        ("adpsgd:fixed-ring", "blstm", True, Sgd(0.9, nesterov=True)),
        ("easgd period=2", "dnn", False, Sgd(0.9, weight_decay=1e-4)),
        ("async-diloco period=3", "dnn", True, Sgd(0.9)),
        ("a2cid2 mixing_rate=0.3 pull=0.8", "dnn", False, TorchOptimizer("adamw")),
        ("hadpsgd node_size=2", "dnn", False, Sgd(0.9)),
        ("ssgd", "blstm", True, Sgd(0.9)),
        ("delay-by-one", "dnn", False, Sgd(0.9)),
    ],
)
def test_a_recorded_run_comes_out_the_same_bit_for_bit(
    strategy: str, model: str, autocast: bool, optimizer: LocalOptimizer, tmp_path: Path
) -> None:
    """On the same device, whatever the timing was: three learners in a process each, then all in one."""
    learners = 4 if "node" in strategy else 3
    made = cluster(strategy, learners, Acoustic(model, autocast), optimizer=optimizer)
    examples = Acoustic(model).build().examples
    with ProcsRuntime(made, threads=1, trace=tmp_path) as runtime:
        for one in epochs(learners, examples):
            assert runtime.segment(one).counts.frames.sum() == examples
        recorded = runtime.state()
    found = replay(tmp_path, made, Silent())
    assert found.difference == ""
    for name, value in recorded.vectors.items():
        assert torch.equal(found.state.vectors[name], value), name


@pytest.mark.parametrize(("strategy", "victims"), [("adpsgd", (1,)), ("easgd period=2", (0, 2)), ("asgd", (0,))])
def test_rows_outlive_learners_that_are_killed(strategy: str, victims: tuple[int, ...]) -> None:
    """kill -9 in the middle of the work. Others finish it; who takes the place goes on with a row of the device."""
    slow = tuple(Straggler(rank, seconds=0.01) for rank in range(3))
    made = cluster(strategy, 3, Points(), momentum=0.9, stragglers=slow)
    with ProcsRuntime(made, threads=1) as runtime:
        before, initial = runtime.process_ids(), runtime.consensus()
        killed: list[int] = []

        def watch(glance: Glance) -> bool:
            if not killed:
                killed.extend(victims)
                for rank in victims:
                    os.kill(before[rank], signal.SIGKILL)
                return False
            now = runtime.process_ids()
            return glance.learners_alive == len(now) and all(now[rank] != before[rank] for rank in victims)

        outcome = runtime.segment(plan(0, 3, rate=0.05, examples=MANY), watch)
        assert sorted(lost.rank for lost in outcome.lost) == [*victims]
        assert sorted(joined.rank for joined in outcome.joined) == [*victims]
        assert all(row.vector.device.type == DEVICE for row in runtime.arena.rows())
        after = runtime.segment(plan(10, 3, epoch=1))
        assert after.counts.frames.sum() == 10 * MINIBATCH
        learner, end = made.task.build(), runtime.consensus()
        assert learner.evaluate(end, "dev").mean_loss < 0.9 * learner.evaluate(initial, "dev").mean_loss


@pytest.mark.parametrize("learners", [4, 8])
def test_many_learners_share_one_device(learners: int) -> None:
    made = cluster("adpsgd:random-ring", learners, Points(), momentum=0.9)
    with ProcsRuntime(made, threads=1) as runtime:
        outcome = runtime.segment(plan(20, learners))
        assert outcome.counts.frames.sum() == 20 * MINIBATCH
        assert not runtime.rows().isnan().any()


def test_a_learner_that_cannot_have_its_memory_says_so() -> None:
    """Not by a wait for the patience of all."""
    made = replace(cluster("adpsgd", 2), task=Broken())
    with pytest.raises(RuntimeError, match="there is no such device"):
        ProcsRuntime(made, threads=1)


@dataclass(frozen=True)
class Broken(Task):
    """Fits into the first process, and not into a learner's."""

    parent: int = os.getpid()

    def build(self) -> Learner:
        if os.getpid() != self.parent:
            raise RuntimeError("there is no such device")
        return Points().build()


IMPORTING = """
import os
import torch
{imports}
import roundelay.runtime.procs.worker
assert not torch.cuda.is_initialized()
child = os.fork()
if not child:
    torch.ones(1, device="{device}").add_(1).cpu()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("imports", ["", "import torch._dynamo"], ids=["", "with torch's optimizers"])
def test_the_fork_server_leaves_the_device_alone(imports: str) -> None:
    """A process that has asked CUDA anything cannot be forked into one that uses it."""
    script = IMPORTING.format(imports=imports, device=DEVICE)
    run_python("-c", script)


@pytest.mark.skipif(not ON_GPU, reason="the question is the GPU's")
def test_the_kernel_of_updates_runs_here() -> None:
    """Else updates take another pass over the row."""
    row = torch.zeros(8, device=DEVICE)
    assert Sgd().attach_copying(row, {}, torch.empty_like(row)) is not None
