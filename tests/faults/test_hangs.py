"""Learners that fail or hang: the run ends, soon, and says who."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.job import Interrupt
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Glance, Runtime, Straggler
from roundelay.runtime.procs import driver
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.members import start_member
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.training import train
from support.broken import DeadOnArrival, Failing
from support.clusters import ENDLESS, cluster, plan
from support.runs import job

SLOW = tuple(Straggler(rank, seconds=0.02) for rank in range(3))


@pytest.mark.parametrize("name", ["ssgd", "adpsgd"])
def test_an_exception_is_told_at_once_whoever_waits_for_that_learner(name: str) -> None:
    made = cluster(name, 3, Failing(parameters=37), stragglers=SLOW)
    with ProcsRuntime(made, threads=1) as runtime, pytest.raises(RuntimeError, match="minibatch 10 is cursed"):
        runtime.segment(plan(ENDLESS, 3))  # would take hours, or the patience of 300 s, and the test has 240


WAITS = (
    "ssgd",
    "delay-by-one",
    "dpsgd",
    "bsp period=3",
    "adpsgd",
    "asgd",
    "rennala",
    "hadpsgd",
    "divshare fragments=3",
)
"""One for each effect in which a learner waits: for means, mixes, exchanges, gatherings and others of its node."""


@pytest.mark.parametrize("name", WAITS)
def test_a_learner_that_hangs_is_waited_for_within_bounds_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is short once all have started, which takes as long as it takes."""
    monkeypatch.setattr(driver, "start_member", lambda spec: start_member(replace(spec, patience_seconds=0.5)))
    with ProcsRuntime(cluster(name, 3, stragglers=SLOW), threads=1) as runtime:
        runtime._patience_seconds, stopped = 0.5, False

        def stop(_: Glance) -> bool:
            nonlocal stopped
            if stopped:  # those who need not wait for it come to an end, and it does not
                return True
            stopped = True
            os.kill(runtime.process_ids()[1], signal.SIGSTOP)
            return False

        with pytest.raises(TimeoutError, match=r"has waited|neither take a step nor answer"):
            runtime.segment(plan(ENDLESS, 3), stop)
        os.kill(runtime.process_ids()[1], signal.SIGCONT)  # or closing waits for it before it kills it


def test_learners_that_do_not_start_are_the_users_to_mend(tmp_path: Path) -> None:
    task = DeadOnArrival(parent=os.getpid(), examples=640)
    with pytest.raises(UserError, match=r"do not start: learner 0 died: ended with exit status 7"):
        train(job("adpsgd", task, runtime="procs"), tmp_path / "exp", Silent(), Interrupt())


def test_a_hang_in_training_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(self: Runtime, *_: object) -> None:
        raise TimeoutError("learner 0 has waited 300 s for row 1")

    monkeypatch.setattr(SimRuntime, "segment", hang)
    with pytest.raises(UserError, match=r"for row 1\. .*same command resumes.*patience_seconds"):
        train(job("adpsgd", Quadratic(examples=640)), tmp_path / "exp", Silent(), Interrupt())
