"""Laws of learners that are groups of processes, which shard their model by `fully_shard`, or have all of it in each,
under DistributedDataParallel. All run the script support/attached_groups.py, two learners each."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import roundelay
from roundelay.core.errors import UserError
from roundelay.runtime.launch.world import group_environment, read_world
from support import attached_groups
from support.attached_groups import BATCHES, CORRUPT, STRATEGIES
from support.attached_hosts import HostsOfLearners
from support.launched import LAUNCH, replay, reports, run_learners

Found = Mapping[str, Mapping[int, Mapping[str, Any]]]
SCRIPT = str(attached_groups.__file__)


def by_groups(size: int, *rest: str, expect: int = 0) -> "Any":
    """Learners of so many processes each."""
    return run_learners(2, "--group", str(size), *rest, by=LAUNCH, expect=expect)


@cache
def whole() -> Found:
    """Learners of one process without a mesh."""
    return reports(run_learners(2, SCRIPT, "0", "laws").stdout)


Run = tuple[Found, Path]
"""Words of learners, and the record of their sessions."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Learners of so many processes on one host, recorded; each size runs once."""

    @cache
    def run(size: str) -> Run:
        record = tmp_path_factory.mktemp("recorded") / "record"
        done = by_groups(2, SCRIPT, size, "laws,auto,shared", str(record.parent / "saves"), str(record))
        return reports(done.stdout), record

    return run


@pytest.fixture(scope="module", params=["sharded", "sharded on two hosts", "replicated", "replicated on two hosts"])
def divided(request: pytest.FixtureRequest, here: Callable[[str], Run]) -> Found:
    """Groups of two, on one host or on one each, whose processes each train half of every minibatch."""
    size = "2w" if "replicated" in request.param else "2"
    if "hosts" in request.param:
        with HostsOfLearners((2, 2), [SCRIPT, size, "between hosts"]) as hosts:
            return reports(hosts.end()[0])
    return here(size)[0]


