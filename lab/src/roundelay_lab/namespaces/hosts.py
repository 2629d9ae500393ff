"""Several hosts on one machine: network namespaces with addresses of their own, joined by a switch.

Namespaces have no names: each has an init process that notices the end of its maker, killed or not, and then
kills all processes in it; with the last of them the kernel frees it. Root is not needed where users may make namespaces
of their own. It needs Debian's iproute2 and util-linux.

    with Hosts(2) as hosts:
        hosts.rate("100mbit")
        process = hosts.start(1, ["python", "-c", "..."])
        hosts.cut(1)
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

CABLE = Path(__file__).with_name("cable.py")
PROGRAMS = ("ip", "tc", "unshare", "nsenter")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
BURST = "256kb"  # more than the largest packet that a network card is handed


INIT = """
import os, signal, sys
print("ready", flush=True)
sys.stdin.read()
here = os.stat("/proc/self/ns/net").st_ino
left = True
while left:
    left = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) != os.getpid() and os.stat(f"/proc/{name}/ns/net").st_ino == here:
                os.kill(int(name), signal.SIGKILL)
                left.append(name)
        except OSError:
            pass
"""


class NoNamespaces(Exception):
    """Hosts cannot be made on this machine; says why."""


class _Namespace:
    """A network and a mount namespace, and its init process."""

    def __init__(self, inside: Sequence[str] = ()) -> None:
        """Make a namespace. `inside` is a command prefix that enters the user namespace to which it is to belong."""
        own_user = () if inside or os.geteuid() == 0 else ("--user", "--map-root-user")
        self._user = bool(inside or own_user)
        command = [*inside, "unshare", *own_user, "--net", "--mount", sys.executable, "-S", "-c", INIT]
        self._init = subprocess.Popen(  # it ends with its standard input, that is with us
            command,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._init.stdout is not None
        if self._init.stdout.readline() != b"ready\n":
            assert self._init.stderr is not None
            said = self._init.stderr.read().decode().strip()
            self.close()
            raise NoNamespaces(said or "unshare failed")
        self.process = self._init.pid

    @property
    def enter(self) -> list[str]:
        """A prefix that runs a command in this namespace."""
        user = ["--user", "--preserve-credentials"] if self._user else []
        return ["nsenter", f"--target={self.process}", *user, "--net", "--mount", "--wd=.", "--"]

    @property
    def user(self) -> list[str]:
        """A command prefix that enters only this namespace's own user namespace, if it has one."""
        return ["nsenter", f"--target={self.process}", "--user", "--preserve-credentials", "--"] if self._user else []

    def run(self, *commands: str) -> None:
        """Run shell commands; all must succeed."""
        line = " && ".join(commands)
        done = subprocess.run(
            [*self.enter, "sh", "-c", line], env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoNamespaces(f"`{line}`: {done.stderr.strip()}")

    def has(self, process: int) -> bool:
        """Return True if a process runs in this network."""
        with suppress(OSError):
            return os.stat(f"/proc/{process}/ns/net").st_ino == os.stat(f"/proc/{self.process}/ns/net").st_ino
        return False

    def processes(self) -> list[int]:
        """Return all processes in the namespace but its init process."""
        everybody = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [process for process in everybody if process != self.process and self.has(process)]

    def close(self) -> None:
        """Kill all processes in the namespace. Safe to call twice."""
        for pipe in (self._init.stdin, self._init.stdout, self._init.stderr):
            assert pipe is not None
            pipe.close()
        self._init.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": PATH}


class Hosts:
    """Hosts, 10.77.0.1 and so on, on one switch; a context manager.

    Args:
        delays: one-way delay in seconds, by host; hosts named here have a `Cable` in place of the kernel's.

    Raises:
        NoNamespaces: this machine does not allow namespaces; says why.
    """

    def __init__(self, number: int, delays: Mapping[int, float] | None = None) -> None:
        for program in PROGRAMS:
            if not shutil.which(program, path=PATH):
                package = "iproute2" if program in ("ip", "tc") else "util-linux"
                raise NoNamespaces(f"there is no program {program!r} here (Debian's package {package})")
        self._cables: dict[int, subprocess.Popen[bytes]] = {}
        self._namespaces: list[_Namespace] = []
        self._started: list[subprocess.Popen[Any]] = []
        try:
            self._switch = _Namespace()
            self._namespaces.append(self._switch)
            self._switch.run("ip link add switch type bridge", "ip link set switch up")
            self._hosts = [self._plug(host, (delays or {}).get(host)) for host in range(number)]
        except BaseException:
            self.close()
            raise

    def _plug(self, host: int, delay: float | None) -> _Namespace:
        namespace = _Namespace(self._switch.user)
        self._namespaces.append(namespace)
        veth = f"ip link add port{host} type veth peer name eth0 netns {namespace.process}"
        if delay is not None:
            self._cables[host] = cable = subprocess.Popen(
                [
                    *self._switch.user,
                    sys.executable,
                    "-S",
                    str(CABLE),
                    str(namespace.process),
                    "eth0",
                    str(self._switch.process),
                    f"port{host}",
                    str(delay),
                ],
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert cable.stdout is not None
            if cable.stdout.readline() != b"ready\n":
                raise NoNamespaces("no Ethernet interface could be made of /dev/net/tun")
        there = f"ip link set port{host} master switch up"
        self._switch.run(*(() if host in self._cables else (veth,)), there)
        namespace.run("ip link set lo up", f"ip addr add {self.address(host)}/24 dev eth0", "ip link set eth0 up")
        return namespace

    # Faults of cables ------------------------------------------------------------------------------------------------

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"10.77.0.{host + 1}"

    def rate(self, rate: str, *hosts: int) -> None:
        """Set the rate at which `hosts`, or all, can send and receive: `100mbit`, `1gbit`."""
        for host in hosts or range(len(self._hosts)):
            shaped = f"root tbf rate {rate} burst {BURST} latency 50ms"
            self._hosts[host].run(f"tc qdisc replace dev eth0 {shaped}")
            self._switch.run(f"tc qdisc replace dev port{host} {shaped}")

    def cut(self, host: int) -> None:
        """Take a host off the network. Messages to and from it are lost; no host is told."""
        if host in self._cables:
            self._order(host, "cut")
        else:
            self._switch.run(f"ip link set port{host} nomaster")

    def heal(self, host: int) -> None:
        """Put a host that was cut off back on the network."""
        if host in self._cables:
            self._order(host, "mend")
        else:
            self._switch.run(f"ip link set port{host} master switch")

    def pull(self, host: int) -> None:
        """Pull a host's network plug: the host itself sees that its interface has no carrier."""
        self._switch.run(f"ip link set port{host} down")

    def plug(self, host: int) -> None:
        """Put a host's network plug in again."""
        self._switch.run(f"ip link set port{host} up")

    def stall(self, host: int) -> None:
        """Hold back all frames of a host's cable until `heal`; only for hosts with a delay."""
        self._order(host, "stall")

    def delay(self, host: int, seconds: float) -> None:
        """Change the one-way delay of a host's cable; only for hosts with a delay."""
        self._order(host, f"delay {seconds}")

    def _order(self, host: int, text: str) -> None:
        pipe = self._cables[host].stdin
        assert pipe is not None
        pipe.write(f"{text}\n".encode())
        pipe.flush()

    # Processes of a namespace ----------------------------------------------------------------------------------------

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """Return the words that run `command` on a host."""
        return [*self._hosts[host].enter, *command]

    def start(self, host: int, command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Start a command on a host, in a session of its own; it is killed with the host.

        The process has entered the host when this returns, so that `processes` finds it.
        """
        environment = {**_environment(), **options.pop("env", {})}
        process = subprocess.Popen(
            self.command(host, command), env=environment, text=True, start_new_session=True, **options
        )
        self._started.append(process)
        while process.poll() is None and not self._hosts[host].has(process.pid):
            time.sleep(0.001)
        return process

    def small_disk(self, host: int, folder: Path, size: str) -> None:
        """Put a disk of `size` (`2m`) under a folder, for this host alone."""
        folder.mkdir(parents=True, exist_ok=True)
        self._hosts[host].run(f"mount -t tmpfs -o size={size} tmpfs {folder}")

    def enlarge_disk(self, host: int, folder: Path, size: str) -> None:
        """Enlarge the small disk of a host to `size`."""
        self._hosts[host].run(f"mount -o remount,size={size} {folder}")

    def inside(self, host: int, folder: Path) -> Path:
        """Return the path to a folder as `host` sees it, from outside."""
        return Path(f"/proc/{self._hosts[host].process}/root/{folder}")

    def processes(self, host: int) -> list[int]:
        """Return the ids of all processes on a host."""
        return self._hosts[host].processes()

    def crash(self, host: int) -> None:
        """Kill everything on a host at once, as if its power had failed; its network stays."""
        for process in self.processes(host):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    # Its end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill all hosts' processes, and remove all namespaces and disks. Safe to call twice."""
        for cable in self._cables.values():
            assert cable.stdin is not None
            assert cable.stdout is not None
            with suppress(OSError):
                cable.stdin.close()
            cable.kill()
            cable.wait()
            cable.stdout.close()
        for namespace in reversed(self._namespaces):
            namespace.close()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._cables, self._namespaces, self._started = {}, [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def why_not(delayed: bool = False) -> str:
    """Return the reason why hosts (with a delay, if `delayed`) cannot be made on this machine; "" if they can."""
    try:
        with Hosts(1, delays={0: 0.001} if delayed else {}) as hosts:
            hosts.rate("1gbit")
    except NoNamespaces as error:
        return f"no network namespaces here: {error}"
    return ""
