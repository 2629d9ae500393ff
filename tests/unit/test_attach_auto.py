"""`strategy="auto"` of attach: chosen once, the same on all learners, and said."""

import itertools
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import roundelay
from roundelay.advice.throughput import Candidate
from roundelay.attached import choosing
from roundelay.attached.choosing import Chosen, chosen_strategy, probed
from roundelay.core.errors import UserError
from roundelay.runtime.launch.world import HostPlace, World
from support.small_loop import network

FEW = [Candidate("ssgd"), Candidate("adpsgd:random-ring"), Candidate("diloco,period=50")]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(choosing, "candidates", lambda _: FEW)


def choose(world: World, resume: Path | None = None, **options: Any) -> Chosen:
    model = nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return chosen_strategy(model, [optimizer], world, 60.0, resume, options)


def hosts(rank: int) -> World:
    return World(rank, 2, place=HostPlace((rank,), 2))


def test_hosts_come_to_the_same_from_the_facts_given(caplog: pytest.LogCaptureFixture) -> None:
    facts: dict[str, Any] = {"seconds": 1e-3, "link": "1mbit"}
    with caplog.at_level(logging.WARNING):
        first, second = (choose(hosts(rank), **facts) for rank in (0, 1))
    assert first == second
    assert set(first.hosts) == {"wire"}
    assert first.strategy.label in caplog.text  # rank 0 says it
    assert caplog.text.count("strategy auto is") == 1
    assert choose(hosts(0), seconds=10.0, link="100gbit").why != first.why


def test_several_learners_train_together_though_one_would_be_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link on which a mean takes a hundred gradients' time; `sgd` is for one learner, and is not given to two."""
    monkeypatch.setattr(choosing, "candidates", lambda _: [Candidate("sgd"), Candidate("ssgd")])
    found = choose(hosts(0), seconds=1e-3, link="1mbit")
    assert found.strategy.name == "ssgd"
    assert "Train with one learner" in found.why


def test_hosts_without_these_facts_are_refused() -> None:
    with pytest.raises(UserError, match=r"rank 1: .*needs seconds=.*link="):
        choose(hosts(1), seconds=0.1)
    with pytest.raises(UserError, match="second"):
        choose(World(), second=0.1)


def test_the_first_learner_of_a_host_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would have said something else by themselves, of a step that takes another time."""
    monkeypatch.setattr(choosing, "_chosen", itertools.repeat(1))  # both are in one process
    secret = secrets.token_bytes(16)
    worlds = [World(rank, 2, "127.0.0.1", 1, secret=secret) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda world: choose(world, seconds=0.05 + world.rank), worlds)
    assert first == second
    assert first.hosts == {}


def test_a_probe_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    calls, x = [], torch.randn(8, 4)

    def probe() -> None:
        calls.append(1)
        torch.autograd.backward(model(x).square().sum())

    def state() -> list[Tensor]:
        return [torch.get_rng_state(), *(value.clone() for value in model.state_dict().values())]

    model[0].weight.grad = torch.ones(3, 4)
    before = state()
    assert probed(probe, 1, model) > 0
    assert len(calls) > 2
    assert all(torch.equal(a, b) for a, b in zip(before, state(), strict=True))
    assert torch.equal(model[0].weight.grad, torch.ones(3, 4))
    assert model[0].bias.grad is None


def test_a_session_goes_on_by_the_strategy_of_its_save(tmp_path: Path) -> None:
    """And begins by the choice where there is none yet."""
    for strategy, name in (("auto", "sgd"), ("bsp", "bsp")):
        model, folder = network(), tmp_path / name
        with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy) as session:
            assert session.strategy.name == name
            session.save(folder)
        found = choose(World(), folder, seconds=0.1)
        assert found.strategy.name == name
        assert "saved under it" in found.why
    assert choose(World(), tmp_path / "nothing", seconds=0.1).strategy.name == "sgd"
