"""A state for another number of learners, or another strategy."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundelay.runtime.base import ClusterState
from roundelay.runtime.resize import TrainedBy, begun_at, gone_on_with
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import MANY, cluster, make_strategy, plan


def some(learners: int, centre: bool = False, seed: int = 0) -> ClusterState:
    generator = torch.Generator().manual_seed(seed)
    vectors = {name: torch.randn(learners, 5, generator=generator) for name in ("row", "momentum")}
    if centre:
        vectors["centre"] = torch.randn(1, 5, generator=generator)
    integers = {"steps": list(range(3, 3 + learners)), "versions": [2 * n for n in range(learners + centre)]}
    return ClusterState(vectors, integers, virtual_ns=17)


def changed(state: ClusterState, name: str, after: int, holders: Sequence[int] = ()) -> ClusterState:
    """The state of so many learners of that strategy after it; all hold models, but for those not named."""
    new = cluster(name, after, momentum=0.9)
    before = TrainedBy.of(new.strategy, range(len(state.vectors["row"])))
    return gone_on_with(state, new, replace(before, holders=holders) if holders else before)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_what_is_the_same_on_all_learners_stays_bit_for_bit(before: int, after: int, seed: int) -> None:
    """Three times x, divided by three, is not x in float32."""
    x = torch.randn(257, generator=torch.Generator().manual_seed(seed))
    vectors = {name: x.expand(before, -1).clone() for name in ("row", "momentum", *make_strategy("slowmo").memory)}
    state = ClusterState(vectors, {"steps": [7] * before, "versions": [4] * before})
    found = changed(state, "slowmo", after)
    for value in found.vectors.values():
        assert torch.equal(value, x.expand(after, -1))
    assert found.integers == {"steps": [7] * after, "versions": [4] * after}


@pytest.mark.parametrize("after", [1, 2, 5])
def test_every_learner_begins_with_the_mean(after: int) -> None:
    before = some(3)
    found = changed(before, "bsp", after)
    for name in ("row", "momentum"):
        torch.testing.assert_close(found.vectors[name], before.vectors[name].mean(0).expand(after, -1))
    assert found.integers == {"steps": [5] * after, "versions": [4] * after}
    assert found.virtual_ns == 17


def test_rows_that_hold_no_model_do_not_count() -> None:
    before = some(4)
    found = changed(before, "hadpsgd", 2, (0, 2))
    torch.testing.assert_close(found.vectors["row"][1], before.vectors["row"][[0, 2]].mean(0))
    torch.testing.assert_close(found.vectors["momentum"][1], before.vectors["momentum"].mean(0))


def test_the_centre_stays_and_every_learner_begins_there() -> None:
    before = some(3, centre=True)
    found = changed(before, "easgd", 2)
    assert torch.equal(found.vectors["centre"], before.vectors["centre"])
    assert torch.equal(found.vectors["row"], before.vectors["centre"].expand(2, -1))
    assert found.integers["versions"] == [4, 4, 6]


@pytest.mark.parametrize(
    ("before", "name"),
    [
        *(("bmuf", name) for name in MANY),
        *itertools.product(
            ("adpsgd weights=progress", "easgd", "hadpsgd"),
            ("ssgd", "slowmo period=3", "asgd", "choco-sgd", "adpsgd:random", "hadpsgd weights=progress"),
        ),
    ],
)
def test_under_another_strategy_training_is_one_that_begins_with_the_model_and_the_momentum(
    before: str, name: str
) -> None:
    """Bit for bit, whatever the other strategy has remembered."""
    with SimRuntime(cluster(before, 4, momentum=0.9)) as runtime:
        runtime.segment(plan(6, 4))
        state, x, old = runtime.state(), runtime.consensus(), runtime.cluster
    new = cluster(name, 4, momentum=0.9)
    trained = TrainedBy.of(old.strategy, range(4))
    if trained.remembered_by(new.strategy):
        return
    taken = gone_on_with(state, new, trained)
    ends = []
    for known in (taken, None):
        with SimRuntime(new) as runtime:
            begun = known or begun_at(runtime.state(), taken.vectors["row"][0])
            begun.vectors["momentum"].copy_(state.vectors["momentum"].mean(0).expand(4, -1))
            runtime.load(begun)
            torch.testing.assert_close(runtime.consensus(), x)
            runtime.segment(plan(6, 4))
            ends.append(runtime.state().vectors)
    assert ends[0].keys() == ends[1].keys()
    for key, end in ends[0].items():
        assert torch.equal(end, ends[1][key]), key


def test_numbers_of_an_estimate_begin_anew_where_learners_have_none_of_it() -> None:
    """One learner has no factor on its rate, and so keeps nothing for it."""
    several, one = (replace(cluster("bmuf", learners), rate="gain") for learners in (3, 1))
    with SimRuntime(several) as runtime:
        state = runtime.state()
    with SimRuntime(one) as runtime:
        runtime.load(gone_on_with(state, one, TrainedBy.of(several.strategy, range(3))))
        alone = runtime.state()
    with SimRuntime(several) as runtime:
        runtime.load(gone_on_with(alone, several, TrainedBy.of(one.strategy, range(1))))


def test_a_state_of_a_version_with_fewer_numbers_of_the_estimate_keeps_steps_and_masses() -> None:
    """Before 2026-11-27 the share of a gain that curvature leaves was not among them."""
    gaining = replace(cluster("adpsgd", 2), rate="gain", shared_minibatch=False)
    with SimRuntime(gaining) as runtime:
        runtime.segment(plan(0, 2))
        state = runtime.state()
    now = state.vectors["scalars"]
    narrow = torch.cat([now[:, :-2], now[:, -1:]], dim=1)
    old = replace(state, vectors={**state.vectors, "scalars": narrow})
    found = gone_on_with(old, gaining, TrainedBy.of(gaining.strategy, range(2)))
    with SimRuntime(gaining) as runtime:
        runtime.load(found)
        assert torch.equal(runtime.state().vectors["row"], state.vectors["row"])
    assert found.vectors["scalars"][:, -1].tolist() == now[:, -1].tolist()
    assert not found.vectors["scalars"][:, :-1].any()
