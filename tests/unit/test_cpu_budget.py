"""Rate at which exchanges with other hosts may begin."""

import os
from dataclasses import dataclass

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.exchange.client import MOST_SECONDS, CpuBudget, idle_seconds
from roundelay_speech.recipes.recipe import Training


@dataclass
class Machine:
    """Its clock, and how long its cores have been idle."""

    now: float = 100.0
    idle: float = 7.0

    def cpu_budget(self, share: float, cores: int = 1) -> CpuBudget:
        return CpuBudget(share, cores, lambda: self.now, [lambda: self.idle])

    def pass_(self, seconds: float, idle: float = 0.0) -> None:
        self.now += seconds
        self.idle += idle


def test_what_was_spent_is_waited_for_on_busy_cores() -> None:
    machine = Machine()
    cpu_budget = machine.cpu_budget(0.05)
    assert cpu_budget.pause() == 0
    cpu_budget.spent(0.04)
    cpu_budget.spent(0.02)
    assert cpu_budget.pause() == pytest.approx(0.06 / 0.05)
    machine.pass_(1.0)
    assert cpu_budget.pause() == pytest.approx(0.2)
    machine.pass_(0.2 + 1e-9)
    assert cpu_budget.pause() == 0


def test_in_the_long_run_the_share_is_kept() -> None:
    machine = Machine()
    cpu_budget, spent, begun = machine.cpu_budget(0.05, 2), 0.0, machine.now
    while machine.now < begun + 1000:
        if pause := cpu_budget.pause():
            machine.pass_(pause + 1e-6)
        else:
            cpu_budget.spent(0.045)
            spent += 0.045
            machine.pass_(0.2)
    assert spent / (machine.now - begun) == pytest.approx(0.05 * 2, rel=0.01)


def test_idle_time_is_free() -> None:
    machine = Machine()
    cpu_budget = machine.cpu_budget(0.05)
    cpu_budget.spent(0.5)
    machine.pass_(0.4, idle=0.3)
    assert cpu_budget.pause() == pytest.approx((0.5 - 0.3 - 0.05 * 0.4) / 0.05)
    machine.pass_(0.4, idle=0.4)
    assert cpu_budget.pause() == 0


def test_cores_that_look_idle_are_not_ours_when_the_quota_is_spent() -> None:
    machine, unused = Machine(), [50.0]
    cpu_budget = CpuBudget(0.05, 1, lambda: machine.now, [lambda: machine.idle, lambda: unused[0]])
    cpu_budget.spent(0.5)
    machine.pass_(0.4, idle=0.4)
    unused[0] += 0.1
    assert cpu_budget.pause() == pytest.approx((0.5 - 0.1 - 0.05 * 0.4) / 0.05)
    machine.pass_(0.4, idle=0.4)
    unused[0] -= 1.0  # groups may use more for a while
    assert cpu_budget.pause() == pytest.approx((0.5 - 0.1 - 0.05 * 0.8) / 0.05)


def test_little_is_saved_up() -> None:
    machine = Machine()
    cpu_budget = machine.cpu_budget(0.05)
    machine.pass_(3600.0, idle=1800.0)
    assert cpu_budget.pause() == 0
    cpu_budget.spent(0.05 * MOST_SECONDS + 0.05)
    assert cpu_budget.pause() == pytest.approx(1.0)


def test_idle_seconds_of_this_machine() -> None:
    """They go up, no faster than the cores allow."""
    with open("/proc/uptime") as file:
        up = float(file.read().split()[0])
    first, second = idle_seconds(), idle_seconds()
    assert 0 <= first <= second <= 1.01 * up * len(os.sched_getaffinity(0)) + 1


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(UserError, match=r"training\.exchange_share"):
        Training(exchange_share=share)
