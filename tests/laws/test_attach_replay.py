"""Laws of recorded sessions: repeated, they have the same bits, however fast who is; and what differs is named. Run by
support/attached_recording.py."""

import platform
import shutil
from pathlib import Path

import pytest
import torch

from roundelay.core.errors import UserError
from roundelay.core.files import DiskFull
from roundelay.core.flat import CHUNK
from roundelay.runtime.attached.entering import AttachTerms, Entrance
from roundelay.runtime.attached.turns import Turns
from roundelay.runtime.hosts.options import SessionHostOptions
from roundelay.runtime.launch.world import HostPlace, World
from roundelay.runtime.trace import (
    Access,
    Kind,
    TraceEvent,
    TraceWriter,
    Use,
    hash_of,
    read_events,
    session_folder,
    write_entry,
)
from roundelay.strategies import make_strategy
from support import attached_recording
from support.attached_hosts import HostsOfLearners
from support.attached_recording import BUSY, CORRUPT, KILLED, MANY, ON_HOSTS, OTHER_RATE, SESSIONS, SLOW
from support.launched import replay, reports, run_learners

SCRIPT = str(attached_recording.__file__)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded") / "record"


@pytest.fixture(scope="module")
def recorded(record: Path) -> str:
    """Three learners, of which one is slow, and one finds rows locked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SLOW, "waits")
        patch.setenv(BUSY, "2")
        return run_learners(3, SCRIPT, "several", str(record)).stdout


def test_sessions_come_out_the_same_bit_for_bit_though_another_learner_is_slow(recorded: str, record: Path) -> None:
    """Rows, memory of strategies, and minibatches; of all sessions of a script."""
    again = replay(record, variables={SLOW: "sleeps"})
    was, now = reports(recorded), reports(again.stdout)
    assert len(was) == len(SESSIONS)
    assert was == now
    assert "repeated to the same rows, bit for bit" in again.stdout
    for law in ("adpsgd sampler", "adpsgd share"):
        steps = [was[law][rank]["steps"] for rank in range(3)]
        assert sum(steps) == 48
        assert steps[0] + steps[2] >= MANY


def test_a_script_that_is_another_is_named(recorded: str, record: Path) -> None:
    done = replay(record, "--", SCRIPT, "one", "elsewhere", "ssgd", expect=2)
    assert "recorded with rate gain, and rank 0 attaches with as-is: run the same script" in done.stdout + done.stderr


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_the_machine_with_a_corrupt_gradient_is_named(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit of one element of one gradient, of one learner of three."""
    monkeypatch.setenv(CORRUPT, "1:5")
    run_learners(3, SCRIPT, "one", str(tmp_path / "record"), strategy)
    monkeypatch.delenv(CORRUPT)
    done = replay(tmp_path / "record", expect=1)
    told = [line for line in done.stdout.splitlines() if line.startswith("The first difference")]
    assert len(told) == 1
    assert f"rank 1, which ran on {platform.node()}: the gradient of its step 5 differs" in told[0]
    assert "At equal parameters it is another one" in told[0]


def test_an_optimizer_that_does_not_repeat_itself_is_told_from_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_learners(2, SCRIPT, "one", str(tmp_path / "record"), "ssgd")
    done = replay(tmp_path / "record", expect=1, variables={OTHER_RATE: "0:3"})
    told = next(line for line in done.stdout.splitlines() if line.startswith("The first difference"))
    assert "the parameters before its step 4 differs" in told


def test_a_session_goes_on_from_the_save_it_went_on_from_and_writes_none(tmp_path: Path) -> None:
    record, saves = tmp_path / "record", tmp_path / "saves"
    run_learners(2, SCRIPT, "saving", "", str(saves))
    was = reports(run_learners(2, SCRIPT, "saving", str(record), str(saves)).stdout)
    before = sorted((path, path.stat().st_mtime_ns) for path in saves.rglob("*"))
    assert reports(replay(record).stdout) == was
    assert sorted((path, path.stat().st_mtime_ns) for path in saves.rglob("*")) == before


