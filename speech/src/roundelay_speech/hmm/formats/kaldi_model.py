"""Kaldi's `final.mdl` (its transition model) and `tree`, in binary, read and written.

Both are sequences of tokens and numbers (kaldi_io/tokens.py):

    tree       ContextDependency N P ToPdf MAP EndContextDependency
    MAP        CE pdf | TE key size ( MAP ... ) | SE key [values] { MAP MAP } | NULL
    final.mdl  <TransitionModel> <Topology> ... </Topology>
               <Triples> n (phone, state, pdf) x n </Triples>, or <Tuples> with the pdf of the loop beside the pdf
               <LogProbs> vector </LogProbs> </TransitionModel>, and then the acoustic model, which is not read

A key is a place in the window of N phones, P that of the phone in question, or -1, the class of the state.
The meaning of a transition-id follows from the tables: state by state, in the order of the triples, one id for every
transition that the topology lets out of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.kaldi_io.tokens import BinaryInput, BinaryOutput, expect, open_input, read_count, save

PDF_CLASS = -1
DEEPEST = 300  # maps inside each other; a tree grown from data has some 30


@dataclass(frozen=True)
class Answer:
    """A leaf of a tree: its pdf."""

    pdf: int


@dataclass(frozen=True)
class TableMap:
    """A node of a tree by a table: the value of `key` is an index into `entries`; None where no event leads."""

    key: int
    entries: "tuple[EventMap | None, ...]"


@dataclass(frozen=True)
class Question:
    """A node of a tree by a question: is the value of `key` in `values`?"""

    key: int
    values: frozenset[int]
    yes: "EventMap"
    no: "EventMap"


EventMap = Answer | TableMap | Question


@dataclass(frozen=True)
class ContextDependency:
    """A tree over phones in context: windows of `width` phones, the one in question at place `centre`; 0 stands for no
    phone."""

    width: int
    centre: int
    to_pdf: EventMap


@dataclass(frozen=True)
class HmmState:
    """A state of a phone's model; `pdf_class` -1 in the last one, which emits nothing and has no way out."""

    pdf_class: int
    loop_class: int
    # (state, probability) in the file's order, on which transition-ids depend.
    transitions: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class TransitionModel:
    """A transition model: topologies, and the table of transition-states."""

    topology: Mapping[int, tuple[HmmState, ...]]  # states of each phone
    tuples: tuple[tuple[int, int, int, int], ...]  # (phone, state, pdf, pdf of the loop), sorted
    log_probs: npt.NDArray[np.float32]  # by transition-id; that of 0 means nothing

    @cached_property
    def transition_states(self) -> npt.NDArray[np.int64]:
        """Place in `tuples` of each transition-id, (ids + 1,); -1 for 0, which is no id."""
        sizes = [len(self.topology[phone][state].transitions) for phone, state, _, _ in self.tuples]
        return np.concatenate([[-1], np.repeat(np.arange(len(sizes)), sizes)]).astype(np.int64)

    @cached_property
    def first_ids(self) -> npt.NDArray[np.int64]:
        """The first transition-id of each of `tuples`."""
        sizes = [len(self.topology[phone][state].transitions) for phone, state, _, _ in self.tuples]
        return np.cumsum([1, *sizes])[:-1].astype(np.int64)


def read_tree(path: Path) -> ContextDependency:
    """Read a `tree` file.

    Raises:
        UserError: the file is no tree, or is cut short; names the byte.
    """
    source = open_input(path)
    expect(source, "ContextDependency")
    width, centre = source.integer(), source.integer()
    if not 0 <= centre < width:
        raise source.wrong(f"a window of {width} phones with the one in question at place {centre}")
    if expect(source, "ToPdf", "ToLength") == "ToLength":  # of old versions, and said again by the topology
        _event_map(source, 0)
        expect(source, "ToPdf")
    found = _event_map(source, 0)
    if found is None:
        raise source.wrong("expected a tree, not NULL")
    expect(source, "EndContextDependency")
    return ContextDependency(width, centre, found)


def _event_map(source: BinaryInput, depth: int) -> EventMap | None:
    if depth > DEEPEST:
        raise source.fault(f"maps inside each other, more than {DEEPEST} deep")
    kind = expect(source, "CE", "TE", "SE", "NULL")
    if kind == "NULL":
        return None
    if kind == "CE":
        pdf = source.integer()
        if pdf < 0:
            raise source.wrong(f"pdf {pdf}, below 0")
        return Answer(pdf)
    key = source.integer()
    if kind == "TE":
        size = read_count(source, "entries of a table")
        expect(source, "(")
        entries = tuple(_event_map(source, depth + 1) for _ in range(size))
        expect(source, ")")
        return TableMap(key, entries)
    values = frozenset(source.integers())
    expect(source, "{")
    yes, no = _event_map(source, depth + 1), _event_map(source, depth + 1)
    expect(source, "}")
    if yes is None or no is None:
        raise source.wrong("NULL for the answer to a question")
    return Question(key, values, yes, no)


