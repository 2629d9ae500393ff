"""Facts about a GPU and its machine that everything else stands on, each tried by itself, before anything is measured.

    python benchmarks/gpu_about.py [--device cpu] [--out FILE]

Versions; what nvidia-smi says; bandwidth of a copy and of a matrix product in bfloat16; whether another process can map
this one's memory on the GPU (rows of learners), whether memory of the host can be pinned, whether Triton and
torch.compile compile, and whether NCCL takes two ranks on one GPU. What fails says why, and the rest goes on.
"""

import argparse
import json
import mmap
import multiprocessing
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_workloads import checked_device, finish

from roundelay.algorithms.local_update import Sgd
from roundelay.runtime.procs.memory.device_rows import DeviceRows
from roundelay.runtime.procs.memory.pinned import pinned, unpin

SECONDS = 45


def versions(device: torch.device) -> dict[str, Any]:
    """Of what is installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "kernel": platform.release()}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {"gpu": about.name, "memory": about.total_memory, "cuda": torch.version.cuda}
        found |= {"nccl": list(torch.cuda.nccl.version()), "cudnn": torch.backends.cudnn.version()}
    return found


def smi(device: torch.device) -> str:
    """The report of nvidia-smi."""
    if device.type != "cuda" or shutil.which("nvidia-smi") is None:
        return "not there"
    return subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written."""
    size = 2**28 if device.type == "cuda" else 2**20
    x, y = (torch.randn(size, device=device) for _ in range(2))
    return 8 * size / _seconds(lambda: x.copy_(y), device)


def bfloat16_rate(device: torch.device) -> float:
    """Operations a second of a large product."""
    size = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return float(2 * size**3 / _seconds(lambda: a @ b, device))


def mapped_elsewhere(device: torch.device) -> str:
    """Another process writes this one's rows."""
    rows = DeviceRows.allocate(
        ("row",), 1000, True, [torch.device(device.type, 0) if device.type == "cuda" else device]
    )
    process = multiprocessing.get_context("forkserver").Process(target=write_there, args=(rows,))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        raise RuntimeError("it neither wrote nor ended")
    if process.exitcode or not bool((rows.vectors["row"][0] == 7).all()):
        raise RuntimeError(f"it ended with status {process.exitcode} and has not written")
    return "yes"


def write_there(rows: DeviceRows) -> None:
    """In the other process."""
    rows.vectors["row"][0].fill_(7)
    finish(rows.vectors["row"][0].device)


def pinning(device: torch.device) -> str:
    """Shared memory of the host is registered, copied from, and given back."""
    vector = torch.frombuffer(mmap.mmap(-1, 1 << 20), dtype=torch.float32)
    there = torch.ones(len(vector), device=device)
    was = pinned(vector).is_pinned() if device.type == "cuda" else True
    vector.copy_(there)
    unpin(vector.data_ptr(), 1 << 20)
    if not was or not bool((vector == 1).all()):
        raise RuntimeError("refused")
    return "yes"


def triton(device: torch.device) -> str:
    """The kernel of updates."""
    if device.type != "cuda":
        return "for GPUs"
    row = torch.zeros(8, device=torch.device("cuda", 0))
    if Sgd().attach_copying(row, {}, torch.empty_like(row)) is None:
        raise RuntimeError("it does not run")
    return "yes"


def compiles(device: torch.device) -> float:
    """Seconds until a small function is compiled and has run."""
    started = time.monotonic()
    torch.compile(lambda x: (x * 2 + 1).relu())(torch.ones(8, device=device))
    finish(device)
    return time.monotonic() - started


def two_ranks(device: torch.device) -> str:
    """Does NCCL take two ranks on one GPU? On a processor gloo is asked."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=meet, args=(rank, folder, device.type)) for rank in range(2)]
        for process in processes:
            process.start()
        until = time.monotonic() + SECONDS
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        late = [process for process in processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
    return "yes" if not late and not any(process.exitcode for process in processes) else "no"


def meet(rank: int, folder: str, kind: str) -> None:
    """One rank."""
    from torch import distributed

    store = distributed.FileStore(f"{folder}/meet", 2)
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=2)
    distributed.all_reduce(torch.ones(8, device=kind))
    distributed.destroy_process_group()


def _seconds(do: Callable[[], object], device: torch.device) -> float:
    for _ in range(3):
        do()
    finish(device)
    started = time.perf_counter()
    for _ in range(10):
        do()
    finish(device)
    return (time.perf_counter() - started) / 10


QUESTIONS: dict[str, Callable[[torch.device], Any]] = {
    "versions": versions,
    "nvidia-smi": smi,
    "copy, bytes a second": copy_bandwidth,
    "bfloat16 product, operations a second": bfloat16_rate,
    "memory on the device is mapped by other processes": mapped_elsewhere,
    "memory of the host is pinned": pinning,
    "Triton": triton,
    "torch.compile, seconds": compiles,
    "NCCL takes two ranks on one GPU": two_ranks,
}


def main() -> None:
    """Ask and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, found = checked_device(options.device), dict[str, Any]()
    for name, ask in QUESTIONS.items():
        try:
            found[name] = ask(device)
        except Exception as error:  # the other answers are worth having
            found[name] = f"no: {type(error).__name__}: {error}"
        print(f"{name}: {found[name]}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
