"""Settings that all tests share."""

import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.extras import uncollected
from roundelay.runtime.procs import fork_server

# Machines that run other things too are slow at times; the limit of pytest-timeout is limit enough. Every run draws the
# same examples: whether a change is taken must not hang on luck. `HYPOTHESIS_PROFILE=explore` looks for new ones.
settings.register_profile("roundelay", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "roundelay"))

TESTS = Path(__file__).parent
LONG = (
    "faults/test_host_faults.py",
    "laws/test_local_optimizers.py",
    "agree/test_hosts.py",
    "faults/test_hosts.py",
    "end_to_end/test_signals.py",
    "agree/test_sim_procs.py",
    "faults/test_scripts.py",
    "faults/test_attach_deaths.py",
    "agree/test_replay.py",
    "laws/test_block_momentum.py",
    "agree/test_diverging_hosts.py",
    "faults/test_strangers.py",
    "faults/test_hangs.py",
    "laws/test_attach.py",
    "end_to_end/test_several_hosts.py",
    "end_to_end/test_training.py",
    "faults/test_replacements.py",
    "end_to_end/test_pipeline.py",
)
"""Files of tests that take longest come first: begun last, one of them would keep all but one processor waiting."""


@pytest.fixture(scope="session", autouse=True)
def loaded_once() -> Iterator[None]:
    """Let the process that learners are forks of load what torch's optimizers need, whichever test starts it: else
    every learner of a later test loads it by itself, for two seconds."""
    start = fork_server.start
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WORLD_SIZE", "ROUNDELAY_WORLD_SIZE"):  # whoever runs the tests is no learner of several
            patch.delenv(name, raising=False)
        patch.setattr(fork_server, "start", lambda preload: start([*preload, *TorchOptimizer.imports]))
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread: sums over several may be rounded in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect in one worker first, so that the others find the tests compiled: else each compiles all of them, for 13
    seconds. All that is imported stays, so garbage collection passes it over: with it a full one takes 0.3 seconds, and
    a grid of trainings asks for one at each."""
    with open(__file__) as ours:
        try:
            fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(ours, fcntl.LOCK_SH)
        with uncollected():
            yield
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files as LONG does; all others follow, as they were found."""
    places = {TESTS / name: place for place, name in enumerate(LONG)}
    gone = [str(path) for path in places if not path.is_file()]
    assert not gone, f"{__file__}: LONG names files that are not there: {gone}"
    items.sort(key=lambda item: places.get(item.path, len(places)))
