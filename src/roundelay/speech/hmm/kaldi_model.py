"""Kaldi's `final.mdl` (its transition model) and `tree`, in binary or text: read and written.

A file begins with two bytes, a zero and `B`, when it is binary. Then, in both forms, a sequence of tokens and numbers:

    tree       ContextDependency N P ToPdf MAP EndContextDependency
    MAP        CE pdf | TE key size ( MAP ... ) | SE key [values] { MAP MAP } | NULL
    final.mdl  <TransitionModel> <Topology> ... </Topology>
               <Triples> n (phone, state, pdf) x n </Triples>, or <Tuples> with the pdf of the loop beside the pdf
               <LogProbs> vector </LogProbs> </TransitionModel>, and then the acoustic model, which is not read

A key is a place in the window of N phones, P that of the phone in question, or -1, the class of the state. Numbers in
binary carry their size in bytes in front (negative: unsigned), vectors of whole numbers the size of one and how many.
What a transition-id means follows from the tables: state by state, in the order of the triples, one id for every
transition that the topology lets out of it.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write

PDF_CLASS = -1
DEEPEST = 300  # maps inside each other; a tree grown from data has some 30
_BINARY = b"\0B"
_LONGEST_TOKEN = 64


@dataclass(frozen=True)
class Answer:
    """A leaf: this pdf."""

    pdf: int


@dataclass(frozen=True)
class Table:
    """The value of `key` is an index into `entries`; None where no event leads."""

    key: int
    entries: "tuple[EventMap | None, ...]"


@dataclass(frozen=True)
class Question:
    """Is the value of `key` in `values`?"""

    key: int
    values: frozenset[int]
    yes: "EventMap"
    no: "EventMap"


EventMap = Answer | Table | Question


@dataclass(frozen=True)
class ContextDependency:
    """A tree: windows of `width` phones, the one in question at place `centre`; 0 stands for no phone."""

    width: int
    centre: int
    to_pdf: EventMap


@dataclass(frozen=True)
class HmmState:
    """A state of a phone's model; `pdf_class` -1 in the last one, which emits nothing and has no way out.

    Attributes:
        transitions: (state, probability) in the file's order, on which transition-ids depend.
    """

    pdf_class: int
    loop_class: int
    transitions: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class TransitionModel:
    """Topologies, and the table of transition-states.

    Attributes:
        topology: states of each phone.
        tuples: (phone, state, pdf, pdf of the loop), sorted.
        log_probs: by transition-id; that of 0 means nothing.
    """

    topology: Mapping[int, tuple[HmmState, ...]]
    tuples: tuple[tuple[int, int, int, int], ...]
    log_probs: npt.NDArray[np.float32]

    @cached_property
    def transition_states(self) -> npt.NDArray[np.int64]:
        """(ids + 1,): place in `tuples` of each transition-id; -1 for id 0, which is none."""
        sizes = [len(self.topology[phone][state].transitions) for phone, state, _, _ in self.tuples]
        return np.concatenate([[-1], np.repeat(np.arange(len(sizes)), sizes)]).astype(np.int64)

    @cached_property
    def first_ids(self) -> npt.NDArray[np.int64]:
        """The first transition-id of each of `tuples`."""
        sizes = [len(self.topology[phone][state].transitions) for phone, state, _, _ in self.tuples]
        return np.cumsum([1, *sizes])[:-1].astype(np.int64)


# Reading --------------------------------------------------------------------------------------------------------------


class _Input(Protocol):
    """The next thing in a file, text or binary; raises UserError with the place where it is something else."""

    def token(self) -> str: ...
    def integer(self) -> int: ...
    def real(self) -> float: ...
    def integers(self) -> list[int]: ...
    def reals(self) -> list[float]: ...
    def fault(self, what: str) -> UserError: ...  # with what comes next
    def wrong(self, what: str) -> UserError: ...  # with what was just read
    def left(self) -> int: ...


class _Text:
    """Words between blanks, numbered by line."""

    def __init__(self, path: Path, data: bytes) -> None:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: neither Kaldi's binary form nor text (byte {error.start}).") from None
        self._path = path
        self._words = [(word, number) for number, line in enumerate(text.split("\n"), 1) for word in line.split()]
        self._at = 0

    def left(self) -> int:
        return len(self._words) - self._at

    def fault(self, what: str) -> UserError:
        if self._at >= len(self._words):
            return UserError(f"{self._path}: cut short: {what} where the file ends. Get the file again.")
        word, line = self._words[self._at]
        return UserError(f"{self._path}:{line}: {what}, found {word[:_LONGEST_TOKEN]!r}.")

    def wrong(self, what: str) -> UserError:
        line = self._words[max(0, self._at - 1)][1] if self._words else 1
        return UserError(f"{self._path}:{line}: {what}.")

    def token(self) -> str:
        if self._at >= len(self._words):
            raise self.fault("expected a token")
        self._at += 1
        return self._words[self._at - 1][0]

    def _number(self, kind: Callable[[str], float], name: str) -> float:
        if self._at >= len(self._words):
            raise self.fault(f"expected {name}")
        try:
            value = kind(self._words[self._at][0])
        except ValueError:
            raise self.fault(f"expected {name}") from None
        self._at += 1
        return value

    def integer(self) -> int:
        value = int(self._number(int, "a whole number"))
        if abs(value) >= 2**31:
            self._at -= 1
            raise self.fault("expected a whole number of 32 bits")
        return value

    def real(self) -> float:
        return self._number(float, "a number")

    def _vector(self, one: Callable[[], float]) -> list[float]:
        if self.token() != "[":
            self._at -= 1
            raise self.fault("expected [")
        found = []
        while self._at < len(self._words) and self._words[self._at][0] != "]":
            found.append(one())
        if self.token() != "]":
            raise self.fault("expected ]")
        return found

    def integers(self) -> list[int]:
        return [int(value) for value in self._vector(self.integer)]

    def reals(self) -> list[float]:
        return self._vector(self.real)


class _Binary:
    """Tokens that end with a blank, numbers with their sizes."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data, self._at = path, data, len(_BINARY)

    def left(self) -> int:
        return len(self._data) - self._at

    def fault(self, what: str) -> UserError:
        if self._at >= len(self._data):
            return UserError(f"{self._path}: cut short: {what} where the file ends. Get the file again.")
        return UserError(f"{self._path}: byte {self._at}: {what}, found {self._data[self._at : self._at + 12]!r}.")

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self._path}: before byte {self._at}: {what}.")

    def token(self) -> str:
        end = self._data.find(b" ", self._at, self._at + _LONGEST_TOKEN)
        word = self._data[self._at : max(end, self._at)]
        if not word or not word.isascii():
            raise self.fault("expected a token")
        self._at = end + 1
        return word.decode()

    def _take(self, size: int, what: str) -> bytes:
        if size > self.left():
            self._at = len(self._data)
            raise self.fault(f"expected {what}")
        self._at += size
        return self._data[self._at - size : self._at]

    def _sized(self, kinds: Mapping[int, str], what: str) -> float:
        size = self._data[self._at : self._at + 1]
        code = kinds.get(struct.unpack("b", size)[0]) if size else None
        if code is None:
            raise self.fault(f"expected {what}")
        self._at += 1
        return float(struct.unpack(f"<{code}", self._take(struct.calcsize(code), what))[0])

    def integer(self) -> int:
        return int(self._sized({4: "i", -4: "I"}, "a whole number of 4 bytes"))

    def real(self) -> float:
        return self._sized({4: "f", 8: "d"}, "a number of 4 or 8 bytes")

    def integers(self) -> list[int]:
        if self._data[self._at : self._at + 1] != b"\4":
            raise self.fault("expected a vector of whole numbers of 4 bytes")
        self._at += 1
        (size,) = struct.unpack("<i", self._take(4, "the size of a vector"))
        if size < 0 or 4 * size > self.left():
            self._at -= 4
            raise self.fault(f"a vector of {size} numbers, more than the file has left")
        return [int(value) for value in np.frombuffer(self._take(4 * size, "a vector"), "<i4")]

    def reals(self) -> list[float]:
        kind = self.token()
        if kind not in ("FV", "DV"):
            self._at -= len(kind) + 1
            raise self.fault("expected a vector (FV or DV)")
        size, width = self.integer(), 4 if kind == "FV" else 8
        if size < 0 or width * size > self.left():
            raise self.fault(f"expected a vector of {size} numbers, more than the file has left")
        return [float(value) for value in np.frombuffer(self._take(width * size, "a vector"), f"<f{width}")]


