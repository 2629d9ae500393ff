"""`roundelay doctor`: what it says of one host, and of the way between two."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from roundelay.cli import main
from roundelay.core.cores import Quota
from roundelay.core.errors import UserError
from roundelay.runtime.doctor import host
from roundelay.runtime.doctor.consult import HELLO, VisitServer, go_round, meet, table
from roundelay.runtime.doctor.findings import DoctorReport, Finding, Verdict, Way, differences, judge
from roundelay.runtime.doctor.host import Asked, examine
from roundelay.runtime.hosts.transport.relay import BehindRelay
from roundelay.runtime.hosts.transport.wire import USUAL_LINKS, Link
from roundelay.runtime.launch.world import HostPlace, read_by_hand
from roundelay.runtime.messages import read
from support.ports import free_port
from support.until import together

SECRET = b"a secret of the run's own"
ASKED = Asked(learners=1, parameters=1000, address="127.0.0.1", hosts=2, secret=True)


def by_about(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


def verdicts(asked: Asked) -> dict[str, Verdict]:
    return {finding.about: finding.verdict for finding in examine(asked)}


def test_a_host_that_is_well_is_said_to_be(tmp_path: Path) -> None:
    found = by_about(examine(Asked(folder=tmp_path / "exp", parameters=1000)))
    assert {"software", "cores", "memory", "shared memory", "locks", "disk", "open files", "GPUs"} <= set(found)
    assert [f.about for f in found.values() if f.verdict is Verdict.BAD] == []
    assert [f for f in found.values() if f.verdict is Verdict.GOOD and f.change] == []
    assert [f for f in found.values() if f.verdict is not Verdict.GOOD and not f.change] == []
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_too_little_of_everything_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "available_bytes", lambda: 1e9)
    found = by_about(examine(Asked(learners=1000, parameters=10**9, folder=tmp_path)))
    assert found["memory"].verdict is Verdict.BAD
    assert found["cores"].change.startswith("Start at most")
    assert found["disk"].verdict is Verdict.NOTE
    assert "up to 16128 needed" in found["open files"].found


@pytest.mark.parametrize(("learners", "served"), [(2, False), (2, True), (1, False)])
def test_learners_that_take_turns_on_a_gpu_are_told_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learners: int, served: bool
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if served:
        (tmp_path / "control").touch()
    for name, found in (
        ("is_available", True),
        ("device_count", 1),
        ("get_device_name", "G"),
        ("mem_get_info", (1e12, 1e12)),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, found=found: found)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    said = by_about([*host.gpus(Asked(learners=learners, folder=tmp_path))])
    assert ("GPU sharing" in said) == (learners > 1 and not served)


def test_limits_of_the_shell_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {resource.RLIMIT_NOFILE: (64, 1000), resource.RLIMIT_FSIZE: (1024, 1024), resource.RLIMIT_NPROC: (10, 10)}
    monkeypatch.setattr(resource, "getrlimit", lambda what: given[what])
    found = by_about([*host.limits(ASKED), *host.shared_memory(ASKED)])
    assert found["open files"].change == "ulimit -n 1000"
    assert found["processes"].change == "ulimit -u unlimited"
    assert (found["shared memory"].verdict, found["shared memory"].change) == (Verdict.BAD, "ulimit -f unlimited")


def test_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(host, "quota", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    (found,) = host.cores(Asked(learners=4))
    assert found.change == "export OMP_NUM_THREADS=2"
    monkeypatch.setattr(host, "quota", lambda: Quota(2.0, Path("/none")))
    (found,) = host.cores(Asked(learners=4))
    assert found.change.startswith("Start at most 2 learners")


def test_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    (found,) = host.disk(Asked(folder=tmp_path))
    assert found.verdict is Verdict.BAD


def test_secrets_are_needed_by_several_and_for_few_eyes(tmp_path: Path) -> None:
    assert list(host.secrets(Asked())) == []
    assert [f.verdict for f in host.secrets(Asked(hosts=2))] == [Verdict.BAD]
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o644)
    asked = Asked(hosts=2, secret=True, secret_file=str(file))
    assert [f.change for f in host.secrets(asked)] == [f"chmod 600 {file}"]
    file.chmod(0o600)
    assert [f.verdict for f in host.secrets(asked)] == [Verdict.GOOD]
    assert [f.verdict for f in host.secrets(replace(asked, secret_file=str(tmp_path / "none")))] == [Verdict.BAD]


def test_addresses_that_others_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "addresses", lambda: [("lo", "127.0.0.1"), ("eth7", "10.0.0.7")])
    monkeypatch.setattr(host, "_named", lambda _: "127.0.1.1")
    found = by_about(list(host.interfaces(ASKED)))
    assert found["address"].verdict is Verdict.BAD
    assert "10.0.0.7" in found["address"].change
    assert found["name"].change == "export GLOO_SOCKET_IFNAME=eth7 NCCL_SOCKET_IFNAME=eth7"
    monkeypatch.setattr(host, "addresses", lambda: [("lo", "127.0.0.1")])
    assert [f.verdict for f in host.interfaces(ASKED)] == [Verdict.BAD]
    assert [f.verdict for f in host.ports(replace(ASKED, address="203.0.113.1"))] == [Verdict.BAD]


def test_a_look_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> int:
        raise OSError("no such system call")

    monkeypatch.setattr(os, "memfd_create", lambda *_: broken(""))
    found = verdicts(Asked(parameters=1000))
    assert found["locks"] is Verdict.NOTE
    assert found["open files"] is Verdict.GOOD


# Between hosts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("megabytes_s", "verdict", "change"),
    [(125, "good", ""), (11.9, "note", "Choose adpsgd,"), (1.2, "note", "Choose adpsgd,")],
)
def test_what_a_way_means_for_a_model(megabytes_s: float, verdict: str, change: str) -> None:
    way = Way("a", "b", "10.0.0.2:1", latency_ms=0.2, megabytes_s=megabytes_s, clock_ahead_s=0.001)
    (found,) = judge([way], 12_500_000)
    assert (found.verdict.value, change in found.change) == (verdict, True)


def test_closed_ways_clocks_and_versions() -> None:
    closed = Way("a", "b", "10.0.0.2:1", problem="cannot be reached: no host answers")
    late = Way("b", "a", "10.0.0.1:1", 0.2, 125.0, -3.0)
    found = judge([closed, late], 1000)
    assert [f.verdict for f in found] == [Verdict.BAD, Verdict.GOOD, Verdict.NOTE]
    assert "of a is -3.0 s against that of b" in found[2].found
    assert differences({"a": {"torch": "2.13"}, "b": {"torch": "2.13"}}) == []
    (other,) = differences({"a": {"torch": "2.13"}, "b": {"torch": "2.12"}})
    assert (other.verdict, other.found) == (Verdict.BAD, "a has 2.13, b has 2.12")
    report = DoctorReport({"a": []}, [closed, late], [other])
    assert not report.well
    assert [row[2] for row in table(report)[1]] == ["cannot be reached: no host answers", "0.20"]
    value = json.loads(json.dumps(report.to_json()))
    assert read(Way, value["ways"][1]) == late
    assert read(Finding, value["between"][0]) == other


def test_hosts_visit_each_other_and_measure_every_way() -> None:
    houses = [VisitServer(("127.0.0.1", 0), SECRET, ASKED, 60) for _ in range(2)]
    try:
        report = go_round(("127.0.0.1", 0), [server.address for server in houses], SECRET, ASKED, 60)
        assert all(server.wait(60) for server in houses), "they were told that it is over"
    finally:
        for server in houses:
            server.close()
    assert len(report.hosts) == 3
    assert len(report.ways) == 6
    assert all(way.latency_ms and way.megabytes_s and not way.problem for way in report.ways)
    assert all(abs(way.clock_ahead_s or 0.0) < 60 for way in report.ways), "it is the same clock"
    assert all("locks" in by_about(found) for found in report.hosts.values())


def test_a_host_behind_a_relay_is_measured_by_it_and_said_to_be() -> None:
    """The relay is the host that goes round; the other host reaches this one by it, too."""
    house = VisitServer(("127.0.0.1", 0), SECRET, ASKED, 60)
    at = BehindRelay(house.address, "cellar", SECRET, 60, USUAL_LINKS, moves=False)
    cellar = VisitServer(at, SECRET, ASKED, 60)
    try:
        report = go_round(("127.0.0.1", 0), [house.address, cellar.address], SECRET, ASKED, 60)
        assert house.wait(60)
        assert cellar.wait(60), "it was told that it is over, before the relay was"
    finally:
        cellar.close()
        house.close()
    assert len(report.ways) == 6
    assert all(way.latency_ms and not way.problem for way in report.ways)
    (said,) = (finding for finding in report.between if "relay" in finding.found)
    assert said.verdict is Verdict.NOTE
    assert f"by the relay at 127.0.0.1:{house.address[1]}" in said.found


def test_a_relay_is_named_by_hand_or_the_first_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDELAY_SECRET", SECRET.decode())
    hosts, named = ["10.0.0.1:4000", "10.0.0.2:5000"], ("10.0.0.3", 6000)
    assert read_by_hand("relay", hosts)[3] == ("10.0.0.1", 4000)
    assert read_by_hand("relay=10.0.0.3:6000", hosts)[3] == read_by_hand("relay=10.0.0.3:6000")[3] == named
    assert read_by_hand("10.0.0.4")[3] is None
    with pytest.raises(UserError, match="write relay=ADDRESS:PORT of a host whose doctor listens there"):
        read_by_hand("relay")


def test_a_host_with_another_secret_is_found_out() -> None:
    server = VisitServer(("127.0.0.1", 0), b"another secret altogether", ASKED, 60)
    try:
        report = go_round(("127.0.0.1", 0), [server.address], SECRET, ASKED, 60)
    finally:
        server.close()
    assert not report.well
    assert any("stranger" in finding.found for finding in report.between)


def test_nonsense_from_somebody_who_knows_the_secret_ends_one_visit_only() -> None:
    server = VisitServer(("127.0.0.1", 0), SECRET, ASKED, 60)
    try:
        for kind, header in (("sing", {}), ("measure", {"origin": 1}), ("arrive", {"ranks": "x", "address": []})):
            link = Link.connect(server.address, SECRET, HELLO, 60)
            link.send(kind, header)
            with pytest.raises(Exception, match=r"closed|broken"):
                link.receive(60)
        link = Link.connect(server.address, SECRET, HELLO, 60)
        link.send("echo", {}, [b"still here"])
        assert bytes(link.receive(60).payload) == b"still here"
        link.close()
    finally:
        server.close()


def test_hosts_started_alike_meet_at_the_master_and_who_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third is not waited for once the second is there."""
    arrival, master = VisitServer.arrival, free_port()
    seconds = iter((60.0, 0.0))
    monkeypatch.setattr(VisitServer, "arrival", lambda self, _: arrival(self, next(seconds)))
    place, said = HostPlace((0, 1), 6, 0, "127.0.0.1", master, secret=SECRET), list[str]()
    results: dict[int, DoctorReport | None] = {}

    def come(first: int, at: int) -> None:
        here = replace(place, ranks=(first, first + 1), listen=("127.0.0.1", at))
        results[first] = meet(here, ASKED, 60, said.append)

    together(partial(come, 0, master), partial(come, 2, 0))
    report = results[0]
    assert report is not None
    assert results[2] is None
    assert said == ["rank 2: at the host of rank 0; its report is there"]
    assert len(report.hosts) == len(report.ways) == 2
    assert [f.about for f in report.between if f.verdict is Verdict.BAD] == ["rank 4", "rank 5"]
    with pytest.raises(UserError, match=r"rank 2: cannot reach the host of rank 0 at 127\.0\.0\.1"):
        meet(replace(place, ranks=(2, 3), listen=("127.0.0.1", 0)), ASKED, 0.5, said.append)


