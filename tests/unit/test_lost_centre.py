"""Of what a centre is made again, where its host is lost."""

from hypothesis import given
from hypothesis import strategies as st

from roundelay.algorithms.lost_centre import ROW, made_of
from roundelay.runtime.hosts.control.succession import may_be_led_by_another
from support.clusters import EVERY, make_strategy

READ = st.dictionaries(st.integers(0, 9), st.integers(0, 5))


@given(READ)
def test_the_newest_copy_of_the_lowest_rank_is_the_centre(read: dict[int, int]) -> None:
    found = made_of("pulled", read)
    assert len(found) == bool(read)
    for rank in found:
        assert (read[rank], -rank) == max((version, -other) for other, version in read.items())


@given(READ)
def test_rows_tied_by_springs_count_alike(read: dict[int, int]) -> None:
    assert made_of(ROW, read) == sorted(read)


def test_a_centre_is_made_again_of_a_vector_that_learners_have() -> None:
    made = {name for name in EVERY if make_strategy(name).traits.rebuilt_from}
    assert {make_strategy(name).name for name in made} == {"asgd", "rennala", "async-diloco", "easgd"}
    quorate = [f"{name} quorum=1" for name in ("bsp", "bmuf", "bmuf-fairseq", "slowmo", "diloco")]
    for name in (*made, *quorate):
        strategy = make_strategy(name)
        assert strategy.traits.model == "centre"
        assert strategy.traits.rebuilt_from in (ROW, *strategy.memory)
        assert may_be_led_by_another(strategy, goes_on=False)
