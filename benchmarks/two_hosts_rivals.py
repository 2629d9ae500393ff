"""Ways to train together, around one plain training loop: `roundelay.attach`, and rivals as their own pages show them.

`join` is given a network and its optimizer, and gives back the two that the loop calls instead. A rival's options are
written as a strategy's: `torchft-diloco,period=100`.

    alone                  no talk
    ddp                    torch's DistributedDataParallel
    decent-dp              Decent-DP, on a ring
    torchft-localsgd       torchft's LocalSGD: the mean of the models every `period` steps
    torchft-diloco         torchft's DiLoCo, outer Nesterov with `rate` 0.7 and momentum 0.9, as in its tests
    accelerate-localsgd    accelerate's LocalSGD
    hivemind               a mean of the models every `period` steps by hivemind's averager

torchft and hivemind find their peers through a server of their own on the first host.
"""

import importlib.util
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from two_hosts_learner import Way

PACKAGES = {
    "alone": "torch",
    "ddp": "torch",
    "decent-dp": "decent_dp",
    "torchft-localsgd": "torchft",
    "torchft-diloco": "torchft",
    "accelerate-localsgd": "accelerate",
    "hivemind": "hivemind",
}
"""Packages of rivals, as Python imports them."""
LIGHTHOUSE = 29399
PERIOD = 100
PATIENT = timedelta(minutes=10)
"""Timeout of rivals: here no process dies, and links may be slow."""
MATCHING = 1.0
"""Seconds in which averagers of hivemind look for each other, at least."""


MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Place:
    """A learner among two, one on each host.

    Attributes:
        addresses: addresses of both hosts.
        notes: a folder that both hosts see.
    """

    rank: int
    addresses: tuple[str, ...]
    notes: Path

    @property
    def address(self) -> str:
        """Address of this learner's host."""
        return self.addresses[self.rank]


@dataclass
class Joined:
    """The network as the loop calls it, and the function that takes the step after its backward."""

    network: nn.Module
    step: Callable[[], None]
    zero: Callable[[], None]


def missing(mode: str) -> str:
    """Return the name of the package that a way needs and this machine lacks; "" if it lacks none."""
    package = PACKAGES.get(parsed(mode)[0], "roundelay")
    return "" if importlib.util.find_spec(package) else package


