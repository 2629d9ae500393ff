"""A change of a module behind the session's back is taken over, or refused by name; what would average it twice is
refused."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import roundelay
from roundelay.attached import steps
from roundelay.attached.watch import CLOSE
from roundelay.core.errors import UserError
from support.small_loop import backward, batches, network, network_by_sgd


def train(
    model: nn.Sequential,
    optimizer: torch.optim.Optimizer,
    steps: int,
    change: Callable[[nn.Sequential], None],
    when: range,
) -> None:
    """Somebody's loop, with a change by hand after some of its steps."""
    for number, (x, y) in enumerate(batches(steps)):
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()
        if number in when:
            change(model)


def clamp_data(model: nn.Sequential) -> None:
    for p in model.parameters():
        p.data.clamp_(-0.2, 0.2)


def clamp_in_place(model: nn.Sequential) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.2, 0.2)


def clamp_elsewhere(model: nn.Sequential) -> None:
    for p in model.parameters():
        p.data = p.data.clamp(-0.2, 0.2)


def initialise(model: nn.Sequential) -> None:
    nn.init.constant_(model.get_parameter("0.weight"), 0.1)


def load(model: nn.Sequential) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


CHANGES = [clamp_data, clamp_in_place, clamp_elsewhere, initialise, load]


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd", "dpsgd", "bsp", "delay-by-one"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_by_hand_are_taken_over(
    change: Callable[[nn.Sequential], None], strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After every step, the last one too: the plain loop bit for bit; said once, by name."""
    plain, model = network(), network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(plain, optimizer, 6, change, range(6))
    with roundelay.attach(model, theirs, strategy), caplog.at_level(logging.WARNING):
        train(model, theirs, 6, change, range(6))
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert sum("were changed by hand" in text for text in caplog.messages) == 1


def write_one_element(model: nn.Sequential) -> None:
    with torch.no_grad():
        model.get_parameter("0.weight")[3, 1] = 0.7


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd", "delay-by-one"])
@pytest.mark.parametrize("change", [*CHANGES, write_one_element])
@pytest.mark.parametrize("until", [2, 100])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_changes_that_come_late_are_taken_over_too(
    change: Callable[[nn.Sequential], None],
    strategy: str,
    until: int,
    on_gpu: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After dozens of steps that changed nothing: twice, or in every step from then on. On a GPU the row of a learner
    that is alone follows the module, and is not compared with it."""
    monkeypatch.setattr(steps, "waiting_costs", lambda vector: on_gpu)
    plain, model = network(), network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    quiet = CLOSE + 10  # steps, each of which shows the module something once or twice
    when = range(quiet, quiet + until)
    train(plain, optimizer, quiet + 5, change, when)
    with roundelay.attach(model, theirs, strategy), caplog.at_level(logging.WARNING):
        train(model, theirs, quiet + 5, change, when)
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    said = sum("were changed by hand" in text for text in caplog.messages)
    assert said == 1 if not on_gpu or change is clamp_elsewhere else said == 0


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd", "delay-by-one"])
def test_what_a_forward_changes_is_kept(strategy: str) -> None:
    """An embedding that renormalises the rows it looks up."""

    def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, max_norm=0.5), nn.Linear(3, 2))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def train(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        for number in range(6):
            optimizer.zero_grad()
            found: Tensor = model(torch.tensor([number % 5, (number + 2) % 5]))
            torch.autograd.backward(found.square().sum())
            optimizer.step()

    plain, attached = make(), make()
    train(*plain)
    with roundelay.attach(*attached, strategy):
        train(*attached)
    for a, b in zip(plain[0].parameters(), attached[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("inside", [False, True])
def test_weights_swapped_for_an_evaluation_are_no_change(inside: bool, caplog: pytest.LogCaptureFixture) -> None:
    plain, model = network(), network()
    for one in (plain, model):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        session = roundelay.attach(one, optimizer) if one is model else None
        average = AveragedModel(one)
        for number, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            backward(one, x, y)
            optimizer.step()
            average.update_parameters(one)
            if one is model and number % 2:
                own = [p.detach().clone() for p in one.parameters()]
                for p, mean in zip(one.parameters(), average.parameters(), strict=True):
                    p.data.copy_(mean)
                with torch.no_grad():
                    one(x)
                for p, mine in zip(one.parameters(), own, strict=True):
                    p.data.copy_(mine)
        if session is not None and inside:
            with session.consensus():
                model.get_parameter("0.bias").data.zero_()
        if session is not None:
            session.close()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert [("changed inside session.consensus()" in text) for text in caplog.messages] == [True] * inside


def test_what_is_frozen_later_is_left_alone_and_what_is_unfrozen_refused() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    with roundelay.attach(model, optimizer, "ssgd") as session:
        model[2].bias.requires_grad_(False)
        before = model.get_parameter("2.bias").detach().clone()
        for x, y in batches():
            optimizer.zero_grad()
            backward(model, x, y)
            optimizer.step()
        assert torch.equal(before, model.get_parameter("2.bias"))
        model[0].requires_grad_(True)
        with pytest.raises(UserError, match=r"0.weight requires a gradient now, .*attach again"):
            backward(model, x, y)
        session.abandon()
    with roundelay.attach(model, optimizer, "ssgd"):
        backward(model, x, y)
        optimizer.step()


def replace_one(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.zeros(6, 4))


def parametrize(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[0])


def add_one(model: nn.Sequential) -> None:
    model.append(nn.Linear(2, 2))


def assign(model: nn.Sequential) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def halve(model: nn.Sequential) -> None:
    model.to(torch.bfloat16)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (replace_one, r"parameter 0.weight was replaced"),
        (parametrize, r"parameter 0.weight was replaced"),
        (assign, r"parameter 0.weight was replaced by another .*assign=True"),
        (add_one, r"3.weight, 3.bias were added"),
        (halve, r"0.weight is torch.bfloat16 on cpu now, and was torch.float32"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_by_name(what: Callable[[nn.Sequential], None], says: str) -> None:
    model = network()
    session = roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    backward(model, *next(batches()))
    session.step()
    what(model)
    with pytest.raises(UserError, match=says):
        session.meet()
    session.abandon()


def test_parameters_in_no_optimizer_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    with roundelay.attach(model, torch.optim.SGD(model[2].parameters(), lr=0.1)):
        before = model.get_parameter("0.weight").detach().clone()
        backward(model, *next(batches()))
    assert torch.equal(before, model.get_parameter("0.weight"))
    assert any("0.weight, 0.bias are in no optimizer" in text for text in caplog.messages)


@pytest.fixture
def _group() -> Iterator[None]:
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def _group_of_two() -> Iterator[None]:
    """The other of the two says what this one says."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    distributed: Any = torch.distributed
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
@pytest.mark.parametrize(
    "options",
    [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"static_graph": True}],
    ids=str,
)
def test_a_wrapper_that_averages_over_one_process_changes_nothing(strategy: str, options: dict[str, Any]) -> None:
    """Made before and attached itself, or made around the attached module; with `join` and `no_sync`, as frameworks
    use it."""

    def wrapped_loop(model: nn.Module, run: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        distributed = run if isinstance(run, nn.parallel.DistributedDataParallel) else None
        with nullcontext() if distributed is None else distributed.join():
            for number, (x, y) in enumerate(batches(CLOSE + 8)):
                accumulates = distributed is not None and number % 2 == 0 and "static_graph" not in options
                with distributed.no_sync() if distributed is not None and accumulates else nullcontext():
                    backward(run, x, y)
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=number % 4 == 1)
        return [p.tolist() for p in model.parameters()]

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    plain, optimizer = made()
    expected = wrapped_loop(plain, plain, optimizer)
    for first in (True, False):
        model, optimizer = made()
        wrapped = nn.parallel.DistributedDataParallel(model, **options) if first else model
        with roundelay.attach(wrapped, optimizer, strategy):
            run = wrapped if first else nn.parallel.DistributedDataParallel(model, **options)
            assert wrapped_loop(model, run, optimizer) == expected


@pytest.mark.usefixtures("_group_of_two")
def test_a_module_that_somebody_else_averages_is_refused() -> None:
    model = network()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match=r"the module is a DistributedDataParallel: .*ddp.module"):
        roundelay.attach(wrapped, optimizer)
    with pytest.raises(UserError, match=r"0 is a DistributedDataParallel"):
        roundelay.attach(nn.Sequential(wrapped), optimizer)
    x, y = next(batches())
    session = roundelay.attach(model, optimizer)
    backward(model, x, y)
    optimizer.step()
    later = nn.parallel.DistributedDataParallel(model)
    with pytest.raises(UserError, match=r"is run by a DistributedDataParallel around it"):
        backward(later, x, y)
    session.abandon()


@pytest.mark.usefixtures("_group")
def test_a_module_that_is_sharded_while_it_is_attached_is_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    model, optimizer = network_by_sgd()
    session = roundelay.attach(model, optimizer)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UserError, match=r"fully_shard"):
        session.meet()
    session.abandon()


def test_parameters_laid_out_anew_have_not_changed(caplog: pytest.LogCaptureFixture) -> None:
    """As recurrent layers on a GPU do it where a forward asks: other memory, the same values. The far watch sees it."""

    class LaysOut(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for p in self.parameters():
                p.data = p.data.clone()
            found: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return found

    plain, model = network(), LaysOut(*network())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = roundelay.attach(model, theirs, "adpsgd")
    for one, other in ((plain, optimizer), (model, theirs)):
        train(one, other, CLOSE + 10, lambda _: None, range(0))
    session.close()
    assert [p.tolist() for p in model.parameters()] == [p.tolist() for p in plain.parameters()]
    assert not caplog.records


@pytest.mark.parametrize("changed", [True, False])
def test_parameters_that_are_not_trained_and_that_the_loop_changes_are_named_once(
    changed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As an average of others within the module is, whose `.data` the loop assigns."""
    model = network()
    model.append(copy.deepcopy(model[0]).requires_grad_(False))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    session = roundelay.attach(model, optimizer, "adpsgd")
    average: Any = model[-1]
    for _ in range(2):
        session.meet()
        assert not caplog.messages or changed
        if changed:
            average.weight.data = 0.9 * average.weight.data + 0.1 * model.get_parameter("0.weight").data
    session.close()
    said = [text for text in caplog.messages if "require no gradient and have changed" in text]
    assert len(said) == changed
    assert not changed or f"rank 0: parameters {len(model) - 1}.weight require" in said[0]
