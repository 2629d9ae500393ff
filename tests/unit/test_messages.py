"""Messages are checked field by field when they are read, and what is wrong is said with its place."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

import roundelay.runtime.hosts.control.messages
import roundelay.runtime.hosts.exchange.messages  # noqa: F401
from roundelay.algorithms.codecs import FORMS
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.core.codec import FP32, Codec
from roundelay.runtime.hosts.mean_transports.messages import Weighed
from roundelay.runtime.hosts.options import SessionHostOptions
from roundelay.runtime.hosts.transport.wire import BadFrame
from roundelay.runtime.messages import Bit, Dialect, Frame, InvalidMessage, Message, Number, Range, Rank, plain, read
from support.links import pair
from support.messages import WORDS, received


@dataclass(frozen=True)
class Inner:
    a: int
    b: str = ""


class Many(Message):
    """One field of each kind."""

    whole: int
    real: float = 0.0
    number: Number = 0.0
    rank: Rank = 0
    bit: Bit = 0
    both: Annotated[int, Range(-2, 2)] = 0
    yes: bool = False
    text: str = ""
    data: bytes = b""
    word: Literal["", "go"] = ""
    pair: tuple[int, str] = (0, "")
    several: tuple[tuple[int, ...], ...] = ()
    maybe: int | None = 3
    inner: Inner | None = None
    named: dict[str, int] | None = None
    codec: Codec = FP32
    anything: Any = None
    parts: int | Literal["auto"] = 1


FULL = Many(
    *(1, 0.5, -1e300, 2, 1, -2, True, "a\nb", b"\0x", "go", (4, "c"), ((), (1, 2)), None, Inner(3, "d"), {"e": 5}),
    *(Sparse(density=0.1, two_bits=False), {"f": [None]}, "auto"),
)


@pytest.mark.parametrize("message", [FULL, Many(7)])
def test_a_message_arrives_as_it_was_said(message: Many) -> None:
    found = received(message, b"payload")
    assert found == message
    assert bytes(found.payload) == b"payload"
    assert Many(7).header == {"whole": 7}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"whole": None}, "whole: None is no whole number from 0 to"),
        ({"whole": True}, "whole: True is no whole number"),
        ({"whole": 1.0}, "whole: 1.0 is no whole number"),
        ({"whole": -1}, "whole: -1 is no"),
        ({"whole": 1 << 53}, "whole: 9007199254740992 is no"),
        ({"real": -0.5}, "real: -0.5 is no number from 0"),
        ({"real": float("nan")}, "real: nan is no number"),
        ({"real": float("inf")}, "real: inf is no number"),
        ({"real": False}, "real: False is no number"),
        ({"number": float("nan")}, "number: nan is no number"),
        ({"rank": 101}, "rank: 101 is no whole number from 0 to 100"),
        ({"bit": 2}, "bit: 2 is no"),
        ({"both": -3}, "both: -3 is no whole number from -2 to 2"),
        ({"yes": 1}, "yes: 1 is neither true nor false"),
        ({"text": 1}, "text: 1 is no text"),
        ({"data": "0g"}, "data: '0g' is no hexadecimal digits"),
        ({"word": "stop"}, "word: 'stop' is no word of ours"),
        ({"word": ["go"]}, "word: ['go'] is no word of ours"),
        ({"pair": [1]}, "pair: [1] is no list of 2"),
        ({"pair": [1, 2]}, "pair: 2 is no text"),
        ({"several": [[1], 2]}, "several: 2 is no list"),
        ({"several": {}}, "several: {} is no list"),
        ({"maybe": "x"}, "maybe: 'x' is no whole number"),
        ({"inner": {}}, "inner: a is missing"),
        ({"inner": {"a": "x"}}, "inner: a: 'x' is no whole number"),
        ({"inner": {"a": 1, "c": 2}}, "inner: ['c'] are not fields of Inner"),
        ({"named": [1]}, "named: [1] is no object"),
        ({"named": {"e": None}}, "named: None is no whole number"),
        ({"codec": "fp64"}, "codec: 'fp64' is no codec of ours"),
        ({"codec": "sparse 0.1"}, "codec: 'sparse 0.1' is no codec of ours"),
        ({"codec": "sparse 7.0 1.0"}, "codec: 'sparse 7.0 1.0' is no codec of ours"),
        ({"codec": "bf16 1.0"}, "codec: 'bf16 1.0' is no codec of ours"),
        ({"codec": 1}, "codec: 1 is no text"),
        ({"parts": "all"}, "parts: 'all' is no whole number"),
        ({"parts": None}, "parts: None is no whole number"),
    ],
)
def test_what_is_wrong_is_said_with_message_and_field(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidMessage) as found:
        received(FULL, **changed)
    assert str(found.value).startswith(f"many: {said}")


def test_a_field_that_is_missing_and_a_kind_that_is_unknown_are_named() -> None:
    with pytest.raises(InvalidMessage, match=r"^many: whole is missing$"):
        Dialect(Many).read(Frame("many", {}))
    with pytest.raises(InvalidMessage, match=r"^.sing. is not a kind of message that is understood here$"):
        Dialect(Many).read(Frame("sing", {}))


@pytest.mark.parametrize("codec", [*FORMS.values(), Sparse(density=0.1), Sparse(density=1 / 3, two_bits=False)])
def test_codecs_travel_with_their_options(codec: Codec) -> None:
    assert received(Many(0, codec=codec)).codec == codec


def test_texts_are_made_fit_for_a_terminal() -> None:
    assert received(Many(0, text="\x1b[2J" + "x" * 100_000)).text == "?[2J" + "x" * ((1 << 14) - 4)


def all_messages(of: type[Message] = Message) -> list[type[Message]]:
    return [one for kind in of.__subclasses__() for one in (kind, *all_messages(kind))]


@pytest.mark.parametrize("kind", all_messages())
def test_every_message_can_be_read(kind: type[Message]) -> None:
    """All its annotations are of a kind that can be checked."""
    with pytest.raises(InvalidMessage, match="is no object"):
        read(kind, None, rank=1, row=1, elements=1)


def test_a_link_names_the_other_end_is_closed_and_counts_it() -> None:
    with pair() as (near, far, listener):
        near.say(Weighed(1, (0.5,)))
        with pytest.raises(BadFrame) as found:
            far.hear(WORDS, 60.0)
        assert isinstance(found.value, InvalidMessage)
        assert str(found.value).startswith(f"{far.peer} says what is no message of ours: 'weighed'")
        assert far.closed
        assert listener.rejected.malformed == 1


def test_options_travel_with_their_bounds() -> None:
    told = plain(SessionHostOptions(fragments=3))
    assert read(SessionHostOptions, told) == SessionHostOptions(fragments=3)
    with pytest.raises(InvalidMessage, match="fragments: 0 is no whole number of 1 or more"):
        read(SessionHostOptions, {**told, "fragments": 0})
