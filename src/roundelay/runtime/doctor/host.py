"""One host, looked at alone: everything a run needs of it. Each look is short, and leaves nothing behind."""

import fcntl
import mmap
import os
import platform
import resource
import shutil
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from secrets import token_hex

from roundelay.core.cores import available_bytes, quota
from roundelay.core.errors import UserError
from roundelay.runtime.doctor.findings import Finding, Verdict
from roundelay.runtime.launch.local_rendezvous import peer_user
from roundelay.runtime.procs.memory.locks import FLOCK
from roundelay.runtime.procs.memory.publish import prepare_publishing

GOOD, NOTE, BAD = Verdict.GOOD, Verdict.NOTE, Verdict.BAD
VECTORS = 6
"""Number of vectors of a model's size that a learner has: row, snapshot, gradient, two published, momentum, a spare."""
FILES_FOR_A_LEARNER, FILES_FOR_ALL = 16, 128


@dataclass(frozen=True)
class Asked:
    """The needs of the run that a host is examined for."""

    learners: int = 1  # on this host
    parameters: int = 12_500_000
    folder: Path = Path()  # of run directories
    address: str = ""  # other hosts reach this one at
    master: str = ""  # MASTER_ADDR, where several hosts are to meet
    hosts: int = 1
    secret: bool = False  # one is there
    secret_file: str = ""


def examine(asked: Asked) -> list[Finding]:
    """Return all findings about this host."""
    here = (software, cores, memory, shared_memory, locks, disk, limits, clock)
    findings = []
    for look in (*here, interfaces, ports, secrets, scripts, gpus):
        try:
            findings += list(look(asked))
        except OSError as error:  # a file or tool it looks with is missing
            about = look.__name__.replace("_", " ")
            findings.append(Finding(about, NOTE, f"could not be looked at: {error}", "Look at it by hand."))
    return findings


def versions() -> dict[str, str]:
    """Return the versions of software that must be the same on all hosts."""
    found = {"Python": ".".join(map(str, sys.version_info[:2]))}
    for package in ("roundelay", "torch", "numpy"):
        try:
            found[package] = metadata.version(package).partition("+")[0]  # a CPU build and a CUDA build do the same
        except metadata.PackageNotFoundError:
            found[package] = "none"
    return found


# Looks ----------------------------------------------------------------------------------------------------------------


def software(_: Asked) -> Iterator[Finding]:
    """Find versions and the kernel, and check that learners can share memory on this kind of processor."""
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        yield Finding("software", BAD, f"{found} on {platform.system()}", "Real learners need Linux; simulate here.")
        return
    try:
        prepare_publishing()
    except UserError as error:
        yield Finding("software", BAD, str(error), "Run on another machine, or simulate here.")
    else:
        yield Finding("software", GOOD, f"{found}, Linux {platform.release()}")


def cores(asked: Asked) -> Iterator[Finding]:
    """Check that there is one core for each learner, and no more threads than that."""
    have = len(os.sched_getaffinity(0))
    granted = quota()
    usable = have if granted is None else min(have, granted.cores)
    limit = "" if granted is None else f", of which this group of processes may use {granted.cores:.1f}"
    text = f"{have} cores{limit}"
    learners = f"{asked.learners} learner{'s' * (asked.learners > 1)}"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if asked.learners > usable:
        most = max(1, int(usable))
        change = f"Start at most {most} learner{'s' * (most > 1)} here: they would take turns."
        yield Finding("cores", NOTE, f"{text} for {learners}", change)
    elif threads.isdigit() and int(threads) * asked.learners > usable:
        change = f"export OMP_NUM_THREADS={max(1, int(usable) // asked.learners)}"
        yield Finding("cores", NOTE, f"{text}, but {learners} of {threads} threads", change)
    else:
        yield Finding("cores", GOOD, f"{text} for {learners}")


def memory(asked: Asked) -> Iterator[Finding]:
    """Check that there is memory for the vectors of all learners."""
    need = asked.learners * (VECTORS * 4 * asked.parameters + 400e6)  # and the memory of torch itself
    have = available_bytes()
    text = f"{have / 2**30:.1f} GiB free, about {need / 2**30:.1f} needed"
    if need > have:
        yield Finding("memory", BAD, text, "Start fewer learners here, or train a smaller model.")
    else:
        yield Finding("memory", GOOD, text)


