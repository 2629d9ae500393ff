"""Writing Kaldi's trees and transition models, binary."""

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
from roundelay_speech.kaldi_io.tokens import BinaryOutput, save


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
