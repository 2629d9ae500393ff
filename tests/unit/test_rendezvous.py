"""Learners and hosts find each other, and believe nobody else."""

import fcntl
import os
import re
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from roundelay.core.errors import UserError
from roundelay.runtime.launch.local_rendezvous import (
    LENGTH,
    LocalRendezvous,
    SessionRuns,
    _socket_name,
    receive_fact,
    returning_name,
    send_fact,
)
from roundelay.runtime.launch.rendezvous import DIGITS, FACT_BYTES, first_address, say_address
from roundelay.runtime.launch.world import HostPlace, World
from roundelay.runtime.procs.memory.arena import ARENA_NAME, SEALS, Arena, Layout, check_file, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.row_host import mapped
from support.until import until

LAYOUT = Layout(2, 1000)
PATIENCE = 60.0
ACCEPTS = 1 << 16
"""Flag of a socket in /proc/net/unix that takes connections (__SO_ACCEPTCON)."""

# The arena's file -----------------------------------------------------------------------------------------------------


def sealed(name: str, size: int, seals: int = SEALS) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def some_file(folder: Path) -> int:
    (folder / "data").write_bytes(b"\7" * LAYOUT.total_bytes)
    return os.open(folder / "data", os.O_RDWR)


def unlinked_file(folder: Path) -> int:
    descriptor = some_file(folder)
    (folder / "data").unlink()
    return descriptor


def file_by_that_name(folder: Path) -> int:
    """As close as a file comes to the name of a memory file."""
    path = folder / f"memfd:{ARENA_NAME} (deleted)"
    path.write_bytes(b"\7" * LAYOUT.total_bytes)
    return os.open(path, os.O_RDWR)


