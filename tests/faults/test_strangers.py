"""Strangers who reach what learners meet by: nobody's file is written to, and nobody is given more than he has."""

import hashlib
import os
import sys
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from roundelay.runtime.launch.local_rendezvous import LocalRendezvous
from roundelay.runtime.launch.world import read_world
from support import met_by_strangers
from support.launched import LAUNCH, TESTS, TORCHRUN, reports, run_learners
from support.preloaded import Preloaded
from support.until import together

SCRIPT = str(met_by_strangers.__file__)
VICTIM_BYTES = 1 << 20
"""More than the arena of that script has."""


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user that has nothing to do with all this."""
    file = tmp_path / "victim"
    file.write_bytes(hashlib.shake_128(b"something the user would miss").digest(VICTIM_BYTES))
    return file


def environment(rank: int, port: int) -> dict[str, str]:
    """As torchrun makes it, whose store is at `port`."""
    known = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": 1,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }
    return {**os.environ, **{name: str(value) for name, value in known.items()}}


def start(rank: int, port: int, *arguments: str) -> Preloaded:
    return Preloaded([SCRIPT, *arguments], environment(rank, port))


def test_whoever_writes_to_torchruns_store_tells_learners_nothing(victim: Path) -> None:
    """Rank 0's facts are replaced there before rank 1 attaches, by others with the path of the user's file."""
    before = victim.read_bytes()
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    learners = [start(rank, store.port, str(victim)) for rank in range(2)]
    said = [learner.communicate(timeout=220) for learner in learners]
    assert victim.read_bytes() == before
    assert [learner.returncode for learner in learners] == [0, 0], said
    found = reports("".join(out for out, _ in said))["met"]
    assert found[0]["values"] == found[1]["values"]
    assert str(victim) in PrefixStore("roundelay", store).get("arena 0").decode(), "the stranger has done what he can"


def test_a_file_is_not_taken_for_the_learners_memory(victim: Path) -> None:
    """Even from a process of the same user that says it is rank 0."""
    before, port = victim.read_bytes(), 1
    world = read_world(environment(0, port))
    learner = start(1, port)
    with open(victim, "r+b") as file, LocalRendezvous(world, 0, 100) as rendezvous:
        (facts,) = rendezvous.collect()
        rendezvous.tell(1, {**facts, "rows": None}, file.fileno())
        error, _ = learner.communicate(timeout=220)
    assert learner.returncode == 1
    assert "UserError" in error
    assert f"{victim} was given as the memory that learners share, but it is no sealed memory file" in error
    assert victim.read_bytes() == before


@pytest.mark.parametrize("by", [LAUNCH, (*LAUNCH[:-1], "--torchrun-names", "-n"), TORCHRUN])
def test_no_learner_listens_on_a_network(by: tuple[str, ...]) -> None:
    """Nor the launcher, if it is ours: while they train, none of them has a socket of the internet's protocols."""
    found = reports(run_learners(2, SCRIPT, by=by).stdout)["met"]
    assert [found[rank]["sockets"] for rank in range(2)] == [[], []]


def test_learners_of_two_launches_do_not_meet() -> None:
    """At the same time, without an address to choose."""
    results: list[str] = []
    together(*(lambda: results.append(run_learners(2, SCRIPT).stdout) for _ in range(2)))
    assert [sorted(reports(text)["met"]) for text in results] == [[0, 1], [0, 1]]