@pytest.fixture(scope="module")
def alone() -> Found:
    """Groups of one."""
    return reports(by_groups(1, SCRIPT, "1", "laws").stdout)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_group_of_one_is_a_learner(alone: Found, strategy: str) -> None:
    for rank in range(2):
        mine, other = alone[f"{strategy} 0"][rank], whole()[f"{strategy} 0"][rank]
        if "gain" in strategy:  # a group follows it one step later
            assert mine["work"] > 1
        else:
            assert all(mine[which] == other[which] for which in ("middle", "values", "looks"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_divided_is_whole_to_rounding(divided: Found, strategy: str) -> None:
    if f"{strategy} 0" not in divided:
        pytest.skip("learners of two hosts take no turns")
    for which in ("middle", "values", "looks"):
        found = [divided[f"{strategy} {place}"][rank][which] for place in range(2) for rank in range(2)]
        if which != "looks" or strategy == "ssgd":  # between meetings learners differ
            assert found[1:] == found[:1] * 3, "one model on all processes"
        if "gain" not in strategy:  # which is by the noise of a shard, or of a learner of two processes
            expected = torch.tensor(whole()[f"{strategy} 0"][0][which])
            torch.testing.assert_close(torch.tensor(found[0]), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", params=["2", "2w"], ids=["sharded", "replicated"])
def size(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def shared(size: str, here: Callable[[str], Run]) -> Found:
    return here(size)[0]


@pytest.fixture(scope="module")
def record(size: str, here: Callable[[str], Run]) -> Path:
    return here(size)[1]


def test_auto_is_chosen_by_the_first_learner_whose_processes_compute_together(shared: Found) -> None:
    said = [[shared[f"auto {place}"][rank] for place in range(2)] for rank in range(2)]
    assert len({one["label"] for of_learner in said for one in of_learner}) == 1
    first, other = ([one["gradients"] for one in of_learner] for of_learner in said)
    assert first[0] == first[1] > 0
    assert other == [0, 0]
    errors = [shared[f"auto fails {place}"][rank]["error"] for place in range(2) for rank in range(2)]
    assert all("unknown option auto.second" in error for error in errors)


def test_batches_go_to_a_learner_once_and_its_processes_have_the_same(shared: Found) -> None:
    seen = [[shared[f"shared {place}"][rank]["seen"] for place in range(2)] for rank in range(2)]
    assert all(first == second for first, second in seen)
    assert sorted(seen[0][0] + seen[1][0]) == list(range(BATCHES))


def test_a_gradient_that_is_not_finite_in_one_process_is_skipped_in_all(shared: Found) -> None:
    values = [shared[f"skipped {place}"][rank]["values"] for place in range(2) for rank in range(2)]
    assert values[1:] == values[:1] * 3
    assert torch.tensor(values[0]).isfinite().all()


def test_a_save_has_a_folder_for_each_shard_and_is_gone_on_from_bit_for_bit(shared: Found, size: str) -> None:
    for place in range(2):
        for rank in range(2):
            went_on = shared[f"went on {place}"][rank]
            assert shared[f"resumed {place}"][rank]["values"] == went_on["values"]
            assert went_on["folder"] == "save-000000001" if "w" in size else f"shard-{place}-of-2/save-000000001"


def test_a_process_that_shows_what_the_first_has_keeps_the_point_alone(here: Callable[[str], Run]) -> None:
    """Beside its gradient: no row, no gradient that is handed in, and no copy to find changes by."""
    for rank in range(2):
        held = [here("2w")[0][f"went on {place}"][rank]["held"] for place in range(2)]
        assert held[0] >= 4
        assert held[1] == 1


def test_a_record_of_groups_is_repeated_bit_for_bit(shared: Found, record: Path) -> None:
    """All laws above: minibatches of an asynchronous session, a skipped gradient, one that goes on from a save."""
    done = replay(record)
    was, now = ({law: said[law] for law in said if "auto" not in law} for said in (shared, reports(done.stdout)))
    assert now == was
    assert "of 2 learners, repeated to the same rows, bit for bit" in done.stdout


def test_the_group_whose_gradient_differs_is_named(shared: Found, record: Path) -> None:
    """One process of learner 1 computes wrongly, in the second step of the first session."""
    done = replay(record, variables={CORRUPT: "1:2"}, expect=1)
    told = [line for line in done.stdout.splitlines() if line.startswith("The first difference")]
    assert told
    for line in told:
        assert "rank 1, which ran on" in line
        assert "in 2 processes: the gradient of its step 2 differs" in line


def test_a_death_takes_the_group_the_others_go_on_and_it_comes_back(size: str, tmp_path: Path) -> None:
    done = by_groups(2, "--restarts", "1", SCRIPT, size, "deaths", str(tmp_path))
    assert "learner 1 ended with status 137, and is started again" in done.stderr
    found = reports(done.stdout)
    assert [found[f"deaths {place}"][rank]["back"] for place in range(2) for rank in range(2)] == [False, True] * 2
    values = [found[f"deaths {place}"][rank]["values"] for place in range(2) for rank in range(2)]
    assert values[1:] == values[:1] * 3


def test_what_fails_in_the_first_process_fails_in_all_of_its_learner() -> None:
    """By the death of the other learner; and gradients that nobody has averaged are an error."""
    found = reports(by_groups(2, SCRIPT, "2w", "ends", expect=137).stdout)
    assert [found[f"ends {place}"] for place in range(2)] == [
        {0: {"law": f"ends {place}", "rank": 0, "died": 1}} for place in range(2)
    ]
    for place in range(2):
        for rank in range(2):
            error = found[f"not averaged {place}"][rank]["error"]
            assert error.startswith(f"rank {rank}: the 2 processes of this learner have different gradients")


# Refusals, in one process ---------------------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_what_a_session_cannot_train_is_refused() -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("learner", "shard"))

    def attach(shard: Any, model: nn.Sequential, **options: Any) -> None:
        shard(model)
        with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **options):
            pass

    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))

    with pytest.raises(UserError, match=r"parameter 0\.weight is sharded and 1\.weight is not"):
        attach(lambda model: fully_shard(model[0], mesh=mesh["shard"]), layers())
    with pytest.raises(UserError, match=r"Replicas are learners of the session"):
        attach(lambda model: fully_shard(model, mesh=mesh), layers())
    with pytest.raises(UserError, match=r"sharded in torch\.bfloat16: leave parameters in float32"):
        attach(lambda model: fully_shard(model, mesh=mesh["shard"]), layers().bfloat16())


def test_processes_of_a_group_that_each_hold_a_whole_module_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDELAY_GROUP", "2")
    model = nn.Linear(2, 2)
    with pytest.raises(
        UserError,
        match=r"2 processes for each learner, and the module is whole in each: shard it.*DistributedDataParallel",
    ):
        roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_learners_are_numbered_by_groups() -> None:
    by_torchrun = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1000",
    }
    world = read_world(group_environment(1, 2, by_torchrun))
    assert (world.rank, world.learners, world.port) == (2, 4, 1002)
    with pytest.raises(UserError, match="WORLD_SIZE is 8, which is no multiple of the 3"):
        group_environment(1, 3, by_torchrun)
    job = {"ROUNDELAY_RANK": "1", "ROUNDELAY_WORLD_SIZE": "2", "ROUNDELAY_JOB": "ab" * 32, "ROUNDELAY_GROUP": "2"}
    worlds = [read_world(group_environment(place, 2, job)) for place in range(2)]
    assert [(world.rank, world.learners) for world in worlds] == [(1, 2)] * 2
    assert worlds[0].secret != worlds[1].secret, "or shards of different places would meet"
    with pytest.raises(UserError, match="give it --group 4"):
        group_environment(1, 4, job)