def read_transition_model(path: Path) -> TransitionModel:
    """Read the transition model at the beginning of a `final.mdl`.

    Raises:
        UserError: the file is no model, is cut short, or contradicts itself; names the byte.
    """
    source = open_input(path)
    expect(source, "<TransitionModel>")
    expect(source, "<Topology>")
    topology = _topology(source)
    kind = expect(source, "<Triples>", "<Tuples>")
    tuples = []
    for _ in range(read_count(source, "transition-states")):
        phone, state, pdf = source.integer(), source.integer(), source.integer()
        loop = source.integer() if kind == "<Tuples>" else pdf
        if phone not in topology or not 0 <= state < len(topology[phone]) - 1 or pdf < 0 or loop < 0:
            raise source.wrong(f"state {state} of phone {phone} with pdf {pdf} does not fit the topology")
        tuples.append((phone, state, pdf, loop))
    expect(source, kind.replace("<", "</"))
    expect(source, "<LogProbs>")
    log_probs = np.array(source.reals(), np.float32)
    expect(source, "</LogProbs>")
    expect(source, "</TransitionModel>")
    model = TransitionModel(topology, tuple(tuples), log_probs)
    if len(log_probs) != len(model.transition_states):
        raise UserError(
            f"{path}: {len(model.transition_states) - 1} transition-ids, but log probabilities for "
            f"{len(log_probs) - 1}. The file is damaged; get it again."
        )
    return model


def _topology(source: BinaryInput) -> dict[int, tuple[HmmState, ...]]:
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
        for _ in range(read_count(source, "states")):
            forward = source.integer()
            loop = source.integer() if two_classes else forward
            count = read_count(source, "transitions")
            states.append(HmmState(forward, loop, tuple((source.integer(), source.real()) for _ in range(count))))
        _check_entry(source, states)
        found.append(tuple(states))
    expect(source, "</Topology>")
    if odd := [p for p in phones if not 0 < p < len(entry_of) or not 0 <= entry_of[p] < entries]:
        raise source.wrong(f"phone {odd[0]} has no topology")
    return {phone: found[entry_of[phone]] for phone in phones}


def _check_entry(source: BinaryInput, states: Sequence[HmmState]) -> None:
    """Check the states of a topology: all but the last have transitions, to existing states; the last has none."""
    sound = (
        len(states) > 1
        and not states[-1].transitions
        and states[-1].pdf_class < 0
        and all(s.transitions for s in states[:-1])
        and all(0 <= to < len(states) and math.isfinite(p) for s in states for to, p in s.transitions)
    )
    if not sound:
        raise source.wrong("a topology whose states do not lead from the first to the last")


def write_tree(path: Path, tree: ContextDependency) -> None:
    """Write a `tree` file."""
    out = BinaryOutput()
    out.token("ContextDependency")
    out.integer(tree.width)
    out.integer(tree.centre)
    out.token("ToPdf")
    _put_map(out, tree.to_pdf)
    out.token("EndContextDependency")
    save(path, out)


def _put_map(out: BinaryOutput, what: EventMap | None) -> None:
    if what is None:
        out.token("NULL")
    elif isinstance(what, Answer):
        out.token("CE")
        out.integer(what.pdf)
    elif isinstance(what, TableMap):
        out.token("TE")
        out.integer(what.key)
        out.size(len(what.entries))
        out.token("(")
        for entry in what.entries:
            _put_map(out, entry)
        out.token(")")
    else:
        out.token("SE")
        out.integer(what.key)
        out.integers(sorted(what.values))
        out.token("{")
        _put_map(out, what.yes)
        _put_map(out, what.no)
        out.token("}")


def write_transition_model(path: Path, model: TransitionModel) -> None:
    """Write a transition model as a file of its own: enough for Kaldi's tools that read alignments."""
    out = BinaryOutput()
    put_transition_model(out, model)
    save(path, out)


def put_transition_model(out: BinaryOutput, model: TransitionModel) -> None:
    """Write a transition model to `out`, where an acoustic model may follow."""
    looped = any(s.loop_class != s.pdf_class for states in model.topology.values() for s in states)
    out.token("<TransitionModel>")
    out.token("<Topology>")
    _put_topology(out, model.topology, looped)
    out.token("</Topology>")
    kind = "Tuples" if looped else "Triples"
    out.token(f"<{kind}>")
    out.integer(len(model.tuples))
    for entry in model.tuples:
        for value in entry[: 4 if looped else 3]:
            out.integer(value)
    out.token(f"</{kind}>")
    out.token("<LogProbs>")
    out.reals(model.log_probs.tolist())
    out.token("</LogProbs>")
    out.token("</TransitionModel>")


def _put_topology(out: BinaryOutput, topology: Mapping[int, tuple[HmmState, ...]], looped: bool) -> None:
    phones = sorted(topology)
    entries = list(dict.fromkeys(topology[phone] for phone in phones))
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
