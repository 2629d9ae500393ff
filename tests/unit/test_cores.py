"""Number of cores a process may use, in containers of both kinds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roundelay.core import cores as room
from roundelay.core.cores import Quota, coreless_seconds, cores, quota
from support.until import until


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_tightest_of_the_groups_around_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 3500000\nuser_usec 1\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/box/cpu.stat": "usage_usec 1\n",
        },
    )
    found = quota(root)
    assert found is not None
    assert (found.cores, found.used_seconds()) == (2.5, 3.5)


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../elsewhere\n",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/cpu.stat": "usage_usec 250000",
        },
    )
    found = quota(root)
    assert found is not None
    assert (found.cores, found.used_seconds()) == (1.5, 0.25)


def test_the_first_version(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/docker/7"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "9:memory:/docker/7\n4:cpu,cpuacct:/docker/7\n0::/\n",
            f"{group}/cpu.cfs_quota_us": "400000\n",
            f"{group}/cpu.cfs_period_us": "100000\n",
            f"{group}/cpuacct.usage": "1500000000\n",
        },
    )
    found = quota(root)
    assert found is not None
    assert (found.cores, found.used_seconds()) == (4.0, 1.5)
    tree(root, {f"{group}/cpu.cfs_quota_us": "-1\n"})
    assert quota(root) is None


@pytest.mark.parametrize(
    "files", [{}, {"proc/self/cgroup": "0::/\n"}, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}]
)
def test_no_limit_or_none_that_can_be_read(tmp_path: Path, files: dict[str, str]) -> None:
    assert quota(tree(tmp_path, files)) is None


@pytest.mark.parametrize(("granted", "usable"), [(None, 64), (2.9, 2), (0.5, 1), (99.0, 64)])
def test_cores_are_those_that_can_be_kept_busy(
    monkeypatch: pytest.MonkeyPatch, granted: float | None, usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    limit = None if granted is None else Quota(granted, Path("/none"))
    monkeypatch.setattr(room, "quota", lambda: limit)
    assert cores() == usable


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not tell")
def test_a_thread_knows_for_how_long_another_had_its_core() -> None:
    """Two processes on one core: each waits for it."""
    core, before = min(os.sched_getaffinity(0)), coreless_seconds()
    other = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"])
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [core])
    try:
        until(lambda: [coreless_seconds() for _ in range(200)][-1] > before + 0.05)
    finally:
        os.sched_setaffinity(0, mine)
        other.kill()
        other.wait()
