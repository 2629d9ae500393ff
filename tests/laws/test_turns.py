"""Trainings of several hosts in turns: what the first host says is done by all, and what goes wrong is told of."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control.turns import FirstHost, NextTraining, follow, training_place
from roundelay.runtime.launch.world import LISTEN, HostPlace, environment_alone, environment_at, read_place
from support.ports import free_port

SECRET = "a secret of tests, long enough"


def places(hosts: int) -> list[HostPlace]:
    """Places of so many hosts of one learner, at one port of the loopback address."""
    port, found = free_port(), []
    for rank in range(hosts):
        variables = {"RANK": rank, "WORLD_SIZE": hosts, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
        environment = {name: str(value) for name, value in variables.items()}
        place = read_place(None, {**environment, "MASTER_ADDR": "127.0.0.1", "ROUNDELAY_SECRET": SECRET})
        assert place is not None
        found.append(place)
    return found


@dataclass
class Follower:
    """A host that follows, on a thread."""

    place: HostPlace
    about: str = "same"
    does: Callable[[NextTraining, Callable[[], bool]], None] = lambda turn, asked: None
    asked: bool = False
    done: list[tuple[str, float, int, int]] = field(default_factory=list)
    error: str = ""

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            follow(self.place, self.about, self._part, lambda: self.asked, 20)
        except UserError as error:
            self.error = str(error)

    def _part(self, turn: NextTraining, place: HostPlace, asked: Callable[[], bool]) -> None:
        self.done.append((turn.name, turn.rate, turn.seed, place.port))
        self.does(turn, asked)

    def ended(self) -> "Follower":
        """Wait for its end."""
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self


def test_all_hosts_do_the_trainings_that_the_first_names_in_its_order() -> None:
    first, *others = places(3)
    followers = [Follower(place) for place in others]
    with FirstHost(first, "same", 20) as host:
        for seed, rate in enumerate((0.1, 1e-7, 3.0)):
            with host.turn("way", rate, seed) as place:
                assert place == training_place(first)
                assert place.port == place.listen[1] == first.port + 1
    for follower in followers:
        expected = [("way", rate, seed, first.port + 1) for seed, rate in enumerate((0.1, 1e-7, 3.0))]
        assert (follower.ended().done, follower.error) == (expected, "")


def test_a_part_that_does_not_end_well_is_told_and_the_next_goes_on() -> None:
    def does(turn: NextTraining, asked: Callable[[], bool]) -> None:
        if turn.seed == 0:
            raise UserError("data/train: no such folder")

    first, other = places(2)
    follower = Follower(other, does=does)
    with FirstHost(first, "same", 20) as host:
        with (
            pytest.raises(UserError, match="the host of learner 1: data/train: no such folder"),
            host.turn("a", 1.0, 0),
        ):
            pass
        with host.turn("a", 1.0, 1):
            pass
    assert [seed for _, _, seed, _ in follower.ended().done] == [0, 1]


def test_parts_end_where_that_of_the_first_host_fails() -> None:
    def does(turn: NextTraining, asked: Callable[[], bool]) -> None:
        while not asked():
            pass

    first, other = places(2)
    follower = Follower(other, does=does)
    with FirstHost(first, "same", 20) as host, pytest.raises(ValueError, match="mine"), host.turn("a", 1.0, 0):
        raise ValueError("mine")
    assert follower.ended().error == ""


def test_who_does_not_come_or_was_given_another_command_is_named() -> None:
    first, other = places(2)
    with pytest.raises(UserError, match=r"learners 1 did not come to 127.0.0.1:.* start the same command"):
        FirstHost(first, "same", 0.2)
    first, other = places(2)
    follower = Follower(other, about="another")
    with pytest.raises(UserError, match="the host of learner 1 was started with another command"):
        FirstHost(first, "same", 20)
    follower.ended()
    with pytest.raises(UserError, match=r"cannot reach the first host at 127.0.0.1.* same secret"):
        follow(places(2)[1], "same", lambda *_: None, lambda: False, 0.2)


def test_a_lost_host_is_named() -> None:
    first, other = places(2)
    began = threading.Event()

    def does(turn: NextTraining, asked: Callable[[], bool]) -> None:
        began.set()
        while not asked():
            pass

    follower = Follower(other, does=does)
    host = FirstHost(first, "same", 20)

    def lose() -> None:
        assert began.wait(20)
        for line in host._links.values():
            line.link.close()

    with pytest.raises(UserError, match="the host of learner 1: the host is lost"), host.turn("a", 1.0, 0):
        lose()
    with pytest.raises(UserError, match="the host of learner 1 is lost"), host.turn("a", 1.0, 1):
        pass
    host.close()
    assert "the first host is lost" in follower.ended().error


def test_variables_of_a_training_are_those_of_its_place() -> None:
    given: dict[str, Any] = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000", "ROUNDELAY_SECRET": SECRET, LISTEN: "127.0.0.1:4000"}
    place = read_place(None, given)
    assert place is not None
    found = environment_at(training_place(place), given)
    again = read_place(None, found)
    assert again is not None
    assert (again.port, again.listen) == (4001, ("127.0.0.1", 4001))
    assert read_place(None, environment_alone({**given, "PATH": "/bin"})) is None
    assert environment_alone({**given, "PATH": "/bin"})["PATH"] == "/bin"