def _open(path: Path) -> _Input:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    if not data:
        raise UserError(f"{path}: the file is empty.")
    return _Binary(path, data) if data[:2] == _BINARY else _Text(path, data)


def _expect(source: _Input, *wanted: str) -> str:
    found = source.token()
    if found not in wanted:
        raise source.wrong(f"expected {' or '.join(wanted)}, found {found[:_LONGEST_TOKEN]!r}")
    return found


def _count(source: _Input, what: str) -> int:
    """A number of things to come, each of which takes at least a byte."""
    value = source.integer()
    if not 0 <= value <= source.left():
        raise source.wrong(f"{value} {what}, which cannot be")
    return value


def read_tree(path: Path) -> ContextDependency:
    """Read a `tree` file.

    Raises:
        UserError: not one, or cut short; names the byte or line.
    """
    source = _open(path)
    _expect(source, "ContextDependency")
    width, centre = source.integer(), source.integer()
    if not 0 <= centre < width:
        raise source.wrong(f"a window of {width} phones with the one in question at place {centre}")
    if _expect(source, "ToPdf", "ToLength") == "ToLength":  # of old versions, and said again by the topology
        _event_map(source, 0)
        _expect(source, "ToPdf")
    found = _event_map(source, 0)
    if found is None:
        raise source.wrong("expected a tree, not NULL")
    _expect(source, "EndContextDependency")
    return ContextDependency(width, centre, found)


