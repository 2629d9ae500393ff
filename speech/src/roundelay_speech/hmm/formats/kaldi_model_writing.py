"""Writing Kaldi's trees and transition models, binary or as text."""

from collections.abc import Mapping
from pathlib import Path

from roundelay_speech.hmm.formats.kaldi_model import (
    Answer,
    ContextDependency,
    EventMap,
    HmmState,
    TableMap,
    TransitionModel,
)
from roundelay_speech.kaldi_io.tokens import BinaryOutput, Output, TextOutput, save


def write_tree(path: Path, tree: ContextDependency, *, binary: bool = True) -> None:
    """Write a `tree` file."""
    out: Output = BinaryOutput() if binary else TextOutput()
    out.token("ContextDependency")
    out.integer(tree.width)
    out.integer(tree.centre)
    out.token("ToPdf")
    _put_map(out, tree.to_pdf)
    out.token("EndContextDependency")
    save(path, out)


def _put_map(out: Output, what: EventMap | None) -> None:
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
    out: Output = BinaryOutput() if binary else TextOutput()
    put_transition_model(out, model)
    save(path, out)


def put_transition_model(out: Output, model: TransitionModel) -> None:
    """Write a transition model to `out`, where an acoustic model may follow."""
    looped = any(s.loop_class != s.pdf_class for states in model.topology.values() for s in states)
    out.token("<TransitionModel>")
    out.line()
    out.token("<Topology>")
    out.line()
    if isinstance(out, BinaryOutput):
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


def _entries(topology: Mapping[int, tuple[HmmState, ...]]) -> list[tuple[HmmState, ...]]:
    return list(dict.fromkeys(topology[phone] for phone in sorted(topology)))


def _put_binary_topology(out: Output, topology: Mapping[int, tuple[HmmState, ...]], looped: bool) -> None:
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


def _put_text_topology(out: Output, topology: Mapping[int, tuple[HmmState, ...]], looped: bool) -> None:
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
