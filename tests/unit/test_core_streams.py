"""Random numbers by name: nothing depends on who asked first, on the process or on the machine."""

import itertools

import numpy as np
import pytest

from roundelay.core.streams import Key, stream, stream_seed


def test_golden_values() -> None:
    """These numbers are a promise: changing them changes every recorded run."""
    assert stream_seed(0) == 4246866556266386882
    assert stream_seed(7, "draw", 0, 3) == 5768810026388775905
    assert stream(7, "draw", 0, 3).integers(0, 1 << 30, 4).tolist() == [144770617, 572124424, 890251465, 196911429]
    np.testing.assert_allclose(stream(7, "draw", 0, 3).standard_normal(2), [0.6503834, -0.41658949], rtol=1e-6)


def test_a_stream_does_not_depend_on_what_else_was_drawn() -> None:
    names: list[tuple[Key, ...]] = [("draw", 0), ("draw", 1), ("peer", 0, 5), ("start",)]
    alone = {name: stream(3, *name).random(8).tolist() for name in names}
    for order in itertools.permutations(names):
        streams = {name: stream(3, *name) for name in order}
        together: dict[tuple[Key, ...], list[float]] = {name: [] for name in order}
        for _ in range(8):
            for name in order:
                together[name].append(streams[name].random())
        assert together == alone


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "draw"), (1, "draw")),  # seed
        ((0, "draw", 1), (0, "draw", 2)),  # rank
        ((0, "draw", 1, 2), (0, "draw", 2, 1)),  # place
        ((0, "draw", 12), (0, "draw", 1, 2)),  # where one key ends
        ((0, "draw", 1), (0, "draw", "1")),  # type
        ((0, "draw"), (0, "draw", "")),  # an empty key is a key
        ((1, 2), (12,)),  # seed against key
        ((-1, "draw"), (1, "draw")),
    ],
)
def test_every_part_of_the_name_matters(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert stream_seed(*one) != stream_seed(*other)
    assert stream(*one).random(4).tolist() != stream(*other).random(4).tolist()


def test_a_thousand_neighbouring_streams_are_uncorrelated() -> None:
    """The first numbers of streams (0, "draw", 0..999): uniform on [0, 1) and unrelated to their neighbour's."""
    first = np.array([stream(0, "draw", rank).random() for rank in range(1000)])
    assert len(set(first.tolist())) == 1000
    assert abs(first.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 1000)  # four standard errors
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 4 / np.sqrt(1000)
