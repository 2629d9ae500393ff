"""Learners of somebody else's training loop that die, or never come."""

import json
import secrets
import select
import signal
import subprocess
import sys
from contextlib import suppress
from os import close, getpid, kill, pidfd_open
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.launch.start import launch
from support import attached_deaths, attached_lost, attached_terms
from support.attached_hosts import HostsOfLearners
from support.launched import reports, run_learners
from support.ports import free_port
from support.until import until

KILLED, TERMED = 128 + signal.SIGKILL, 128 + signal.SIGTERM


@pytest.mark.parametrize(("victim", "rows"), [(2, ""), (2, "mapped"), (0, "mapped")])
def test_asynchronous_learners_go_on_and_draw_what_the_dead_one_had(
    victim: int, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows lie on a device, whose memory goes with the process that has allocated it."""
    monkeypatch.chdir(tmp_path)
    done = run_learners(3, str(attached_deaths.__file__), "adpsgd", f"{victim}", rows, expect=KILLED)
    found = reports(done.stdout)["death"]
    living = [rank for rank in range(3) if rank != victim]
    assert sorted(found) == living
    one, other = (found[rank] for rank in living)
    assert one["living"] == other["living"] == living
    assert one["values"] == other["values"]
    trained = [number for mine in found.values() for number in mine["trained"]]
    assert sorted(trained + one["dead_trained"]) == list(range(120))
    assert f"learner {victim} ended with status 137" in done.stderr
    until(lambda: not started(tmp_path))


def test_learners_of_other_hosts_go_on_and_draw_what_the_dead_one_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two learners of the first host, when the second host has lost its only one; nobody stays behind anywhere."""
    monkeypatch.chdir(tmp_path)
    job = {"ROUNDELAY_JOB": secrets.token_hex(32)}
    with HostsOfLearners((2, 1), (str(attached_deaths.__file__), "adpsgd", "2"), job) as hosts:
        said, _ = hosts.end(2)
    found = reports(said)["death"]
    assert sorted(found) == [0, 1]
    assert found[0]["living"] == found[1]["living"] == [0, 1]
    assert found[0]["values"] == found[1]["values"]
    trained = [number for mine in found.values() for number in mine["trained"]]
    assert sorted(trained + found[0]["dead_trained"]) == list(range(120))
    until(lambda: not started(tmp_path))


@pytest.mark.parametrize(
    "strategy", ["adpsgd", "asgd", "easgd", "rennala", "async-diloco", "bmuf,period=2,quorum=1,grace=0.1"]
)
def test_when_the_first_host_is_lost_the_next_leads_and_each_example_is_trained_once(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the one after that, when that is lost too: the first again, which has come back to them as any other. The
    third is behind a router, and reached by the host that leads."""
    monkeypatch.chdir(tmp_path)
    ports = [free_port() for _ in range(3)]
    peers = {"ROUNDELAY_PEERS": ",".join(f"127.0.0.1:{port}" for port in ports)}
    command = str(attached_lost.__file__), strategy, str(tmp_path)
    with HostsOfLearners((1, 1, 1), command, peers, port=ports[0], behind=[2]) as hosts:
        assert hosts.running[0].wait(220) == -signal.SIGKILL, hosts.said(0)
        hosts.start(0)
        said, _ = hosts.end(1)
    found = reports(said)["lost"]
    assert found.keys() == {0, 2}
    assert [found[rank]["back"] for rank in (0, 2)] == [True, False]
    assert all((one["living"], one["error"]) == ([0, 2], "") for one in found.values())
    dead = [number for rank in range(2) for number in json.loads((tmp_path / f"{rank}").read_text())]
    trained = [number for one in found.values() for number in one["trained"]]
    assert sorted([*dead, *trained]) == list(range(attached_lost.EXAMPLES))
    until(lambda: not started(tmp_path))


def test_what_a_test_has_started_is_known_again(tmp_path: Path) -> None:
    """Else a test of who is left would find nobody, whoever is."""
    process = subprocess.Popen(["sleep", "1000"], cwd=tmp_path, start_new_session=True)
    until(lambda: started(tmp_path) == [process.pid])
    process.kill()
    process.wait()
    assert started(tmp_path) == []


def started(folder: Path) -> list[int]:
    """Processes that a test has started, which was in this folder then: those that keep rows on devices among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == folder and int(process.name) != getpid():
                found.append(int(process.name))
    return found


def test_synchronous_learners_name_the_dead() -> None:
    done = run_learners(2, str(attached_deaths.__file__), "ssgd", "1", expect=KILLED)
    found = reports(done.stdout)["death"]
    assert list(found) == [0]
    assert found[0]["error"].startswith("LearnerDied: learner 1 died:")
    assert found[0]["again"] == found[0]["error"]


@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
def test_learners_that_are_all_asked_to_end_end_between_two_steps(strategy: str) -> None:
    """Nobody is told that another died: all leave with the status of SIGTERM, whoever comes to the end of a step
    first."""
    done = run_learners(2, str(attached_terms.__file__), strategy, "both", expect=TERMED)
    found = reports(done.stdout)["term"]
    assert sorted(found) == [0, 1]
    assert [found[rank]["error"] for rank in range(2)] == ["", ""]
    assert "Traceback" not in done.stderr
    assert done.stderr.count("was sent SIGTERM and ends") == 2
    assert found[0]["steps"] in (5, 6)  # the other may have heard of it a step earlier


def test_one_that_is_asked_to_end_is_named_as_such() -> None:
    done = run_learners(2, str(attached_terms.__file__), "ssgd", "one", expect=TERMED)
    found = reports(done.stdout)["term"]
    assert found[1]["error"] == ""
    assert found[0]["error"].startswith("learner 1 died: it was asked to end (SIGTERM), while others needed it")


@pytest.mark.parametrize("strategy", ["bsp", "adpsgd"])
def test_loops_that_look_meet_once_more(strategy: str) -> None:
    """Asked at different steps, they leave their loops, and have the same model in the end."""
    done = run_learners(2, str(attached_terms.__file__), strategy, "looks")
    found = reports(done.stdout)["term"]
    assert found[0]["values"] == found[1]["values"]
    assert [found[rank]["steps"] for rank in range(2)] == ([9, 9] if strategy != "adpsgd" else [6, 9])


def test_a_learner_that_never_comes_is_named_at_once() -> None:
    """The launcher knows; nobody sits out the patience."""
    done = run_learners(2, str(attached_deaths.__file__), "absent", "1", expect=7)
    assert "rank 0: learner 1 ended with status 7 before all had attached" in done.stderr


def test_frozen_parameters_that_differ_are_refused() -> None:
    """Nobody averages them, so learners would train different models."""
    done = run_learners(2, str(attached_deaths.__file__), "frozen", "1", expect=1)
    assert "rank 1 attaches with values of frozen parameter 0.weight, checksum" in done.stderr
    assert "make it by the same seed on all" in done.stderr


def test_the_launcher_says_the_first_failure_and_lets_the_others_end(tmp_path: Path) -> None:
    said: list[str] = []
    script = (
        f"if [ $ROUNDELAY_RANK = 1 ]; then touch {tmp_path}/1; exit 3; fi; "
        f"while [ ! -e {tmp_path}/1 ]; do :; done; sleep 0.3; touch {tmp_path}/0; exit 4"
    )
    assert launch(2, ["sh", "-c", script], said.append) == 3
    assert (tmp_path / "0").exists()
    assert said == ["learner 1 ended with status 3.", "learner 0 ended with status 4."]


def test_the_launcher_cannot_start_what_is_not_there() -> None:
    with pytest.raises(UserError, match=r"no-such-command: cannot be started"):
        launch(1, ["no-such-command"], print)
    with pytest.raises(UserError, match="needs a command"):
        launch(1, ["--"], print)
    with pytest.raises(UserError, match="-n is 0"):
        launch(0, ["true"], print)


def test_the_launcher_takes_the_place_of_this_host_among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDELAY_SECRET", secrets.token_hex(32))
    place = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**place, "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    check = (
        "[ $ROUNDELAY_WORLD_SIZE$ROUNDELAY_LOCAL_WORLD_SIZE$ROUNDELAY_MASTER_PORT = 4229500 ] && [ -z $RANK ]"
        " && [ $((ROUNDELAY_RANK - ROUNDELAY_LOCAL_RANK)) = 2 ]"
    )
    assert launch(2, ["sh", "-c", check], print) == 0
    with pytest.raises(UserError, match="-n is 1, but the environment says that this is process 0 of 2 on one of"):
        launch(1, ["true"], print)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    said: list[str] = []
    assert launch(1, ["sh", "-c", "[ $ROUNDELAY_WORLD_SIZE = 1 ]"], said.append) == 0
    assert said[0].startswith("learners of this host (1) train alone, though WORLD_SIZE is 4 and MASTER_ADDR is set.")
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    assert launch(1, ["sh", "-c", "[ $ROUNDELAY_RANK$ROUNDELAY_WORLD_SIZE = 24 ]"], said.append) == 0, "as a pod is"
    assert len(said) == 1


LAUNCHER = "import sys; from roundelay.runtime.launch.start import launch; sys.exit(launch(2, sys.argv[1:], print))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_learners_end_with_their_launcher(number: signal.Signals) -> None:
    """Signals are passed on; after one that cannot be, the kernel ends the learners."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "sh", "-c", "echo $$; exec sleep 1000"], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    descriptors = [pidfd_open(int(launcher.stdout.readline().split()[1])) for _ in range(2)]
    kill(launcher.pid, number)
    status = launcher.wait(60)
    launcher.stdout.close()
    assert status == (128 + number if number == signal.SIGTERM else -number)
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 60)[0], "a learner outlived its launcher"
        close(descriptor)
