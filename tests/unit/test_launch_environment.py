"""Variables of launchers: who a process is, of how many, where the first one is, and by which secret they meet."""

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.launch.world import World, learners, local_rank, rank, read_world

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_environment_says_who_this_is() -> None:
    assert (
        read_world({}) == read_world({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}) == World()
    )
    assert read_world(TORCHRUN) == World(1, 2, "127.0.0.1", 29500)


LAUNCH = {
    "ROUNDELAY_RANK": "3",
    "ROUNDELAY_WORLD_SIZE": "4",
    "ROUNDELAY_LOCAL_RANK": "3",
    "ROUNDELAY_LOCAL_WORLD_SIZE": "4",
    "ROUNDELAY_JOB": "0a0b",
    "ROUNDELAY_ENDED": "/somewhere",
}


def test_our_names_win_and_are_never_mixed_with_torchruns() -> None:
    both = {**TORCHRUN, **LAUNCH, "TORCHELASTIC_USE_AGENT_STORE": "True", "ROUNDELAY_SECRET": "sixteen letters!"}
    assert read_world(both) == read_world(LAUNCH) == World(3, 4, ended_file="/somewhere", secret=b"\x0a\x0b")
    assert (rank(both), local_rank(both), learners(both)) == (3, 3, 4)
    assert (rank(TORCHRUN), local_rank(TORCHRUN), learners(TORCHRUN)) == (1, 1, 2)
    assert (rank({}), local_rank({}), learners({})) == (0, 0, 1)
    for name in ("ROUNDELAY_RANK", "ROUNDELAY_LOCAL_WORLD_SIZE"):
        with pytest.raises(UserError, match=f"{name} is 'two'"):
            read_world({**both, name: "two"})
    missing = {name: value for name, value in both.items() if name != "ROUNDELAY_RANK"}
    with pytest.raises(UserError, match="ROUNDELAY_WORLD_SIZE is set but ROUNDELAY_RANK is not"):
        read_world(missing)
    with pytest.raises(UserError, match="ROUNDELAY_JOB is no key of `roundelay launch`"):
        read_world({**LAUNCH, "ROUNDELAY_JOB": "none"})
    by_hand = {name: value for name, value in LAUNCH.items() if name != "ROUNDELAY_JOB"}
    with pytest.raises(UserError, match="ROUNDELAY_WORLD_SIZE is 4 but ROUNDELAY_MASTER_ADDR is not set"):
        read_world(by_hand)


def test_learners_of_a_run_with_a_secret_meet_by_it() -> None:
    assert read_world({**TORCHRUN, "ROUNDELAY_SECRET": "sixteen letters!"}).secret == b"sixteen letters!"
    again = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert read_world({**TORCHRUN, **again}).attempt == "none 1"
    with pytest.raises(UserError, match="the secret has 5 characters"):
        read_world({**TORCHRUN, "ROUNDELAY_SECRET": "short"})


def test_the_environment_says_which_host_this_is() -> None:
    """Also where a launcher knows of processes only: with a secret, each of them is a host then."""
    secret = {"ROUNDELAY_SECRET": "sixteen letters!"}
    pods = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}
    for given in ({**TORCHRUN, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **secret}, {**pods, **secret}):
        world = read_world(given, listen="127.0.0.1")
        assert world.place is not None
        assert (world.here, world.place.ranks, world.place.listen) == ((1,), (1,), ("127.0.0.1", 0))
        assert world.secret == world.place.secret == b"sixteen letters!"
    assert read_world(pods).here == (0, 1), "without a secret nobody is elsewhere"
    first = read_world({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", **secret}, "127.0.0.1")
    assert first.place is not None
    assert (first.here, first.place.conducts, first.place.listen) == ((0, 1), True, ("127.0.0.1", 29500))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"LOCAL_WORLD_SIZE": "1"}, r"rank 1 of 2 is learner 1 of 1 on its host"),
        (
            {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"},
            r"rank 1: several hosts need a secret .* `head -c 32 ",
        ),
        ({"RANK": None}, "WORLD_SIZE is set but RANK is not"),
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"RANK": "2"}, r"ranks go from 0 to WORLD_SIZE - 1. A learner that is to join .* needs ROUNDELAY_PLACES"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": None}, "MASTER_PORT is not"),
    ],
)
def test_an_environment_that_cannot_be_is_refused(change: dict[str, str | None], says: str) -> None:
    environment = {name: value for name, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(UserError, match=says):
        read_world(environment)
