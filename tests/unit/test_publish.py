"""Publishing on processors of all kinds: stores in order, a fence of the kernel, or a refusal that says why."""

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn, optim

import roundelay
from roundelay.core.errors import UserError
from roundelay.runtime.doctor import host
from roundelay.runtime.doctor.findings import Verdict
from roundelay.runtime.hosts.control.agent import serve
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.memory import publish as publishing
from roundelay.runtime.procs.memory.publish import MEMBARRIER, kernel_fence, prepare_publishing, publish
from support.clusters import cluster
from support.hosts import Hosts

NO_SUCH_CALL = 100_000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says of what type the processor is."""
    monkeypatch.setattr(publishing, "_fence", None)  # put back in the end
    monkeypatch.setitem(MEMBARRIER, "aarch64", MEMBARRIER[platform.machine()])  # the number that the call has here
    return lambda name: monkeypatch.setattr(platform, "machine", lambda: name)


def test_where_stores_are_seen_in_order_there_is_no_fence(
    machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(publishing, "kernel_fence")
    machine("x86_64")
    prepare_publishing()
    table = np.zeros((2, 3), np.int64)
    publish(table, (1, 2), 7)
    publish(table, [0], 5)
    assert table.tolist() == [[5, 5, 5], [0, 0, 7]]


def test_elsewhere_the_fence_comes_after_the_data_and_before_the_number(
    machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, number, seen = np.zeros(3), np.zeros(1, np.int64), []
    monkeypatch.setattr(publishing, "kernel_fence", lambda _: lambda: seen.append((data.sum(), int(number[0]))))
    machine("aarch64")
    prepare_publishing()
    data[:] = 1.0
    publish(number, 0, 1)
    assert (seen, number[0]) == ([(3.0, 0)], 1)


def test_the_kernel_here_has_the_fence(machine: Callable[[str], None]) -> None:
    """The real call, under the number it has on this machine."""
    machine("aarch64")
    prepare_publishing()
    assert publishing._fence is not None
    table = np.zeros(1, np.int64)
    publish(table, 0, 7)
    assert table[0] == 7


def test_a_kernel_without_the_call_is_named(machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="membarrier: Function not implemented"):
        kernel_fence(NO_SUCH_CALL)
    monkeypatch.setitem(MEMBARRIER, "aarch64", NO_SUCH_CALL)
    machine("aarch64")
    with pytest.raises(UserError, match=r"type aarch64 .*membarrier: Function not implemented.* --runtime sim"):
        prepare_publishing()


def attach() -> None:
    model = nn.Linear(2, 2)
    roundelay.attach(model, optim.SGD(model.parameters(), lr=0.1), strategy="sgd")


def several(run: Callable[[Hosts], Any]) -> Callable[[], None]:
    """On the first of two hosts, or on the second; nobody else is there, and nobody is waited for."""
    return lambda: run(Hosts("adpsgd", (1, 1)))


STARTS: dict[str, Callable[[], Any]] = {
    "procs": lambda: ProcsRuntime(cluster("adpsgd", 2)),
    "attach": attach,
    "first host": several(lambda hosts: MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms)),
    "other host": several(lambda hosts: serve(hosts.cluster, hosts.place, hosts.all_terms, print, lambda: "")),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_every_runtime_refuses_a_processor_it_has_no_fence_for(
    machine: Callable[[str], None], start: Callable[[], Any]
) -> None:
    machine("sparc64")
    with pytest.raises(UserError, match=r"a processor of type sparc64 may .* Use a machine of type x86_64, or"):
        start()


def test_the_doctor_says_so_too(machine: Callable[[str], None]) -> None:
    machine("sparc64")
    (found,) = host.software(host.Asked())
    assert found.verdict is Verdict.BAD
    assert "type sparc64" in found.found
    machine("aarch64")
    (found,) = host.software(host.Asked())
    assert found.verdict is Verdict.GOOD
