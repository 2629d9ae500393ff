"""State tying: contexts by hand, likelihood as the sum it stands for, and trees that find what was put in."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.hmm.topology import SILENCE, STATES
from roundelay_speech.hmm.tree import (
    DecisionTree,
    Leaf,
    Split,
    Statistics,
    accumulate,
    grow,
    likelihood,
    phone_classes,
    untied,
    windows,
)

PHONES = ("SIL", "A", "B", "C", "D")
DIMENSIONS = 4


def statistics(seed: int = 0, frames: int = 4000) -> Statistics:
    """Frames in random contexts; A and B sound alike, and make a phone after them sound unlike the others do."""
    rng = stream(seed, "contexts")
    size = len(PHONES) + 1
    context = np.stack([rng.integers(0, size, frames), rng.integers(1, size, frames), rng.integers(0, size, frames)], 1)
    context = np.concatenate([context, rng.integers(0, STATES, (frames, 1))], axis=1)
    sound = rng.normal(size=(size, STATES, DIMENSIONS)) * 3
    sound[[2, 3]] += 10.0
    x = sound[context[:, 1], context[:, 3]] + np.where(np.isin(context[:, 0], [2, 3]), 2.0, 0.0)[:, None]
    return accumulate((x + rng.normal(size=x.shape)).astype(np.float32), context.astype(np.int64))


def total_likelihood(tree: DecisionTree, s: Statistics) -> float:
    pdf = tree.tying().table[tuple(s.contexts.T)]
    parts = [
        likelihood(s.count[pdf == p].sum(), s.sums[pdf == p].sum(0), s.squares[pdf == p].sum(0))
        for p in range(tree.num_pdfs)
    ]
    return float(sum(parts))


def test_windows_by_hand() -> None:
    """S S | A A | A A | S: the second A begins where the state goes back."""
    phones = np.array([1, 1, 1, 2, 2, 2, 2, 2, 2, 1])
    states = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    expected = [(0, 1, 2)] * 3 + [(1, 2, 2)] * 3 + [(2, 2, 1)] * 3 + [(2, 1, 0)]
    assert [tuple(w[:3]) for w in windows(phones, states)] == expected
    assert windows(phones[:0], states[:0]).shape == (0, 4)


def test_statistics_are_sums() -> None:
    rng = stream(0, "sums")
    x = rng.normal(size=(50, 2)).astype(np.float32)
    context = rng.integers(1, 3, (50, 4))
    s = accumulate(x, context)
    assert s.count.sum() == 50
    for c, n, sums, squares in zip(s.contexts, s.count, s.sums, s.squares, strict=True):
        own = (context == c).all(1)
        assert n == own.sum()
        np.testing.assert_allclose(sums, x[own].sum(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(squares, (x[own].astype(np.float64) ** 2).sum(0), rtol=1e-5)


def test_likelihood_is_that_of_the_best_gaussian() -> None:
    x = stream(0, "x").normal(size=(30, 3)) * [1, 2, 3]
    mean, variance = x.mean(0), x.var(0)
    direct = (-0.5 * (np.log(2 * math.pi * variance) + (x - mean) ** 2 / variance)).sum()
    assert likelihood(np.float64(30), x.sum(0), (x * x).sum(0)) == pytest.approx(direct)  # type: ignore[arg-type]


def test_classes_are_nested_or_disjoint() -> None:
    means = stream(0, "means").normal(size=(6, 2))
    classes = phone_classes(means, np.ones(6))
    assert len(classes) == 1 + 6 + 4  # the edge, six phones, four merges until two clusters are left
    assert all(a <= b or b <= a or not a & b for a in classes for b in classes)


def test_more_leaves_more_likelihood() -> None:
    s = statistics()
    totals = []
    for leaves in range(15, 24):
        tree = grow(s, PHONES, leaves, min_gain=0.0)
        assert tree.num_pdfs == leaves
        totals.append(total_likelihood(tree, s))
    gains = np.diff(totals)
    assert (gains > 0).all()


def test_the_tree_asks_what_matters() -> None:
    """Twelve states (silence is left alone) differ by whether A or B is on the left; nothing else is worth asking."""
    tree = grow(statistics(), PHONES, 500)
    splits = [node for node in tree.nodes if isinstance(node, Split)]
    assert tree.num_pdfs == 15 + 12
    assert all(node.position == 0 and (node.phones & {2, 3}) in ({2, 3}, set()) for node in splits)
    table = tree.tying().table
    assert (table[2] == table[3]).all()
    assert (table[4] == table[5]).all()
    assert (table[2, 2:] != table[4, 2:]).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 60), st.sampled_from([2, 3]))
def test_table_is_total(seed: int, leaves: int, context: int) -> None:
    """Every context, seen or not, has a pdf, every pdf a context; silence is not split; a file gives the same tree."""
    tree = grow(statistics(seed, 400), PHONES, leaves, context=context, min_frames=2.0, min_gain=0.0)
    table = tree.tying().table
    assert set(np.unique(table[:, 1:])) == set(range(tree.num_pdfs))
    assert (table[:, 0] == -1).all()
    assert (table[:, SILENCE] == table[0, SILENCE, 0]).all()
    assert context == 3 or (table == table[:, :, :1]).all()
    assert 15 <= tree.num_pdfs <= max(15, leaves)
    assert DecisionTree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_a_leaf_keeps_its_frames() -> None:
    s = statistics(frames=500)
    tree = grow(s, PHONES, 100, min_frames=20.0, min_gain=0.0)
    pdf = tree.tying().table[tuple(s.contexts.T)]
    frames = np.bincount(pdf, s.count, minlength=tree.num_pdfs)
    unsplit = {tree.nodes[root] for roots in tree.roots for root in roots}
    assert all(n >= 20 or Leaf(p) in unsplit for p, n in enumerate(frames))


def test_untied_trees_are_monophones() -> None:
    tying = untied(PHONES).tying()
    own = STATES * np.arange(len(PHONES))[:, None] + np.arange(STATES)
    assert (tying.table[:, 1:] == own[None, :, None]).all()
    assert (tying.table[:, 0] == -1).all()
    assert (tying.num_pdfs, tying.context, tying.pdf(0, 2, 3, 1)) == (15, 1, 4)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 99},
        {"nodes": [{"pdf": 0}]},
        {"nodes": [{"pdf": 0}] * 15},
        {"roots": [[0, 1, 2]]},
        {"num_pdfs": 3},
        {"nodes": [{"if": "up", "in": [1], "yes": 0, "no": 1}]},
    ],
)
def test_a_broken_file_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(UserError, match="state tying"):
        DecisionTree.from_json(untied(PHONES).to_json() | damage)