def test_a_record_is_repeated_as_far_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KILLED, "0:7")
    run_learners(1, SCRIPT, "one", str(tmp_path / "record"), "adpsgd", expect=9)
    monkeypatch.delenv(KILLED)
    done = replay(tmp_path / "record")
    assert "6 gradients" in done.stdout
    assert "up to the end of a record that was cut short" in done.stdout


def test_a_death_is_not_repeated_and_a_record_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KILLED, "1:3")
    run_learners(3, SCRIPT, "one", str(tmp_path / "record"), "adpsgd", expect=9)
    monkeypatch.delenv(KILLED)
    done = replay(tmp_path / "record", expect=2)
    assert "learner 1 died or came back while this was recorded" in done.stdout + done.stderr
    done = run_learners(1, SCRIPT, "one", str(tmp_path / "record"), "adpsgd", expect=1)
    assert "holds the record of a session already" in done.stderr


# Several hosts --------------------------------------------------------------------------------------------------------


def record_on_hosts(record: Path, *strategy: str) -> str:
    """Return what three learners of two hosts report, whose records lie in one folder then."""
    with HostsOfLearners((2, 1), [SCRIPT, "on_hosts", str(record), *strategy]) as hosts:
        said, _ = hosts.end()
    for host in (0, 2):
        shutil.copytree(record / f"of-{host}", record / "both", dirs_exist_ok=True)
    return said


def test_sessions_on_two_hosts_come_out_the_same_on_one(tmp_path: Path) -> None:
    """Exchanges between hosts, whole, coded and in fragments, with a centre too, means and mixes along the chain."""
    was = reports(record_on_hosts(tmp_path))
    ring = 1 + [options.get("topology") for _, _, options in ON_HOSTS].index("fixed-ring")
    kinds = [event.kind for event in read_events(tmp_path / "both" / f"session-{ring}", 2, carried=True)]
    assert kinds.count(Kind.SENT) >= kinds.count(Kind.TAKEN) > 0
    again = replay(tmp_path / "both", variables={SLOW: "sleeps"})
    assert len(was) == len(ON_HOSTS)
    assert reports(again.stdout) == was
    assert "repeated to the same rows, bit for bit" in again.stdout


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_a_corrupt_gradient_on_another_host_is_named(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CORRUPT, "2:5")
    record_on_hosts(tmp_path, strategy)
    monkeypatch.delenv(CORRUPT)
    done = replay(tmp_path / "both", expect=1)
    told = [line for line in done.stdout.splitlines() if line.startswith("The first difference")]
    assert len(told) == 1
    assert f"rank 2, which ran on {platform.node()}: the gradient of its step 5 differs" in told[0]
    done = replay(tmp_path / "of-0", expect=2)
    assert "of which [2] are not in it" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("strategy", "hosts", "says"),
    [
        ("bmuf,quorum=2", {}, "on several hosts cannot be recorded: it gathers a quorum"),
        ("easgd", {"wire": "int8"}, "leave wire and means between hosts out, or record"),
        ("a2cid2", {}, "it exchanges more than rows between them"),
        ("ssgd", {"wire": "bf16"}, "leave wire and means between hosts out, or record"),
    ],
)
def test_what_cannot_be_repeated_is_not_recorded(strategy: str, hosts: dict[str, str], says: str) -> None:
    world = World(0, 2, place=HostPlace((0,), 2))
    options = SessionHostOptions(**hosts)  # type: ignore[arg-type]
    terms = AttachTerms(make_strategy(strategy, {}), 0, 1.0, record="record", hosts=options)
    with pytest.raises(UserError, match=says):
        Entrance(world, terms, torch.zeros(1), torch.zeros(0, dtype=torch.uint8), None, 0)