OTHERS: dict[str, tuple[Callable[[Path], int], str]] = {
    "a file": (some_file, "no sealed memory file of Roundelay"),
    "an unlinked file": (unlinked_file, "no sealed memory file of Roundelay"),
    "a file by its name": (file_by_that_name, "no sealed memory file of Roundelay"),
    "a device": (lambda _: os.open("/dev/zero", os.O_RDWR), "no sealed memory file of Roundelay"),
    "memory of something else": (lambda _: sealed("other", LAYOUT.total_bytes), "no sealed memory file of Roundelay"),
    "memory that may shrink": (
        lambda _: sealed(ARENA_NAME, LAYOUT.total_bytes, 0),
        "no sealed memory file of Roundelay",
    ),
    "another arena": (lambda _: create_file(Layout(3, 1000)), r"it has [\d,]+ bytes, and the learners' memory has"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_only_an_arena_of_this_layout_is_mapped(tmp_path: Path, other: str) -> None:
    make, message = OTHERS[other]
    descriptor = make(tmp_path)
    try:
        with pytest.raises(UserError, match=message):
            Arena(descriptor, LAYOUT, Patience(0, 1))
        for file in tmp_path.iterdir():
            assert file.read_bytes() == b"\7" * LAYOUT.total_bytes
    finally:
        os.close(descriptor)


def test_an_arena_keeps_its_size() -> None:
    descriptor = create_file(LAYOUT)
    check_file(descriptor, LAYOUT)
    for size in (0, 2 * LAYOUT.total_bytes):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_memory_of_another_user_is_not_mapped() -> None:
    descriptor = create_file(LAYOUT)
    os.fchown(descriptor, 12345, -1)
    with pytest.raises(UserError, match="it belongs to user 12345"):
        check_file(descriptor, LAYOUT)
    os.close(descriptor)


def test_a_file_by_some_name_is_no_row_on_a_device(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\7" * 4000)
    descriptor = os.open(tmp_path / "data", os.O_RDWR)
    cuda: list[Any] = [0, "AAAA", 4000, 0, "L2V0Yy9wYXNzd2Q=", 0, "AAAA", False]
    odd: list[Any] = [
        {"path": str(tmp_path / "data")},
        {"path": f"/proc/{os.getpid()}/fd/{descriptor}"},
        {"path": "/dev/zero"},
        {"path": 7},
        {},
        None,
        [],
        {"cuda": cuda},
        {"cuda": cuda[:-1]},
        {"cuda": [0] * 8},
        {"cuda": "AAAA"},
    ]
    ends = os.pipe()
    without: dict[str, Any] = {"centre": None, "beside the centre": {}, "held by": f"/proc/{os.getpid()}/fd/{ends[1]}"}
    for said in odd:
        with pytest.raises(ValueError, match=r"no shared memory|no descriptor|no handle|a handle"):
            mapped({"row": [said], **without}, ("row",), 1000, False, [True])
    others: list[Any] = [
        without,
        {"row": [], **without},
        {"row": [{}], **without, "centre": {}},
        {"row": [{}], **without, "beside the centre": {"velocity": {}}},
        {"row": [{}], **without, "beside the centre": []},
        {"row": {}},
        7,
    ]
    for handles in others:
        with pytest.raises(ValueError, match=r"handles of (other|another)"):
            mapped(handles, ("row",), 1000, False, [True])
    for held in (str(tmp_path / "data"), f"/proc/{os.getpid()}/fd/{descriptor}", "/dev/zero", None):
        with pytest.raises(ValueError, match=r"no pipe|no descriptor"):
            mapped({**without, "row": [None], "held by": held}, ("row",), 1000, False, [False])
    for one in (descriptor, *ends):
        os.close(one)
    assert (tmp_path / "data").read_bytes() == b"\7" * 4000


# Learners of one host -------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(0, 3, "127.0.0.1", 1, secret=str(tmp_path).encode())


def start(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Its return value, or its UserError."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(work())
        except UserError as error:
            done.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, done


def enter(world: World, rank: int) -> tuple[dict[str, Any], int]:
    with LocalRendezvous(replace(world, rank=rank), 0, PATIENCE) as rendezvous:
        return rendezvous.enter({"mine": rank})


def collect(world: World, patience: float = PATIENCE) -> list[dict[str, Any]]:
    with LocalRendezvous(world, 0, patience) as rendezvous:
        return rendezvous.collect()


def test_learners_are_given_facts_and_a_descriptor_by_rank(world: World) -> None:
    others = [start(partial(enter, world, rank)) for rank in (2, 1)]
    file = create_file(LAYOUT)
    with LocalRendezvous(world, 0, PATIENCE) as rendezvous:
        assert rendezvous.collect() == [{"mine": 1}, {"mine": 2}]
        for rank in (1, 2):
            rendezvous.tell(rank, {"for": rank}, file)
        for thread, _ in others:
            thread.join()
        rendezvous.check()  # who has attached may go
    for rank, (_, (found,)) in zip((2, 1), others, strict=True):
        fact, descriptor = found
        assert fact == {"for": rank}
        assert os.fstat(descriptor).st_ino == os.fstat(file).st_ino
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
    os.close(file)


def test_learners_of_another_job_are_not_met(world: World) -> None:
    """Another secret, address, session, number of learners or attempt: another name."""
    names = {
        _socket_name(other, number)
        for other in (
            world,
            replace(world, secret=b"another"),
            replace(world, port=2),
            replace(world, address="::1"),
            replace(world, learners=2),
            replace(world, attempt="1"),
        )
        for number in range(2)
    }
    assert len(names) == 12
    assert _socket_name(world, 0) == _socket_name(replace(world, rank=2, ended_file="x"), 0)


def test_a_learner_that_ends_before_all_have_attached_is_named(world: World) -> None:
    thread, done = start(lambda: collect(world))
    until(lambda: listens(_socket_name(world, 0)))
    learner = LocalRendezvous(replace(world, rank=2), 0, PATIENCE)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(learner._name)
        body = b'{"rank": 2}'
        connection.sendall(LENGTH.pack(len(body)) + body)
    thread.join()
    assert re.search("rank 0: learner 2 ended before all had attached", str(done[0]))


def test_a_learner_that_finds_a_meeting_point_closed_on_it_asks_again(world: World) -> None:
    """As when who opened it has not heard yet that this learner died once more."""

    def listen() -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(returning_name(world, 0))
        listener.listen()
        return listener

    def come() -> tuple[dict[str, Any], int]:
        rendezvous = LocalRendezvous(replace(world, rank=1), 0, PATIENCE)
        with pytest.raises(SessionRuns) as running:
            rendezvous.enter({})
        return rendezvous.come_back(running.value, {"mine": 1})

    file = create_file(LAYOUT)
    with listen() as first:
        thread, done = start(come)
        assert select.select([first], [], [], PATIENCE)[0]  # it is closed with the one who waits there
    with listen() as again:
        connection, _ = again.accept()
        with connection:
            assert receive_fact(connection)[0] == {"rank": 1, "mine": 1}
            send_fact(connection, {"for": 1}, file)
        thread.join()
    fact, descriptor = done[0]
    assert fact == {"for": 1}
    os.close(descriptor)
    os.close(file)


def test_a_rank_that_comes_twice_is_named(world: World) -> None:
    thread, done = start(lambda: collect(world))
    others = [start(lambda: enter(world, 1)) for _ in range(2)]
    thread.join()
    assert "two learners say that they are rank 1" in str(done[0])
    for other, said in others:
        other.join()
        assert "learner 0 ended before all had attached" in str(said[0])


def test_a_second_rank_0_and_a_missing_one_are_named(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(_socket_name(world, 0))
        with pytest.raises(UserError, match="another learner on this host says that it is rank 0"):
            collect(world)
    with pytest.raises(UserError, match=r"rank 0 of 3 could not meet .* ranks \[1, 2\] did not come within 0 s"):
        collect(world, 0.1)
    with pytest.raises(UserError, match=r"rank 1 of 3 could not meet .* no answer within 0 s"):
        LocalRendezvous(replace(world, rank=1), 0, 0.1).enter({})


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(1 << 40),
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(2) + b"\xff{",
        LENGTH.pack(13) + b'{"rank": "1"}',
        LENGTH.pack(11) + b'{"rank": 9}',
        LENGTH.pack(14) + b'{"rank": true}',
        LENGTH.pack(100_000) + b"[" * 100_000,
    ],
)
def test_who_is_no_learner_is_shown_out(world: World, noise: bytes) -> None:
    thread, done = start(lambda: collect(replace(world, learners=2)))
    name = _socket_name(replace(world, learners=2), 0)
    until(lambda: listens(name))
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(name)
        stranger.sendall(noise)
        stranger.shutdown(socket.SHUT_WR)
        until(lambda: closed(stranger))
    other, _ = start(lambda: enter(replace(world, learners=2), 1))
    thread.join()
    other.join()
    assert done == [[{"mine": 1}]]


def listens(name: str) -> bool:
    """Say whether there is a socket of this name that takes connections."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return any(name[1:] in line and int(line.split()[3], 16) & ACCEPTS for line in lines[1:])


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_at_the_meeting_point_is_not_believed(world: World) -> None:
    name = _socket_name(world, 0)
    child = os.fork()
    if not child:  # somebody who knows the name, and takes it first
        try:
            os.setuid(65534)
            taken = socket.socket(socket.AF_UNIX)
            taken.settimeout(PATIENCE)
            taken.bind(name)
            taken.listen()
            connection, _ = taken.accept()
            connection.recv(1)
        finally:
            os._exit(0)
    try:
        with (
            LocalRendezvous(replace(world, rank=1), 0, PATIENCE) as rendezvous,
            pytest.raises(UserError, match="a process of user 65534, not of this one"),
        ):
            rendezvous.enter({})
    finally:
        os.waitpid(child, 0)


def test_only_the_launchers_note_says_who_has_ended(tmp_path: Path) -> None:
    note = os.memfd_create("roundelay-ended")
    os.write(note, b"[1, 7]\n[5, 1]\n[0")
    assert World(0, 2, ended_file=f"/proc/{os.getpid()}/fd/{note}").ended() == {1: 7}
    os.close(note)
    (tmp_path / "note").write_text("[1, 7]\n")
    with pytest.raises(UserError, match="no file of `roundelay launch`"):
        World(0, 2, ended_file=str(tmp_path / "note")).ended()
    assert World(0, 2, ended_file=str(tmp_path / "nowhere")).ended() == {}


# Hosts, at a store that anybody may write to --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store() -> TCPStore:
    """The store of torchrun's agent."""
    return TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.fixture
def there(store: TCPStore, tmp_path: Path) -> HostPlace:
    """The first host."""
    secret = b"a secret of " + str(tmp_path).encode()
    return HostPlace((0, 1), 4, 0, "127.0.0.1", store.port, True, ("127.0.0.1", 0), secret)


def stranger(store: TCPStore) -> Any:
    """Another connection; values may be bytes, which torch's types do not know."""
    return PrefixStore("roundelay", TCPStore("127.0.0.1", store.port, None, wait_for_workers=False))


def place(first: HostPlace) -> HostPlace:
    """Another one."""
    return replace(first, ranks=(2, 3))


ADDRESS = "10.0.0.1", 4000


def test_a_host_hears_where_the_first_one_listens(store: TCPStore, there: HostPlace) -> None:
    say_address(there, PATIENCE, ADDRESS)
    assert first_address(place(there), PATIENCE) == ADDRESS


TAMPERED: dict[str, Callable[[bytes], bytes]] = {
    "another address": lambda said: said.replace(b"10.0.0.1", b"10.0.0.9"),
    "another port": lambda said: said.replace(b"4000", b"4001"),
    "no proof": lambda said: said[DIGITS:],
    "another proof": lambda said: (b"1" if said[:1] == b"0" else b"0") + said[1:],
    "nothing": lambda _: b"",
    "no text": lambda said: b"\xff" + said[1:],
    "too much": lambda said: said + b" " * FACT_BYTES,
}


@pytest.mark.parametrize("how", TAMPERED)
def test_an_address_that_a_stranger_has_written_is_refused(store: TCPStore, there: HostPlace, how: str) -> None:
    say_address(there, PATIENCE, ADDRESS)
    strange = stranger(store)
    strange.set("coordinator", TAMPERED[how](strange.get("coordinator")))
    with pytest.raises(UserError, match=r"said by rank 0 \(coordinator\) was not written with this run's secret"):
        first_address(place(there), PATIENCE)


def test_what_was_said_elsewhere_is_refused_here(store: TCPStore, there: HostPlace) -> None:
    """Under another name, and by hosts with another secret."""
    strange = stranger(store)
    say_address(there, PATIENCE, ADDRESS, "doctor")
    strange.set("coordinator", strange.get("doctor"))
    with pytest.raises(UserError, match="not written with this run's secret"):
        first_address(place(there), PATIENCE)
    say_address(replace(there, secret=b"a secret of others"), PATIENCE, ADDRESS)
    with pytest.raises(UserError, match="not written with this run's secret"):
        first_address(place(there), PATIENCE)
    with pytest.raises(UserError, match="need a secret"):
        say_address(replace(there, secret=b""), PATIENCE, ADDRESS)


@pytest.mark.parametrize("said", [(None, 1), (7, 1), ("a", "1"), ("a", 0), ("a", 1 << 16)])
def test_what_is_no_address_is_refused(store: TCPStore, there: HostPlace, said: Any) -> None:
    say_address(there, PATIENCE, said)
    with pytest.raises(UserError, match="which is no address"):
        first_address(place(there), PATIENCE)
