"""Loops of users on a GPU that several learners share: packed sequences, bfloat16, torch.compile, a learner killed."""

import math
import signal

import pytest
import torch

from support import attached_gpu
from support.attached_gpu import MODULES, make, train, values
from support.attached_hosts import run_hosts
from support.launched import reports, run_learners
from support.on_gpu import DEVICE, NEEDED, exact

pytestmark = NEEDED
SCRIPT = str(attached_gpu.__file__)


def alone(name: str, bf16: bool) -> list[float]:
    """The plain loop."""
    module = make(name, DEVICE)
    train(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), 0, DEVICE, bf16, lambda _: None)
    return values(module)


def test_one_learner_is_the_plain_loop() -> None:
    """Packed sequences whose weights are laid out anew in every forward, too. Bit for bit but where torch.compile
    orders operations in its own way."""
    found = reports(run_learners(1, SCRIPT, "loops", "adpsgd", DEVICE).stdout)
    for name in MODULES:
        assert found[f"{name} float32"][0]["values"] == alone(name, bf16=False), name
        assert found[f"{name} bfloat16"][0]["values"] == alone(name, bf16=True), name
    exact()
    assert found["dense compiled"][0]["values"] == pytest.approx(alone("dense", bf16=False), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd", "easgd"])
def test_learners_agree(strategy: str) -> None:
    done = run_learners(2, SCRIPT, "loops", strategy, DEVICE)
    assert "changed by hand" not in done.stderr
    for name, law in reports(done.stdout).items():
        assert law[0]["values"] == law[1]["values"], name
        assert all(math.isfinite(value) for value in law[0]["values"]), name
        assert law[0]["rows"] == ("on a device of its own" if strategy == "ssgd" else "shared on devices"), name


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)])
def test_learners_of_two_hosts_agree(sizes: tuple[int, ...]) -> None:
    """Rows stay on the GPU; exchanges with the other host work on copies."""
    said, complained = run_hosts(sizes, SCRIPT, "loops", "adpsgd", DEVICE)
    assert "changed by hand" not in complained
    for name, law in reports(said).items():
        assert len(law) == sum(sizes)
        assert all(one["values"] == law[0]["values"] for one in law.values()), name
        assert all(math.isfinite(value) for value in law[0]["values"]), name
        assert {one["rows"] for one in law.values()} == {"shared on devices"}, name


def test_rows_outlive_the_learner_that_had_them_kept() -> None:
    done = run_learners(2, SCRIPT, "killed", "adpsgd", DEVICE, expect=128 + signal.SIGKILL)
    law = reports(done.stdout)["killed"]
    assert set(law) == {1}
    assert law[1]["living"] == [1]
    assert all(math.isfinite(value) for value in law[1]["values"])