def shared_memory(asked: Asked) -> Iterator[Finding]:
    """Check that a memory file of the size of all rows is seen by two mappings."""
    size = asked.learners * 4 * asked.parameters * VECTORS
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit not in (-1, resource.RLIM_INFINITY) and limit < size:  # asking for more would end this process
        text = f"files may have {limit / 2**20:,.0f} MiB here, memory files too"
        yield Finding("shared memory", BAD, text, "ulimit -f unlimited")
        return
    descriptor = os.memfd_create("roundelay-doctor", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        with mmap.mmap(descriptor, size) as mine, mmap.mmap(again, size) as theirs:
            mine[size - 1] = 7
            same = theirs[size - 1] == 7
        os.close(again)
    except OSError as error:
        change = "Mount /proc, and let processes have shared memory (in a container: no read-only /proc)."
        yield Finding("shared memory", BAD, f"a memory file cannot be shared: {error}", change)
        return
    finally:
        os.close(descriptor)
    text = f"memory files of {size / 2**20:,.0f} MiB, shared through /proc"
    yield (
        Finding("shared memory", GOOD, text)
        if same
        else Finding(
            "shared memory", BAD, f"{text}, but one process does not see what another writes", "Use another kernel."
        )
    )
    named = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    size = named.total if named else 0
    yield Finding("/dev/shm", GOOD, f"{size / 2**20:,.0f} MiB; learners do not use it")


def locks(_: Asked) -> Iterator[Finding]:
    """Check that locks of open file descriptions exclude others, and end with their holder."""
    descriptor = os.memfd_create("roundelay-doctor", os.MFD_CLOEXEC)
    take = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    give = struct.pack(FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0)
    other = -1
    try:
        other = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        fcntl.fcntl(other, fcntl.F_OFD_SETLK, take)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, take)
        except OSError:
            excluded = True
        else:
            excluded = False
        os.close(other)
        other = -1
        begun, times = time.perf_counter(), 1000
        for _try in range(times):
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, take)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, give)
        each = (time.perf_counter() - begun) / times
    except OSError as error:
        change = "Use a kernel with open-file-description locks (Linux 3.15 or later; some sandboxes have none)."
        yield Finding("locks", BAD, f"open-file-description locks do not work: {error}", change)
        return
    finally:
        os.close(descriptor)
        if other >= 0:
            os.close(other)
    if not excluded:
        yield Finding("locks", BAD, "two holders at once have the same lock", "Use another kernel; this one lies.")
    else:
        slow = each > 50e-6
        change = "Look for a sandbox or tracer that watches system calls here." if slow else ""
        text = f"open-file-description locks exclude, and go with their holder; {1e6 * each:.1f} us each"
        yield Finding("locks", NOTE if slow else GOOD, text, change)


def disk(asked: Asked) -> Iterator[Finding]:
    """Check the file system of run directories: room, locks, whole files."""
    folder = asked.folder.resolve()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield Finding("disk", BAD, f"{folder} cannot be written", "Run where you may write, or give another --exp.")
        return
    free = shutil.disk_usage(folder).free
    need = 3 * asked.learners * asked.hosts * VECTORS * 4 * asked.parameters / 2  # checkpoints, the next one included
    text = f"{folder}: {free / 2**30:.1f} GiB free, up to {need / 2**30:.1f} needed for checkpoints"
    path = folder / f".roundelay-doctor-{os.getpid()}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        yield Finding("disk", BAD, f"{folder}: {error.strerror}", "Free some space, or give another --exp.")
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        begun = time.perf_counter()
        os.write(descriptor, bytes(1 << 20))
        os.fsync(descriptor)
        text += f"; 1 MiB flushed in {1e3 * (time.perf_counter() - begun):.0f} ms"
        os.replace(path, path)
    except OSError as error:
        change = "Put --exp on a file system with locks and with room: a local disk, or NFS 4."
        yield Finding("disk", BAD, f"{folder}: {error.strerror}", change)
        return
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
    yield Finding("disk", NOTE, text, "Free some space.") if free < need else Finding("disk", GOOD, text)


