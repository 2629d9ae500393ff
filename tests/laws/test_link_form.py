"""The form in which rows travel follows what the link bears."""

import re

import pytest

from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.exchange.row_format import LONG, SHORT, LinkForm, RowFormat, settled
from roundelay.runtime.hosts.options import AUTO, HostOptions
from roundelay.strategies import make_strategy, parse_strategy

CHUNKS = 40
PARAMETERS = CHUNKS * CHUNK - 5
EXTRA = 0.01
"""Seconds of an exchange, however little travels."""


def travel(form: LinkForm, bytes_a_second: float, exchanges: int) -> list[tuple[int, int, str, float]]:
    """Exchange so often over a link; first and last chunk, codec, and seconds of each."""
    found = []
    for _ in range(exchanges):
        fragment, codec = form.next()
        seconds = EXTRA + codec.bytes_of(fragment.size) / bytes_a_second
        form.took(seconds)
        found.append((fragment.first, fragment.stop, codec.name, seconds))
    return found


@pytest.mark.parametrize("bytes_a_second", [1e9, 1e8, 2e7, 5e6, 2e6])
def test_exchanges_become_short_and_carry_all_parts_equally_often(bytes_a_second: float) -> None:
    form = LinkForm(RowFormat(AUTO, AUTO), PARAMETERS)
    travel(form, bytes_a_second, 60)
    settled = travel(form, bytes_a_second, 64 * 4)
    times = [0] * CHUNKS
    for first, stop, _, seconds in settled:
        assert seconds < 1.5 * SHORT
        for chunk in range(first, stop):
            times[chunk] += 1
    assert max(times) <= min(times) + 4
    (codec,) = {codec for _, _, codec, _ in settled}
    assert codec == ("bf16" if 2 * PARAMETERS / bytes_a_second < 0.8 * LONG else "int8")
    if 2 * PARAMETERS / bytes_a_second < SHORT - 2 * EXTRA:
        assert settled[0][:2] == (0, CHUNKS), "a link that bears whole rows carries them whole"


def test_a_link_that_becomes_fast_again_carries_larger_parts_again() -> None:
    form = LinkForm(RowFormat(AUTO, AUTO), PARAMETERS)
    (*_, slow), (*_, fast) = travel(form, 5e6, 60), travel(form, 1e9, 60)
    assert slow[1] - slow[0] < fast[1] - fast[0] == CHUNKS
    assert (slow[2], fast[2]) == ("int8", "bf16")


@pytest.mark.parametrize(("wire", "fragments"), [("fp32", 1), ("int8", 3), ("bf16", 1)])
def test_what_a_run_says_is_kept_to_on_every_link(wire: str, fragments: int) -> None:
    form = LinkForm(RowFormat(wire, fragments), PARAMETERS)
    found = travel(form, 1e4, 30)
    assert {codec for _, _, codec, _ in found} == {wire}
    assert len({first for first, *_ in found}) == fragments


@pytest.mark.parametrize(
    ("strategy", "wire", "fragments"),
    [("adpsgd", AUTO, AUTO), ("hadpsgd,node_size=2", AUTO, AUTO), ("easgd", "fp32", 1), ("ssgd", "fp32", 1)],
)
def test_only_what_no_learner_waits_for_is_chosen_by_the_link(strategy: str, wire: str, fragments: int | str) -> None:
    """A mean of gradients on several hosts has the bits of one host, unless a codec is asked for."""
    paced = make_strategy(*parse_strategy(strategy)).traits.paced_by_links
    assert RowFormat.of(HostOptions(), paced) == RowFormat(wire, fragments)  # type: ignore[arg-type]
    assert RowFormat.of(HostOptions(wire="int8", fragments=3), paced) == RowFormat("int8", 3)
    assert HostOptions().codec.exact


@pytest.mark.parametrize(
    ("bytes_a_second", "said"), [(1e9, r"bf16, whole, 0\.01\d* s"), (2e6, r"int8, in \d+ parts, 0\.0\d+ s an exchange")]
)
def test_the_form_is_said_and_what_it_becomes_is_known_before(bytes_a_second: float, said: str) -> None:
    form, row_format = LinkForm(RowFormat(AUTO, AUTO), PARAMETERS), RowFormat(AUTO, AUTO)
    assert form.said() == "bf16, whole"
    travel(form, bytes_a_second, 60)
    assert re.match(said, form.said())
    assert settled(row_format, PARAMETERS, lambda size: EXTRA + size / bytes_a_second).said() == form.said()


def test_a_run_says_at_the_start_what_its_links_choose() -> None:
    assert "bf16, in int8 where a link is slow, in as many parts" in RowFormat(AUTO, AUTO).said()
    assert "in fp32, in as many parts as" in RowFormat("fp32", AUTO).said()
    assert "in int8 where a link is slow, in 3 parts" in RowFormat(AUTO, 3).said()
    assert RowFormat("int8", 3).said() == ""