# Parts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 2, 7, CHUNK, 2 * CHUNK + 5])
def test_a_hash_of_a_vector_changes_with_every_bit(elements: int) -> None:
    vector = torch.arange(elements, dtype=torch.float32)
    before = hash_of(vector.clone())
    for place in {0, elements // 2, elements - 1}:
        for bit in (0, 31):
            other = vector.clone()
            other.view(torch.int32)[place] ^= 1 << bit if bit < 31 else -(1 << 31)
            assert hash_of(other) != before
    assert hash_of(vector) == before


def written(folder: Path, events: dict[int, list[TraceEvent]], carried: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, some in events.items():
        writer = TraceWriter(folder, rank, carried=carried)
        for event in some:
            writer.note(event.kind, event.peer, event.mine, event.theirs, event.value)
        writer.close()
    return folder


def test_an_event_comes_after_the_writer_of_its_version_and_all_its_readers(tmp_path: Path) -> None:
    """Row 0: read, stepped to version 1, exchanged by learner 1 to version 2; row 2 is a centre."""
    takes = TraceEvent(Kind.PIECE, 1, 7)
    fetches, overwrites = TraceEvent(Kind.FETCH, 0, theirs=1), TraceEvent(Kind.EXCHANGE, 0, 0, 1)
    reaches = TraceEvent(Kind.REACH, 2, -1, 0, Access(theirs=Use.WRITTEN).number)
    own = [TraceEvent(Kind.READ, mine=0), TraceEvent(Kind.STEP, mine=0), TraceEvent(Kind.READ, mine=1), reaches]
    later = TraceEvent(Kind.READ, mine=2)
    folder = written(tmp_path / "trace", {0: [takes, *own, later], 1: [overwrites], 2: [takes, fetches]})
    turns = Turns(folder, 3)
    assert turns.before(0, own[0]) == turns.before(0, own[2]) == turns.before(0, reaches) == []
    assert turns.before(2, fetches) == [(0, 1)]
    assert sorted(turns.before(1, overwrites)) == [(0, 1), (0, 2), (2, 0)]
    assert turns.before(0, later) == [(1, 0)]


def test_an_exchange_between_hosts_comes_after_it_is_asked_for_and_its_rows_after_each_other(tmp_path: Path) -> None:
    """Of rows 0, which travels, and 1, whose learner has asked; row 0 has taken a step meanwhile."""
    asks = [TraceEvent(Kind.BEGIN), TraceEvent(Kind.ASKED, 0, 7)]
    own = [TraceEvent(Kind.STEP, mine=3), TraceEvent(Kind.STEP, mine=5)]
    went = [TraceEvent(Kind.BIDDEN, 1, 7), TraceEvent(Kind.SENT, 1, 3, 9), TraceEvent(Kind.TAKEN, 1, 4, 9)]
    visited = [TraceEvent(Kind.SENT, 0, 0, 9, -1.0), TraceEvent(Kind.TAKEN, 0, 0, 9)]
    folder = written(tmp_path / "trace", {0: own, 1: asks})
    written(folder, {0: went, 1: visited}, carried=True)
    turns = Turns(folder, 2)
    assert turns.before(2, went[0]) == [(1, 1)]
    assert turns.before(2, went[1]) == []
    assert sorted(turns.before(2, went[2])) == [(0, 0), (3, 1)]
    assert turns.before(3, visited[0]) == turns.before(3, visited[1]) == [(2, 1)]
    assert turns.before(0, own[0]) == [(2, 1)]
    assert turns.before(0, own[1]) == [(2, 2)]


def test_a_record_with_a_death_or_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="learner 1 died or came back"):
        Turns(written(tmp_path / "death", {0: [TraceEvent(Kind.GONE, 1)], 1: []}), 2)
    (folder := session_folder(tmp_path, 0)).mkdir()
    (folder / "rank-0.bin").write_bytes(b"\x63" * 32)
    with pytest.raises(UserError, match=r"rank-0\.bin: has an event of unknown kind"):
        Turns(folder, 1)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """By a device that always is."""
    for name in ("rank-0.bin", "trace.jsonl"):
        (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"rank-0\.bin: the disk is full"):
        TraceWriter(tmp_path, 0).note(Kind.STEP, mine=0)
    with pytest.raises(DiskFull, match=r"trace\.jsonl: the disk is full"):
        write_entry(tmp_path, "learner", "trace.jsonl")