def limits(asked: Asked) -> Iterator[Finding]:
    """Check limits that the shell sets for a process."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FILES_FOR_ALL + FILES_FOR_A_LEARNER * asked.learners * asked.hosts
    if files < need:
        change = f"ulimit -n {min(most, max(need, 4096))}"
        yield Finding("open files", BAD, f"{files} are allowed, up to {need} needed", change)
    else:
        yield Finding("open files", GOOD, f"{files} are allowed, up to {need} needed")
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes not in (-1, resource.RLIM_INFINITY) and processes < 64 * asked.learners:
        text = f"{processes} of a user's threads are allowed, up to {64 * asked.learners} needed"
        yield Finding("processes", NOTE, text, "ulimit -u unlimited")


def clock(_: Asked) -> Iterator[Finding]:
    """Check that reading the clock is cheap."""
    source = _first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    begun, times = time.perf_counter(), 2000
    for _try in range(times):
        time.monotonic()
    each = (time.perf_counter() - begun) / times
    text = f"{source}, read in {1e9 * each:.0f} ns"
    change = "Boot with clocksource=tsc, if this processor's is steady." if each > 2e-6 else ""
    yield Finding("clock", NOTE if each > 2e-6 else GOOD, text, change)


def interfaces(asked: Asked) -> Iterator[Finding]:
    """Find the addresses of this host, and the one that others are to use."""
    found = addresses()
    if not found:
        yield Finding("interfaces", BAD, "no interface is up", "ip link set lo up, and the one that leads to others.")
        return
    text = ", ".join(f"{name} {address}" for name, address in found)
    outer = [(name, address) for name, address in found if not address.startswith("127.")]
    if asked.hosts > 1 and not outer:
        yield Finding("interfaces", BAD, text, "Give this host an address that others reach: there is only loopback.")
        return
    yield Finding("interfaces", GOOD, text)
    if asked.hosts == 1:
        return
    if asked.address.startswith("127."):
        change = f"Set MASTER_ADDR to an address that all hosts reach, or --listen {outer[0][1]} here."
        yield Finding("address", BAD, f"others would reach this host at {asked.address}, which is their own", change)
    own = _named(socket.gethostname())
    if own.startswith("127."):
        name = next((name for name, address in outer if address == asked.address), outer[0][0])
        text = f"this host's name, {socket.gethostname()}, means {own} to itself"
        yield Finding("name", NOTE, text, f"export GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME={name}")


def ports(asked: Asked) -> Iterator[Finding]:
    """Check that this host can listen, and knows where to meet the others."""
    address = asked.address or "127.0.0.1"
    try:
        _listen(address, 0)
    except OSError as error:
        change = "Give --listen an address of this host."
        yield Finding("ports", BAD, f"nothing can listen at {address}: {error.strerror or error}", change)
        return
    yield Finding("ports", GOOD, f"can listen at {address}")
    if asked.master and not _named(asked.master):
        text = f"MASTER_ADDR {asked.master} is no host that this one knows"
        yield Finding("name", BAD, text, "Set it to an address, or mend the name.")


def secrets(asked: Asked) -> Iterator[Finding]:
    """Check that several hosts have a secret of their own."""
    if asked.secret_file:
        try:
            others = os.stat(asked.secret_file).st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        except OSError as error:
            text = f"ROUNDELAY_SECRET_FILE {asked.secret_file}: {error.strerror}"
            yield Finding("secret", BAD, text, "Copy the same file to all hosts.")
            return
        if others:
            text = f"{asked.secret_file} may be read or written by others on this host"
            yield Finding("secret", NOTE, text, f"chmod 600 {asked.secret_file}")
            return
    if asked.secret:
        yield Finding("secret", GOOD, "there is one" + (f", in {asked.secret_file}" if asked.secret_file else ""))
    elif asked.hosts > 1:
        change = "head -c 32 /dev/urandom | base64 > FILE; copy it to all hosts; export ROUNDELAY_SECRET_FILE=FILE"
        yield Finding("secret", BAD, "none: hosts would not know each other from strangers", change)


def scripts(_: Asked) -> Iterator[Finding]:
    """Check the needs of `roundelay.attach`, whose learners find each other without a parent: Unix sockets without a
    file, which carry descriptors and name the owner of the process at the other end; descriptors of processes, by which
    the process that speaks to other hosts sees learners end."""
    name = "\0roundelay-doctor-" + token_hex(8)
    try:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as asker:
            listener.bind(name)
            listener.listen()
            asker.connect(name)
            with listener.accept()[0] as answerer:
                user = peer_user(answerer)
                socket.send_fds(asker, [b"!"], [asker.fileno()])
                for descriptor in socket.recv_fds(answerer, 1, 1)[1]:
                    os.close(descriptor)
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        text = f"learners of a script could not find each other: {error}"
        change = "Run where Unix sockets and pidfd_open (Linux 5.3) work; some sandboxes have none."
        yield Finding("attach", BAD, text, change)
        return
    if user != os.geteuid():
        text = f"the kernel says that a process of user {os.geteuid()} is one of {user}"
        yield Finding("attach", BAD, text, "Start all learners in one container, as one user.")
        return
    yield Finding("attach", GOOD, "learners of a script find each other, and share memory, by Unix sockets")


def gpus(asked: Asked) -> Iterator[Finding]:
    """Find CUDA and NCCL, where there is a GPU."""
    import torch  # noqa: PLC0415  takes seconds, and only this check needs it
    import torch.distributed  # noqa: PLC0415

    there = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        text = "this torch has no gloo, which several hosts need"
        yield Finding("torch.distributed", BAD if asked.hosts > 1 else NOTE, text, "Install another build of torch.")
    if not torch.cuda.is_available():
        if there:
            text = f"{len(there)} in /dev, but torch {torch.__version__} sees none"
            yield Finding("GPUs", NOTE, text, "Install torch for CUDA, or a driver new enough for it (nvidia-smi).")
        else:
            yield Finding("GPUs", GOOD, "none: training.device must be cpu")
        return
    count = torch.cuda.device_count()
    names = ", ".join(sorted({torch.cuda.get_device_name(number) for number in range(count)}))
    text = f"{count} x {names}, CUDA {torch.version.cuda}"
    if torch.distributed.is_nccl_available():
        text += f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"  # type: ignore[no-untyped-call]
        yield Finding("GPUs", GOOD, text)
    else:
        change = "Install a build of torch with NCCL for means over GPUs of several hosts."
        yield Finding("GPUs", NOTE, text + ", no NCCL", change)
    free = [torch.cuda.mem_get_info(number)[0] for number in range(count)]
    share = -(-asked.learners // count) * VECTORS * 4 * asked.parameters
    if min(free) < share:
        text = f"{min(free) / 2**30:.1f} GiB free on the fullest, about {share / 2**30:.1f} needed"
        yield Finding("GPU memory", BAD, text, "Start fewer learners, or end other programs there (nvidia-smi).")
    if asked.learners > count and not os.path.exists(os.path.join(mps_folder(), "control")):
        text = f"{asked.learners} learners share {count}, without MPS: a GPU runs one process at a time"
        yield Finding("GPU sharing", NOTE, text, "nvidia-cuda-mps-control -d")


def mps_folder() -> str:
    """Return the folder of NVIDIA's multi-process service; "" if it does not run."""
    return os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")


# Means of the checks --------------------------------------------------------------------------------------------------


def addresses() -> list[tuple[str, str]]:
    """Return names and IPv4 addresses of the interfaces that are up."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                flags = struct.unpack_from("H", fcntl.ioctl(asker, 0x8913, request), 16)[0]  # SIOCGIFFLAGS
                if flags & 1:  # IFF_UP
                    answer = fcntl.ioctl(asker, 0x8915, request)  # SIOCGIFADDR
                    found.append((name, socket.inet_ntoa(answer[20:24])))
            except OSError:  # it has none
                continue
    return found


def _listen(address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    socket.create_server((address, port), family=family).close()


def _named(host: str) -> str:
    """Return the address of a host name as seen from here; "" if it has none."""
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError:
        return ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().split("\n")[0]
    except OSError:
        return ""
