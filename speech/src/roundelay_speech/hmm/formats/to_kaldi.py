"""Our trees and states as Kaldi's: a tree, a transition model, and the transition-ids of frames.

Legend: T frames of one utterance.
"""

import numpy as np
import numpy.typing as npt

from roundelay_speech.hmm.formats.kaldi_model import (
    PDF_CLASS,
    Answer,
    ContextDependency,
    EventMap,
    HmmState,
    Question,
    TableMap,
    TransitionModel,
)
from roundelay_speech.hmm.topology import transitions
from roundelay_speech.hmm.tree import LEFT, OWN, RIGHT, DecisionTree, Leaf

LOOP, ON = 0.75, 0.25  # probabilities of Kaldi's usual topology, before training


def export_tree(tree: DecisionTree) -> ContextDependency:
    """Return our tree with our ids: a table of phones, in it tables of states, in them the questions."""
    centre = min(1, tree.context - 1)
    asked = {LEFT: 0, OWN: centre, RIGHT: 2}

    def of(place: int) -> EventMap:
        node = tree.nodes[place]
        if isinstance(node, Leaf):
            return Answer(node.pdf)
        return Question(asked[node.position], node.phones, of(node.yes), of(node.no))

    phones = [TableMap(PDF_CLASS, tuple(of(root) for root in roots)) for roots in tree.roots]
    return ContextDependency(tree.context, centre, TableMap(centre, (None, *phones)))


def export_transition_model(tree: DecisionTree) -> TransitionModel:
    """Return the states of every phone from left to right; the triples are all that the tree can give, in Kaldi's
    order."""
    sizes = [len(roots) for roots in tree.roots]
    entries = {size: _entry(size) for size in set(sizes)}
    table = tree.tying().table
    triples = [
        (phone, state, pdf, pdf)
        for phone, size in enumerate(sizes, 1)
        for state in range(size)
        for pdf in np.unique(table[:, phone, :, state]).tolist()
    ]
    topology = {phone: entries[size] for phone, size in enumerate(sizes, 1)}
    ways = (probability for phone, state, *_ in triples for _, probability in topology[phone][state].transitions)
    return TransitionModel(topology, tuple(triples), np.log(np.array([1.0, *ways], np.float32)))


def _entry(size: int) -> tuple[HmmState, ...]:
    """Return the states of a phone of so many: each loops, or goes on to any that may follow it."""
    follow = [[after for before, after in transitions(size) if before == state] or [size] for state in range(size)]
    ways = [((state, LOOP), *((after, ON / len(on)) for after in on)) for state, on in enumerate(follow)]
    return (*(HmmState(state, state, way) for state, way in enumerate(ways)), HmmState(-1, -1, ()))


def transition_ids(
    model: TransitionModel,
    phones: npt.NDArray[np.int16],
    states: npt.NDArray[np.int8],
    pdfs: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """Return (T,) the transition-ids of an utterance's frames: a way out of a state at its first frame, then its loop,
    which is the order that Kaldi's own alignments have (--reorder=true). Of several ways out it is the first, whichever
    was taken."""
    place = {(phone, state, pdf): i for i, (phone, state, pdf, _) in enumerate(model.tuples)}
    keys = zip(phones.tolist(), states.tolist(), pdfs.tolist(), strict=True)
    first = model.first_ids[[place[key] for key in keys]]
    stays = np.zeros(len(phones), bool)
    stays[1:] = (phones[1:] == phones[:-1]) & (states[1:] == states[:-1])
    return (first + np.where(stays, 0, 1)).astype(np.int32)
