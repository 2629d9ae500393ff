"""The hosts that other tests are made on: several network namespaces, and cables that can be slow or cut."""

import os
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from roundelay_lab.namespaces.hosts import PATH, Hosts, NoNamespaces, why_not

if why_not():
    pytest.skip(why_not(), allow_module_level=True)

ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 5000))
print("up", flush=True)
while True:
    text, sender = server.recvfrom(2000)
    server.sendto(text, sender)
"""
ASK = """
import socket, sys, time
me = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
me.settimeout(0.2)
for number in range(int(sys.argv[2])):
    asked = time.monotonic()
    try:
        me.sendto(b"%d" % number, (sys.argv[1], 5000))
        while me.recv(2000) != b"%d" % number:  # an answer to an earlier one, which came late
            pass
        print(time.monotonic() - asked)
        break
    except OSError:
        time.sleep(0.05)
else:
    print("nobody")
"""


def ask(hosts: Hosts, one: int, other: int, tries: int = 100) -> str:
    """Seconds until `other` answered, or `nobody`."""
    command = [sys.executable, "-S", "-c", ASK, hosts.address(other), str(tries)]
    return subprocess.run(hosts.command(one, command), capture_output=True, text=True, check=True).stdout.strip()


def echo(hosts: Hosts, host: int) -> None:
    process = hosts.start(host, [sys.executable, "-S", "-c", ECHO], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


def test_three_hosts_reach_each_other_and_a_cut_is_one_until_it_is_healed() -> None:
    with Hosts(3) as hosts:
        for host in range(3):
            echo(hosts, host)
        assert all(ask(hosts, one, other) != "nobody" for one in range(3) for other in range(3))
        hosts.cut(1)
        assert ask(hosts, 0, 1, tries=3) == ask(hosts, 1, 0, tries=3) == "nobody"
        assert ask(hosts, 0, 2) != "nobody"
        hosts.heal(1)
        assert ask(hosts, 0, 1) != "nobody"
        hosts.pull(1)
        assert ask(hosts, 0, 1, tries=3) == "nobody"
        hosts.plug(1)
        assert ask(hosts, 0, 1) != "nobody"


@pytest.mark.skipif(bool(why_not(delayed=True)), reason=why_not(delayed=True))
def test_a_long_cable_delays_in_both_directions_and_can_stall() -> None:
    with Hosts(2, delays={1: 0.02}) as hosts:
        echo(hosts, 1)
        assert float(ask(hosts, 0, 1)) >= 0.04
        hosts.stall(1)
        assert ask(hosts, 0, 1, tries=3) == "nobody"
        hosts.heal(1)
        assert float(ask(hosts, 0, 1)) >= 0.04
        hosts.cut(1)
        assert ask(hosts, 0, 1, tries=3) == "nobody"


def test_a_rate_is_a_bound() -> None:
    """A megabyte at 20 Mbit/s takes 0.4 s, but for what the burst lets through at once."""
    with Hosts(2) as hosts:
        hosts.rate("20mbit")
        receive = """
import socket, time
server = socket.create_server(("0.0.0.0", 5001))
print("up", flush=True)
link, _ = server.accept()
begun = time.monotonic()
link.sendall(b"!")
while link.recv(1 << 20):
    pass
print(time.monotonic() - begun)
"""
        receiver = hosts.start(1, [sys.executable, "-S", "-c", receive], stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        receiver.stdout.readline()
        send = f"""
import socket
link = socket.create_connection(({hosts.address(1)!r}, 5001))
link.recv(1)
link.sendall(bytes(1_000_000))
link.close()
"""
        hosts.start(0, [sys.executable, "-S", "-c", send])
        assert float(receiver.stdout.readline()) > 8 * (1_000_000 - 262_144) / 20e6 * 0.9


def test_a_started_command_is_on_its_host_even_if_it_enters_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the end of a test that comes now would miss it: it would live on, and nobody would know."""
    late = tmp_path / "nsenter"
    late.write_text(f'#!/bin/sh\nsleep 0.2\nexec {shutil.which("nsenter", path=PATH)} "$@"\n')
    late.chmod(0o755)
    with Hosts(1) as hosts:
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{PATH}")
        monkeypatch.setattr("roundelay_lab.namespaces.hosts.PATH", f"{tmp_path}{os.pathsep}{PATH}")
        assert hosts.start(0, ["sleep", "1000"]).pid in hosts.processes(0)


def test_nothing_is_left_of_hosts_whatever_became_of_their_test() -> None:
    code = """
import os, signal
from roundelay_lab.namespaces.hosts import Hosts
hosts = Hosts(2)
sleepers = [hosts.start(host, ["sleep", "1000"]) for host in range(2)]
keepers = [namespace.process for namespace in hosts._namespaces]
print(*keepers, *(sleeper.pid for sleeper in sleepers), flush=True)
"""
    paths = "import sys; sys.path[:0] = " + repr([str(Path(__file__).parents[1]), *sys.path])
    for end in ("hosts.close()", "os.kill(os.getpid(), signal.SIGKILL)"):
        done = subprocess.run(
            [sys.executable, "-c", paths + code + end], stdout=subprocess.PIPE, text=True, check=False, timeout=60
        )
        left = [int(word) for word in done.stdout.split()]  # keepers, and who runs there
        assert len(left) == 5
        for process in left:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(process)
                assert select.select([descriptor], [], [], 30)[0], "it outlived its test by 30 s"
                os.close(descriptor)


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundelay_lab.namespaces.hosts.PATH", "/nowhere")
    with pytest.raises(NoNamespaces, match="no program 'ip' here"):
        Hosts(1)