def _event_map(source: _Input, depth: int) -> EventMap | None:
    if depth > DEEPEST:
        raise source.fault(f"maps inside each other, more than {DEEPEST} deep")
    kind = _expect(source, "CE", "TE", "SE", "NULL")
    if kind == "NULL":
        return None
    if kind == "CE":
        pdf = source.integer()
        if pdf < 0:
            raise source.wrong(f"pdf {pdf}, below 0")
        return Answer(pdf)
    key = source.integer()
    if kind == "TE":
        size = _count(source, "entries of a table")
        _expect(source, "(")
        entries = tuple(_event_map(source, depth + 1) for _ in range(size))
        _expect(source, ")")
        return Table(key, entries)
    values = frozenset(source.integers())
    _expect(source, "{")
    yes, no = _event_map(source, depth + 1), _event_map(source, depth + 1)
    _expect(source, "}")
    if yes is None or no is None:
        raise source.wrong("NULL for the answer to a question")
    return Question(key, values, yes, no)


def read_transition_model(path: Path) -> TransitionModel:
    """Read the transition model at the beginning of a `final.mdl`.

    Raises:
        UserError: not one, cut short, or its parts contradict each other; names the byte or line.
    """
    source = _open(path)
    _expect(source, "<TransitionModel>")
    _expect(source, "<Topology>")
    topology = _binary_topology(source) if isinstance(source, _Binary) else _text_topology(source)
    kind = _expect(source, "<Triples>", "<Tuples>")
    tuples = []
    for _ in range(_count(source, "transition-states")):
        phone, state, pdf = source.integer(), source.integer(), source.integer()
        loop = source.integer() if kind == "<Tuples>" else pdf
        if phone not in topology or not 0 <= state < len(topology[phone]) - 1 or pdf < 0 or loop < 0:
            raise source.wrong(f"state {state} of phone {phone} with pdf {pdf} does not fit the topology")
        tuples.append((phone, state, pdf, loop))
    _expect(source, kind.replace("<", "</"))
    _expect(source, "<LogProbs>")
    log_probs = np.array(source.reals(), np.float32)
    _expect(source, "</LogProbs>")
    _expect(source, "</TransitionModel>")
    model = TransitionModel(topology, tuple(tuples), log_probs)
    if len(log_probs) != len(model.transition_states):
        raise UserError(
            f"{path}: {len(model.transition_states) - 1} transition-ids, but log probabilities for "
            f"{len(log_probs) - 1}. The file is damaged; get it again."
        )
    return model