# By the command line --------------------------------------------------------------------------------------------------


def test_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "ROUNDELAY_SECRET", "ROUNDELAY_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    few = ["--learners", "1", "--parameters", "1000", "--exp", str(tmp_path)]
    assert main(["doctor", *few, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["well"] is True
    assert main(["doctor", *few]) == 0
    assert "Nothing here would keep a run from working" in capsys.readouterr().out
    assert main(["doctor", *few, "--hosts", "127.0.0.1:1"]) == 2
    assert "several hosts need a secret" in capsys.readouterr().err
    monkeypatch.setenv("ROUNDELAY_SECRET", SECRET.decode())
    assert main(["doctor", *few, "--hosts", "127.0.0.1"]) == 2
    assert "write ADDRESS:PORT" in capsys.readouterr().err
    for name, value in {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor", *few]) == 2
    assert "MASTER_ADDR is not set" in capsys.readouterr().out
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main(["doctor", *few]) == 0, "local rank 0 speaks for the host"


def test_two_commands_one_of_which_visits_the_other(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ROUNDELAY_SECRET": SECRET.decode()}
    command = [sys.executable, "-m", "roundelay.cli", "doctor", "--learners", "1", "--parameters", "1000"]
    waiting = subprocess.Popen(
        [*command, "--listen", "127.0.0.1"], env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert waiting.stderr is not None
    where = waiting.stderr.readline().split()[-1]
    visit = subprocess.run(
        [*command, "--hosts", where, "--json"], env=environment, stdout=subprocess.PIPE, check=False, cwd=tmp_path
    )
    assert waiting.wait(60) == 0
    waiting.stderr.close()
    report = json.loads(visit.stdout)
    assert (visit.returncode, len(report["ways"])) == (0 if report["well"] else 2, 2)
