"""A state for another number of learners."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundelay.runtime.base import ClusterState
from roundelay.runtime.resize import resized


def some(learners: int, centre: bool = False, seed: int = 0) -> ClusterState:
    generator = torch.Generator().manual_seed(seed)
    vectors = {name: torch.randn(learners, 5, generator=generator) for name in ("row", "momentum")}
    if centre:
        vectors["centre"] = torch.randn(1, 5, generator=generator)
    integers = {"steps": list(range(3, 3 + learners)), "versions": [2 * n for n in range(learners + centre)]}
    return ClusterState(vectors, integers, virtual_ns=17)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_what_is_the_same_on_all_learners_stays_bit_for_bit(before: int, after: int, seed: int) -> None:
    """Three times x, divided by three, is not x in float32."""
    x = torch.randn(257, generator=torch.Generator().manual_seed(seed))
    vectors = {name: x.expand(before, -1).clone() for name in ("row", "block_anchor")}
    state = ClusterState(vectors, {"steps": [7] * before, "versions": [4] * before})
    changed = resized(state, range(before), after)
    for value in changed.vectors.values():
        assert torch.equal(value, x.expand(after, -1))
    assert changed.integers == {"steps": [7] * after, "versions": [4] * after}


@pytest.mark.parametrize("after", [1, 2, 5])
def test_every_learner_begins_with_the_mean(after: int) -> None:
    before = some(3)
    changed = resized(before, (0, 1, 2), after)
    for name in ("row", "momentum"):
        torch.testing.assert_close(changed.vectors[name], before.vectors[name].mean(0).expand(after, -1))
    assert changed.integers == {"steps": [5] * after, "versions": [4] * after}
    assert changed.virtual_ns == 17


def test_rows_that_hold_no_model_do_not_count() -> None:
    before = some(4)
    changed = resized(before, (0, 2), 2)
    torch.testing.assert_close(changed.vectors["row"][1], before.vectors["row"][[0, 2]].mean(0))
    torch.testing.assert_close(changed.vectors["momentum"][1], before.vectors["momentum"].mean(0))


def test_the_centre_stays_and_every_learner_begins_there() -> None:
    before = some(3, centre=True)
    changed = resized(before, (0, 1, 2), 2)
    assert torch.equal(changed.vectors["centre"], before.vectors["centre"])
    assert torch.equal(changed.vectors["row"], before.vectors["centre"].expand(2, -1))
    assert changed.integers["versions"] == [4, 4, 6]