def _text_topology(source: _Input) -> dict[int, tuple[HmmState, ...]]:
    found: dict[int, tuple[HmmState, ...]] = {}
    while _expect(source, "<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        _expect(source, "<ForPhones>")
        phones: list[int] = []
        while (word := source.token()) != "</ForPhones>":
            if not word.isdecimal() or int(word) in found or word == "0":
                raise source.wrong(f"phone {word[:_LONGEST_TOKEN]!r} is no number, 0 or there twice")
            phones.append(int(word))
        states: list[HmmState] = []
        while _expect(source, "<State>", "</TopologyEntry>") == "<State>":
            states.append(_text_state(source, len(states)))
        _check_entry(source, states)
        found |= dict.fromkeys(phones, tuple(states))
    return found


def _text_state(source: _Input, number: int) -> HmmState:
    if (given := source.integer()) != number:
        raise source.wrong(f"state {given} where state {number} is due")
    forward = loop = -1
    transitions: list[tuple[int, float]] = []
    while (word := source.token()) != "</State>":
        if word == "<PdfClass>":
            forward = loop = source.integer()
        elif word == "<ForwardPdfClass>":
            forward = source.integer()
        elif word == "<SelfLoopPdfClass>":
            loop = source.integer()
        elif word == "<Transition>":
            transitions.append((source.integer(), source.real()))
        else:
            raise source.wrong(f"unknown {word[:_LONGEST_TOKEN]!r} in a state of the topology")
    return HmmState(forward, loop, tuple(transitions))


def _binary_topology(source: _Input) -> dict[int, tuple[HmmState, ...]]:
    phones, entry_of = source.integers(), source.integers()
    entries = source.integer()
    two_classes = entries == -1  # says that the pdf of a loop may be another
    if two_classes:
        entries = source.integer()
    if not 0 <= entries <= source.left():
        raise source.wrong(f"{entries} entries of the topology, which cannot be")
    found = []
    for _ in range(entries):
        states = []
        for _ in range(_count(source, "states")):
            forward = source.integer()
            loop = source.integer() if two_classes else forward
            count = _count(source, "transitions")
            states.append(HmmState(forward, loop, tuple((source.integer(), source.real()) for _ in range(count))))
        _check_entry(source, states)
        found.append(tuple(states))
    _expect(source, "</Topology>")
    if odd := [p for p in phones if not 0 < p < len(entry_of) or not 0 <= entry_of[p] < entries]:
        raise source.wrong(f"phone {odd[0]} has no topology")
    return {phone: found[entry_of[phone]] for phone in phones}


def _check_entry(source: _Input, states: Sequence[HmmState]) -> None:
    """States must lead somewhere that exists, and the last one nowhere."""
    sound = (
        len(states) > 1
        and not states[-1].transitions
        and states[-1].pdf_class < 0
        and all(s.transitions for s in states[:-1])
        and all(0 <= to < len(states) and math.isfinite(p) for s in states for to, p in s.transitions)
    )
    if not sound:
        raise source.wrong("a topology whose states do not lead from the first to the last")


# Writing --------------------------------------------------------------------------------------------------------------


class _Output(Protocol):
    data: bytearray

    def token(self, word: str) -> None: ...
    def integer(self, value: int) -> None: ...
    def size(self, value: int) -> None: ...
    def real(self, value: float) -> None: ...
    def integers(self, values: Sequence[int]) -> None: ...
    def reals(self, values: Sequence[float]) -> None: ...
    def line(self) -> None: ...


class _TextOutput:
    def __init__(self) -> None:
        self.data = bytearray()

    def token(self, word: str) -> None:
        self.data += f"{word} ".encode()

    def integer(self, value: int) -> None:
        self.data += b"%d " % value

    size = integer

    def real(self, value: float) -> None:
        self.data += f"{float(np.float32(value)):.9g} ".encode()

    def integers(self, values: Sequence[int]) -> None:
        self.data += f"[ {''.join(f'{v} ' for v in values)}]\n".encode()

    def reals(self, values: Sequence[float]) -> None:
        self.data += f" [ {''.join(f'{float(np.float32(v)):.9g} ' for v in values)}]\n".encode()

    def line(self) -> None:
        self.data += b"\n"


class _BinaryOutput:
    def __init__(self) -> None:
        self.data = bytearray(_BINARY)

    def token(self, word: str) -> None:
        self.data += f"{word} ".encode()

    def integer(self, value: int) -> None:
        self.data += struct.pack("<bi", 4, value)

    def size(self, value: int) -> None:
        self.data += struct.pack("<bI", -4, value)

    def real(self, value: float) -> None:
        self.data += struct.pack("<bf", 4, value)

    def integers(self, values: Sequence[int]) -> None:
        self.data += struct.pack("<bi", 4, len(values)) + np.array(values, "<i4").tobytes()

    def reals(self, values: Sequence[float]) -> None:
        self.token("FV")
        self.integer(len(values))
        self.data += np.array(values, "<f4").tobytes()

    def line(self) -> None:
        pass


def _save(path: Path, out: _Output) -> None:
    with atomic_write(path) as file:
        file.write(bytes(out.data))


def write_tree(path: Path, tree: ContextDependency, *, binary: bool = True) -> None:
    """Write a `tree` file."""
    out: _Output = _BinaryOutput() if binary else _TextOutput()
    out.token("ContextDependency")
    out.integer(tree.width)
    out.integer(tree.centre)
    out.token("ToPdf")
    _put_map(out, tree.to_pdf)
    out.token("EndContextDependency")
    _save(path, out)


def _put_map(out: _Output, what: EventMap | None) -> None:
    if what is None:
        out.token("NULL")
    elif isinstance(what, Answer):
        out.token("CE")
        out.integer(what.pdf)
    elif isinstance(what, Table):
        out.token("TE")
        out.integer(what.key)
        out.size(len(what.entries))
        out.token("(")
        for entry in what.entries:
            _put_map(out, entry)
        out.token(")")
        out.line()
    else:
        out.token("SE")
        out.integer(what.key)
        out.integers(sorted(what.values))
        out.token("{")
        _put_map(out, what.yes)
        _put_map(out, what.no)
        out.token("}")
        out.line()


def write_transition_model(path: Path, model: TransitionModel, *, binary: bool = True) -> None:
    """Write a transition model as a file of its own: enough for Kaldi's tools that read alignments."""
    out: _Output = _BinaryOutput() if binary else _TextOutput()
    looped = any(s.loop_class != s.pdf_class for states in model.topology.values() for s in states)
    out.token("<TransitionModel>")
    out.line()
    out.token("<Topology>")
    out.line()
    if binary:
        _put_binary_topology(out, model.topology, looped)
    else:
        _put_text_topology(out, model.topology, looped)
    out.token("</Topology>")
    out.line()
    kind = "Tuples" if looped else "Triples"
    out.token(f"<{kind}>")
    out.integer(len(model.tuples))
    out.line()
    for entry in model.tuples:
        for value in entry[: 4 if looped else 3]:
            out.integer(value)
        out.line()
    out.token(f"</{kind}>")
    out.line()
    out.token("<LogProbs>")
    out.line()
    out.reals(model.log_probs.tolist())
    out.token("</LogProbs>")
    out.line()
    out.token("</TransitionModel>")
    out.line()
    _save(path, out)


def _entries(topology: Mapping[int, tuple[HmmState, ...]]) -> list[tuple[HmmState, ...]]:
    return list(dict.fromkeys(topology[phone] for phone in sorted(topology)))


def _put_binary_topology(out: _Output, topology: Mapping[int, tuple[HmmState, ...]], looped: bool) -> None:
    entries, phones = _entries(topology), sorted(topology)
    out.integers(phones)
    out.integers([entries.index(topology[p]) if p in topology else -1 for p in range(phones[-1] + 1)])
    if looped:
        out.integer(-1)
    out.integer(len(entries))
    for states in entries:
        out.integer(len(states))
        for state in states:
            out.integer(state.pdf_class)
            if looped:
                out.integer(state.loop_class)
            out.integer(len(state.transitions))
            for to, probability in state.transitions:
                out.integer(to)
                out.real(probability)


def _put_text_topology(out: _Output, topology: Mapping[int, tuple[HmmState, ...]], looped: bool) -> None:
    for states in _entries(topology):
        for word in ("<TopologyEntry>", "<ForPhones>"):
            out.token(word)
            out.line()
        for phone in sorted(topology):
            if topology[phone] == states:
                out.integer(phone)
        out.line()
        out.token("</ForPhones>")
        out.line()
        for number, state in enumerate(states):
            out.token("<State>")
            out.integer(number)
            if state.pdf_class >= 0:
                out.token("<ForwardPdfClass>" if looped else "<PdfClass>")
                out.integer(state.pdf_class)
                if looped:
                    out.token("<SelfLoopPdfClass>")
                    out.integer(state.loop_class)
            for to, probability in state.transitions:
                out.token("<Transition>")
                out.integer(to)
                out.real(probability)
            out.token("</State>")
            out.line()
        out.token("</TopologyEntry>")
        out.line()
