"""`roundelay.attach` on one learner, in this process: what it does to a module, an optimizer, and mistakes."""

import copy
import copyreg
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import roundelay
from roundelay.core.errors import UserError
from roundelay.strategies import STRATEGIES, make_strategy
from support.small_loop import backward, batches


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def optimizers(model: nn.Sequential) -> dict[str, torch.optim.Optimizer]:
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters(), "lr": 0.05},
        {"params": [*model[1].parameters(), *model[3].parameters()]},
    ]
    return {
        "sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        "adamw": torch.optim.AdamW(model.parameters(), lr=0.01),
        "groups": torch.optim.SGD(groups, lr=0.1),
        "rmsprop": torch.optim.RMSprop(model.parameters(), lr=0.01),
    }


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: Sequence[Callable[[], object]], set_to_none: bool = True
) -> None:
    for x, y in batches():
        optimizer.zero_grad(set_to_none)
        backward(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for step in steps:
            step()


@pytest.mark.parametrize("name", ["sgd", "adamw", "groups", "rmsprop"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_one_learner_is_plain_training(name: str, set_to_none: bool) -> None:
    """Bit for bit, whatever the optimizer and its groups, with clipping and a schedule."""
    plain, model = network(), network()
    optimizer = optimizers(plain)[name]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    loop(plain, optimizer, [optimizer.step, schedule.step], set_to_none)
    theirs = optimizers(model)[name]
    schedule_there = torch.optim.lr_scheduler.ExponentialLR(theirs, 0.8)
    with roundelay.attach(model, theirs, "adpsgd") as session:
        loop(model, theirs, [session.step, schedule_there.step], set_to_none)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), model.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", [name for name, kind in STRATEGIES.items() if kind.traits.alone_is_sgd])
def test_with_one_learner_every_strategy_that_declares_it_equals_sgd(name: str) -> None:
    plain, model = network(), network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    loop(plain, optimizer, [optimizer.step])
    theirs = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.attach(model, theirs, name) as session:
        loop(model, theirs, [session.step])
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_parameters_without_a_gradient_and_frozen_ones_are_left_alone() -> None:
    """The optimizer skips them as it does without us: no weight decay for what was not used."""
    model = network()
    unused = nn.Linear(2, 2)
    whole = nn.ModuleDict({"used": model, "unused": unused})
    frozen = next(model.parameters()).requires_grad_(False)
    before = [p.detach().clone() for p in (*unused.parameters(), frozen)]
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, weight_decay=0.5)
    with roundelay.attach(whole, optimizer) as session:
        loop(model, optimizer, [session.step])
    assert all(torch.equal(a, b) for a, b in zip(before, (*unused.parameters(), frozen), strict=True))


def test_gradients_are_still_there_after_a_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.attach(model, optimizer, "ssgd") as session:
        x, y = next(batches())
        backward(model, x, y)
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        session.step()
        assert norm == nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]) > 0


def test_the_module_is_the_users_again_after_close() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = roundelay.attach(model, optimizer)
    sampler = session.sampler(4, batch_size=2)
    loop(model, optimizer, [session.step])
    session.close()
    session.close()
    before = [p.detach().clone() for p in model.parameters()]
    loop(model, optimizer, [optimizer.step])
    assert not torch.equal(before[0], next(model.parameters()))
    with pytest.raises(UserError, match=r"session.step after session.close\(\)"):
        session.step()
    assert session.living == ()
    assert session.summary()["steps"] == [6]
    with pytest.raises(UserError, match="of a closed session"):
        list(sampler)


def test_an_exception_in_the_loop_leaves_at_once() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError), roundelay.attach(model, optimizer) as session:  # noqa: PT012
        loop(model, optimizer, [session.step])
        kept = [p.detach().clone() for p in model.parameters()]
        raise ZeroDivisionError
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))


def test_consensus_is_for_evaluation_only() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.attach(model, optimizer) as session:
        with session.consensus() as evaluated:
            assert evaluated is model
            evaluated(torch.zeros(3, 4))  # recording gradients is no harm
            with pytest.raises(UserError, match="holds the model to evaluate"):
                session.step()
            with pytest.raises(UserError, match="cannot meet again"), session.consensus():
                pass
        loop(model, optimizer, [session.step])
    assert session.steps == 6