def parsed(mode: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a way, without its settings between hosts."""
    from roundelay.core.strategy_text import parse_strategy

    return parse_strategy(Way.of(mode).name)


def join(mode: str, network: nn.Module, make: MakeOptimizer, place: Place) -> Joined:
    """Have `network` trained together with the other learner's from now on; return what the loop is to call."""
    optimizer = make(network.parameters())
    name, options = parsed(mode)
    if name not in PACKAGES:
        return _attached(Way.of(mode), network, optimizer)
    plain = Joined(network, optimizer.step, optimizer.zero_grad)
    if name == "alone":
        return plain
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    os.environ["TP_SOCKET_IFNAME"] = "eth0"
    if name == "decent-dp":
        return _decent(network, make)
    joiners: dict[str, Callable[..., Joined]] = {
        "ddp": _ddp,
        "torchft-localsgd": _torchft,
        "torchft-diloco": _torchft,
        "accelerate-localsgd": _accelerate,
        "hivemind": _hivemind,
    }
    return joiners[name](plain, optimizer, place, name, **options)


def _attached(way: Way, network: nn.Module, optimizer: torch.optim.Optimizer) -> Joined:
    import roundelay

    hosts: dict[str, Any] = {"wire": way.wire, "fragments": way.fragments, "encrypt": way.encrypts}
    if way.share is not None:
        hosts["exchange_share"] = way.share
    session = roundelay.attach(network, optimizer, way.name, hosts=hosts, rate=way.rate)

    def step() -> None:
        optimizer.step()
        session.living  # noqa: B018  the session lives as long as the loop

    return Joined(network, step, optimizer.zero_grad)


def _ddp(plain: Joined, optimizer: torch.optim.Optimizer, _: Place, __: str) -> Joined:
    torch.distributed.init_process_group("gloo", timeout=PATIENT)
    network = nn.parallel.DistributedDataParallel(plain.network, gradient_as_bucket_view=True)
    return Joined(network, optimizer.step, lambda: optimizer.zero_grad(set_to_none=False))


def _decent(plain: nn.Module, make: MakeOptimizer) -> Joined:
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.remove()
    torch.distributed.init_process_group("gloo", timeout=PATIENT)
    network = DecentralizedDataParallel(plain, lambda named: make(one for _, one in named), topology="ring")
    return Joined(network, lambda: None, lambda: None)  # it steps and clears within backward


def _torchft(
    plain: Joined, optimizer: torch.optim.Optimizer, place: Place, name: str, period: int = PERIOD, rate: float = 0.7
) -> Joined:
    from torchft._torchft import LighthouseServer
    from torchft.local_sgd import DiLoCo, LocalSGD

    kept: list[Any] = []
    if place.rank == 0:
        bind = f"{place.address}:{LIGHTHOUSE}"
        kept.append(LighthouseServer(bind=bind, min_replicas=2, join_timeout_ms=1000))
    parts: dict[str, Any] = {"network": plain.network, "optimizer": optimizer}
    if name == "torchft-diloco":
        parts["outer"] = torch.optim.SGD(plain.network.parameters(), lr=rate, momentum=0.9, nesterov=True)
    manager, store = _torchft_manager(place, parts)
    with ExitStack() as stack:
        if name == "torchft-diloco":
            stack.enter_context(DiLoCo(manager, [plain.network], optimizer, parts["outer"], sync_every=period))
        else:
            stack.enter_context(LocalSGD(manager, plain.network, optimizer, sync_every=period))
        kept += [store, manager, stack.pop_all()]

    def step() -> None:
        optimizer.step()
        assert kept  # servers live as long as the loop

    return Joined(plain.network, step, optimizer.zero_grad)


def _torchft_manager(place: Place, parts: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a manager of torchft for `parts`, everything with a state, and its store, which must live as long."""
    from torch.distributed import TCPStore
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    socket.gethostname = lambda: place.address  # hosts that are namespaces have one name between them

    def load(states: dict[str, Any]) -> None:
        for key, state in states.items():
            parts[key].load_state_dict(state)

    store = TCPStore(place.address, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENT),
        min_replica_size=2,
        use_async_quorum=False,
        load_state_dict=load,
        state_dict=lambda: {key: part.state_dict() for key, part in parts.items()},
        replica_id=f"replica{place.rank}",
        store_addr=place.address,
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=f"http://{place.addresses[0]}:{LIGHTHOUSE}",
        hostname=place.address,
        timeout=PATIENT,
        quorum_timeout=PATIENT,
        connect_timeout=PATIENT,
        init_sync=False,
    )
    return manager, store


def _accelerate(plain: Joined, optimizer: torch.optim.Optimizer, _: Place, __: str, period: int = PERIOD) -> Joined:
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    network, prepared = accelerator.prepare(plain.network, optimizer)
    local = LocalSGD(accelerator=accelerator, model=network, local_sgd_steps=period, enabled=True)
    local.__enter__()

    def step() -> None:
        prepared.step()
        local.step()

    return Joined(network, step, prepared.zero_grad)


def _hivemind(plain: Joined, optimizer: torch.optim.Optimizer, place: Place, _: str, period: int = PERIOD) -> Joined:
    import hivemind

    peers = place.notes / "hivemind-peers"
    if place.rank:
        while not peers.exists():
            time.sleep(0.05)
    table = hivemind.DHT(
        host_maddrs=[f"/ip4/{place.address}/tcp/0"],
        initial_peers=peers.read_text().split() if place.rank else None,
        start=True,
        use_ipfs=False,
        use_relay=False,
        use_auto_relay=False,
    )
    if not place.rank:
        written = peers.with_suffix(".part")
        written.write_text("\n".join(str(address) for address in table.get_visible_maddrs()))
        written.rename(peers)
    parameters = [*plain.network.parameters()]
    averager = hivemind.DecentralizedAverager(
        averaged_tensors=[parameter.detach().clone() for parameter in parameters],
        dht=table,
        prefix="two-hosts",
        target_group_size=2,
        min_group_size=2,
        min_matchmaking_time=MATCHING,
        start=True,
    )
    taken = 0

    def step() -> None:
        nonlocal taken
        optimizer.step()
        taken += 1
        if taken % period:
            return
        with torch.no_grad():
            with averager.get_tensors() as shared:
                for tensor, parameter in zip(shared, parameters, strict=True):
                    tensor.copy_(parameter)
            if averager.step(timeout=PATIENT.total_seconds(), allow_retries=True) is None:
                return
            with averager.get_tensors() as shared:
                for tensor, parameter in zip(shared, parameters, strict=True):
                    parameter.copy_(tensor)

    return Joined(plain.network, step, optimizer.zero_grad)
