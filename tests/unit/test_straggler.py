"""Stragglers: slow, by a number."""

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.base import Straggler, parse_straggler


def test_both_ways_to_be_slow_are_read() -> None:
    assert parse_straggler("1:3x") == Straggler(1, factor=3.0)
    assert parse_straggler("0:+0.4") == Straggler(0, seconds=0.4)


@pytest.mark.parametrize("text", ["1:-3x", "1:0.5x", "1:nanx", "1:infx", "1:+-2", "1:+inf", "1", "x:3x"])
def test_what_is_not_slow_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="straggler"):
        parse_straggler(text)