def test_copies_of_the_module_are_not_attached() -> None:
    """Averages of weights (torch.optim.swa_utils) copy the module, before or after; one that is saved whole needs no
    Roundelay where it is loaded."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.attach(model, optimizer) as session:
        loop(model, optimizer, [session.step])
        average, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        before = [p.detach().clone() for p in model.parameters()]
        file = io.BytesIO()
        torch.save(model, file)
        with torch.serialization.safe_globals([type(part) for part in model.modules()]):
            torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        for other in (average, pickled):
            assert not any(part._forward_pre_hooks for part in other.modules())
            other(next(batches())[0])
            assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))
        assert session.wants_to_begin
        loop(model, optimizer, [session.step])
        for other in (average, pickled):
            assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_after_the_last_session_classes_of_modules_are_pickled_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions have modules of the same classes; a class with a reducer of its own keeps it all the time."""
    own = type("Own", (nn.Linear,), {})
    monkeypatch.setitem(copyreg.dispatch_table, own, object.__reduce__)
    before, several = {**copyreg.dispatch_table}, [nn.Sequential(own(2, 2), nn.Linear(2, 1)) for _ in range(2)]
    first, second = (roundelay.attach(one, torch.optim.SGD(one.parameters(), lr=0.1)) for one in several)
    second.close()
    kept = pickle.loads(pickle.dumps(several[0][1]))
    assert not kept._forward_pre_hooks
    first.close()
    assert copyreg.dispatch_table == before


def bad(what: str) -> tuple[nn.Module, list[nn.Parameter], dict[str, Any]]:
    model = network()
    parameters = list(model.parameters())
    options: dict[str, Any] = {}
    match what:
        case "strategy":
            options = {"strategy": "sdg"}
        case "option":
            options = {"strategy": "bmuf", "perod": 3}
        case "between hosts":
            options = {"strategy": "ssgd", "wire": "int8"}
        case "twice":
            options = {"strategy": make_strategy("bsp"), "period": 3}
        case "double":
            model.double()
        case "device":
            model = network().to("meta")
            parameters = list(model.parameters())
        case "two devices":
            model[0].bias = nn.Parameter(torch.zeros(6, device="meta"))
        case "stranger":
            parameters = [*parameters, nn.Parameter(torch.zeros(1))]
        case "frozen":
            model.requires_grad_(False)
        case "patience":
            options = {"patience": 0}
    return model, parameters, options


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("strategy", "no strategy 'sdg'"),
        ("option", "no option perod: it has period"),
        ("between hosts", r"ssgd has no option wire: it is one between hosts, attach\(..., hosts={'wire': 'int8'}\)"),
        ("twice", "to the Strategy"),
        ("double", r"parameter 0.weight is torch.float64.*float32, bfloat16 or float16"),
        ("device", r"on meta: attach trains on CPUs"),
        ("two devices", r"0.weight is on cpu and 0.bias on meta.*all on one device"),
        ("stranger", "1 parameters that are not in the module"),
        ("frozen", "nothing to train"),
        ("patience", "above 0"),
    ],
)
def test_mistakes_are_named(what: str, says: str) -> None:
    model, parameters, options = bad(what)
    with pytest.raises(UserError, match=says):
        roundelay.attach(model, torch.optim.SGD(parameters, lr=0.1), **options)


def test_mistakes_in_the_loop_are_named() -> None:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1))
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        with pytest.raises(UserError, match=r"examples=0"):
            session.step(0)
        model(torch.tensor([1])).sum().backward()
        with pytest.raises(UserError, match=r"gradient of 0.weight is sparse"):
            session.step()
        session.load_state_dict(session.state_dict())
        with pytest.raises(UserError, match="learners 5"):
            session.load_state_dict({**session.state_dict(), "learners": 5})
        model[1].weight.data = torch.zeros(1, 2).double()
        with pytest.raises(UserError, match=r"parameter 1.weight is torch.float64 on cpu now"):
            session.meet()
        model[1].weight.data = model[1].weight.data.float()


def test_sampler_goes_through_every_epoch_in_another_order() -> None:
    model = network()
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        sampler = session.sampler(10, batch_size=4)
        epochs = [list(sampler) for _ in range(2)]
        assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
        assert len(sampler) == 3
        assert all(sorted(sum(epoch, [])) == list(range(10)) for epoch in epochs)  # noqa: RUF017
        assert epochs[0] != epochs[1]
        sampler.set_epoch(0)
        assert list(sampler) == epochs[0]
        assert [len(batch) for batch in session.sampler(10, batch_size=4, drop_last=True)] == [4, 4]
        assert list(session.sampler(5, batch_size=2, shuffle=False)) == [[0, 1], [2, 3], [4]]
        with pytest.raises(UserError, match="minibatches of 0"):
            session.sampler(10, batch_size=0)


def test_buffers_made_later_are_kept_and_those_of_another_size_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """A first forward makes some (objectives of reinforcement learning); the training before is not lost."""
    model = network()
    session = roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.register_buffer("later", torch.full((2,), 3.0))
    loop(model, session.optimizers[0], [session.step])
    with session.consensus():
        assert model.get_buffer("later").tolist() == [3.0, 3.0]
    model[1].register_buffer("running_mean", torch.zeros(7))
    with pytest.raises(UserError, match=r"buffers 1.running_mean have another size"):
        session.close()
    model[1].register_buffer("running_mean", torch.zeros(6))
    session.close()
    assert caplog.text.count("buffers later were added to the module after it was attached") == 1
