"""Messages from one process to another, over a link or in shared memory, each kind a type.

A message is a subclass of `Message`, and its fields are its JSON object. An annotation says which values a field may
have, and a message is checked here before anything is done with it: half of a message must not be counted when its host
is lost. Fields are whole numbers, numbers, truths, texts, bytes, codecs with their options, one of some words
(`Literal`, `Enum`), tuples, dictionaries by text, other dataclasses, any of these or None or one of some words (`int |
Literal["auto"]`), and anything (`Any`), for the receiver to check.

Numbers are from 0 on and below BOUND, unless an annotation gives another `Range`; texts are as people may see them.
"""

import math
import re
import reprlib
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from roundelay.algorithms.codecs import codec_of
from roundelay.core.bounds import Bounds
from roundelay.core.codec import Codec

BOUND = 1 << 53
"""Bound on the size of whole numbers in messages, which any reader of JSON has exactly."""
TEXT = 1 << 14
"""Most characters of a text for people that are kept."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class InvalidMessage(ValueError):
    """Raised for a message that no process of Roundelay sends; names the message, the field, and its fault."""


@final
@dataclass(frozen=True)
class Range:
    """Bounds of a number, both included; `most` may be a name for which the reader has a number."""

    low: float = 0
    most: float | str = BOUND - 1


Integer = Annotated[int, Range(1 - BOUND)]
"""Whole number of either sign."""
Number = Annotated[float, Range(-math.inf, math.inf)]
"""Any number but NaN."""
Mass = Annotated[float, Range(1 - BOUND)]
"""Mass of a row, below 0 where it has a mark (algorithms/averaging.py)."""
Rank = Annotated[int, Range(0, "rank")]
"""Rank of a learner."""
RowNumber = Annotated[int, Range(0, "row")]
"""Rank of a learner, or of the centre."""
Bit = Annotated[int, Range(0, 1)]
"""Truth value as a number, 0 or 1."""
Address = tuple[str, Annotated[int, Range(0, (1 << 16) - 1)]]
"""Host and port."""

M = TypeVar("M", bound="Message")
T = TypeVar("T")
Limits = Mapping[str, float]
Read = Callable[[Any, Limits], Any]


@dataclass_transform(frozen_default=True)
class Message:
    """The base of messages. A subclass is made a frozen dataclass; its kind is its name in lower case, or as given."""

    kind: ClassVar[str]
    payload = memoryview(b"")
    """Bytes that came with the fields."""

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind or cls.__name__.lower()
        dataclass(frozen=True)(cls)

    @property
    def header(self) -> dict[str, Any]:
        """Fields that differ from their defaults, by name, as JSON values (`plain`)."""
        return {field.name: value for field, value in _values(self) if value != field.default}


def _values(of: Any) -> list[tuple[Field[Any], Any]]:
    return [(field, getattr(of, field.name)) for field in fields(of)]


def plain(value: Any) -> Any:
    """Return the JSON value for a field of a message: a dataclass, bytes, a word, or a codec (as its name and options).

    Raises:
        TypeError: `value` is of another type.
    """
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Codec):
        return " ".join([value.name, *map(repr, value.numbers)])
    if not is_dataclass(value):
        raise TypeError(f"{value!r} is in no message")
    return {field.name: inner for field, inner in _values(value)}


@final
@dataclass(frozen=True)
class Frame:
    """A message as received, before it is checked and read."""

    kind: str
    header: dict[str, Any]
    payload: memoryview = memoryview(b"")


@final
class Dialect:
    """The messages that one end understands.

    Args:
        most: the largest numbers, by the names in a `Range`.
    """

    def __init__(self, *kinds: type[Message], **most: float) -> None:
        self._kinds, self._most = {kind.kind: kind for kind in kinds}, most

    def read(self, frame: Frame) -> Message:
        """Read a received message.

        Raises:
            InvalidMessage: `frame` is no message of this dialect.
        """
        kind = self._kinds.get(frame.kind)
        if kind is None:
            raise InvalidMessage(f"{frame.kind!r} is not a kind of message that is understood here")
        try:
            message = read(kind, frame.header, **self._most)
        except InvalidMessage as error:
            raise InvalidMessage(f"{frame.kind}: {error}") from None
        object.__setattr__(message, "payload", frame.payload)
        return message


def read(cls: type[T], said: Any, **most: float) -> T:
    """Read a JSON object `said` as the dataclass `cls`.

    Args:
        most: as for `Dialect`.

    Raises:
        InvalidMessage: a field is missing, unknown or of another kind; names it.
    """
    kind: Any = cls
    found: T = _reader(kind)(said, most)
    return found


def invalid(value: Any, what: str) -> InvalidMessage:
    """Return an error which says that `value` is not `what` it must be."""
    return InvalidMessage(f"{reprlib.repr(value)} is {what}")


def cleaned(value: str) -> str:
    """Return a text for a terminal: without control characters, and at most TEXT characters long."""
    return _CONTROLS.sub("?", value[:TEXT])


@cache
def _reader(hint: Any) -> Read:
    """Return a function that checks a JSON value against the annotation `hint`, and converts it."""
    make = _MADE.get(get_origin(hint))
    if make is not None:
        return make(get_args(hint))
    return _SIMPLE.get(hint) or (_one_of(hint) if issubclass(hint, Enum) else _object(hint))


def _fail(value: Any, what: str) -> Any:
    raise invalid(value, what)


def _is(kind: type, what: str, change: Callable[[Any], Any] = lambda value: value) -> Read:
    return lambda value, _: change(value) if type(value) is kind else _fail(value, what)


def _digits(value: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise invalid(value, "no hexadecimal digits") from None


def _codec(value: str) -> Codec:
    name, *numbers = value.split(" ")
    try:
        codec = codec_of(name, [float(number) for number in numbers])
    except (ValueError, OverflowError) as error:
        raise invalid(value, f"no codec of ours: {error}") from None
    return codec if len(codec.numbers) == len(numbers) else _fail(value, "no codec of ours: it has more options")


def _number(kind: type, bounds: Range | Bounds) -> Read:
    """Return a reader of numbers of type `kind` within `bounds`."""
    allowed, what = ((int, float), "number") if kind is float else ((int,), "whole number")

    def number(value: Any, most: Limits) -> Any:
        if isinstance(bounds, Bounds):
            if type(value) not in allowed or not bounds.allow(value):
                raise invalid(value, f"no {bounds.words(kind)}")
            return kind(value)
        high = most[bounds.most] if isinstance(bounds.most, str) else bounds.most
        if type(value) not in allowed or not bounds.low <= value <= high:
            raise invalid(value, f"no {what} from {bounds.low} to {high}")
        return kind(value)

    return number


def _tuple(arguments: tuple[Any, ...]) -> Read:
    """Return a reader of tuples: of any length with values of one type, or of the types in `arguments`."""
    count = None if arguments[-1] is Ellipsis else len(arguments)
    parts = [_reader(argument) for argument in arguments if argument is not Ellipsis]

    def several(value: Any, most: Limits) -> Any:
        if not isinstance(value, list | tuple) or (count is not None and len(value) != count):
            raise invalid(value, "no list" + (f" of {count}" if count is not None else ""))
        return tuple([part(one, most) for part, one in zip(parts if count else len(value) * parts, value, strict=True)])

    return several


def _dictionary(arguments: tuple[Any, ...]) -> Read:
    inner = _reader(arguments[1])

    def dictionary(value: Any, most: Limits) -> Any:
        if not isinstance(value, dict):
            raise invalid(value, "no object")
        return {key: inner(one, most) for key, one in value.items()}

    return dictionary


def _or_instead(arguments: tuple[Any, ...]) -> Read:
    inner, instead = _reader(arguments[0]), set[object]()
    for argument in arguments[1:]:
        instead.update(get_args(argument) if get_origin(argument) is Literal else (None,))
    return lambda value, most: value if isinstance(value, str | None) and value in instead else inner(value, most)


def _one_of(kind: type[Enum]) -> Read:
    word = _word(tuple(one.value for one in kind))
    return lambda value, most: kind(word(value, most))


def _word(words: tuple[Any, ...]) -> Read:
    return lambda value, _: value if type(value) is str and value in words else _fail(value, "no word of ours")


def _object(cls: type) -> Read:
    hints = get_type_hints(cls, include_extras=True)
    parts = [(field, _reader(hints[field.name])) for field in fields(cls)]

    def object_(value: Any, most: Limits) -> Any:
        if not isinstance(value, dict):
            raise invalid(value, "no object")
        if not issubclass(cls, Message) and (more := value.keys() - hints.keys()):
            raise InvalidMessage(f"{reprlib.repr(sorted(more))} are not fields of {cls.__name__}")
        given = dict[str, Any]()
        for field, part in parts:
            if field.name in value:
                try:
                    given[field.name] = part(value[field.name], most)
                except InvalidMessage as error:
                    raise InvalidMessage(f"{field.name}: {error}") from None
            elif field.default is MISSING:
                raise InvalidMessage(f"{field.name} is missing")
        return cls(**given)

    return object_


_SIMPLE: dict[Any, Read] = {
    Any: lambda value, _: value,
    int: _number(int, Range()),
    float: _number(float, Range()),
    bool: _is(bool, "neither true nor false"),
    str: _is(str, "no text", cleaned),
    bytes: _is(str, "no text", _digits),
    Codec: _is(str, "no text", _codec),
}
_MADE: dict[Any, Callable[[tuple[Any, ...]], Read]] = {
    Annotated: lambda arguments: _number(*arguments),
    Literal: _word,
    dict: _dictionary,
    tuple: _tuple,
    Union: _or_instead,
    types.UnionType: _or_instead,
}


def table(value: Any, like: NDArray[Any]) -> NDArray[Any]:
    """Read an array of the shape and type of `like` from nested lists; whole numbers are below BOUND.

    Raises:
        InvalidMessage: `value` is no such array.
    """
    try:
        found = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise invalid(value, f"no numbers of shape {like.shape}") from error
    if found.shape != like.shape:
        raise InvalidMessage(f"numbers of shape {found.shape}, where {like.shape} is due")
    if found.size and found.dtype.kind not in ("if" if like.dtype.kind == "f" else "i"):
        raise invalid(value, f"no numbers of type {like.dtype}")
    if like.dtype.kind == "i" and found.size and not (found.min() > -BOUND and found.max() < BOUND):
        raise InvalidMessage(f"not all numbers are below {BOUND}")
    return found.astype(like.dtype)
