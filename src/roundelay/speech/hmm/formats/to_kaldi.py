"""Our trees and states as Kaldi's: a tree, a transition model, and the transition-ids of frames.

Legend: T frames of one utterance.
"""

import numpy as np
import numpy.typing as npt

from roundelay.speech.hmm.formats.kaldi_model import (
    PDF_CLASS,
    Answer,
    ContextDependency,
    EventMap,
    HmmState,
    Question,
    TableMap,
    TransitionModel,
)
from roundelay.speech.hmm.topology import STATES
from roundelay.speech.hmm.tree import LEFT, DecisionTree, Leaf

LOOP, ON = 0.75, 0.25  # probabilities of Kaldi's usual topology, before training


def export_tree(tree: DecisionTree) -> ContextDependency:
    """Our tree with our ids: a table of phones, in it tables of states, in them the questions."""
    centre = min(1, tree.context - 1)

    def of(place: int) -> EventMap:
        node = tree.nodes[place]
        if isinstance(node, Leaf):
            return Answer(node.pdf)
        return Question(0 if node.position == LEFT else 2, node.phones, of(node.yes), of(node.no))

    phones = [TableMap(PDF_CLASS, tuple(of(root) for root in roots)) for roots in tree.roots]
    return ContextDependency(tree.context, centre, TableMap(centre, (None, *phones)))


def export_transition_model(tree: DecisionTree) -> TransitionModel:
    """Three states from left to right for every phone; the triples are all that the tree can give, in Kaldi's order."""
    states = [HmmState(s, s, ((s, LOOP), (s + 1, ON))) for s in range(STATES)]
    entry = (*states, HmmState(-1, -1, ()))
    table = tree.tying().table
    triples = [
        (phone, state, pdf, pdf)
        for phone in range(1, len(tree.phones) + 1)
        for state in range(STATES)
        for pdf in np.unique(table[:, phone, :, state]).tolist()
    ]
    log_probs = np.log(np.array([1.0, *([LOOP, ON] * len(triples))], np.float32))
    return TransitionModel(dict.fromkeys(range(1, len(tree.phones) + 1), entry), tuple(triples), log_probs)


def transition_ids(
    model: TransitionModel,
    phones: npt.NDArray[np.int16],
    states: npt.NDArray[np.int8],
    pdfs: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """(T,) the transition-ids of an utterance's frames: the way out of a state at its first frame, then its loop, which
    is the order that Kaldi's own alignments have (--reorder=true)."""
    place = {(phone, state, pdf): i for i, (phone, state, pdf, _) in enumerate(model.tuples)}
    keys = zip(phones.tolist(), states.tolist(), pdfs.tolist(), strict=True)
    first = model.first_ids[[place[key] for key in keys]]
    stays = np.zeros(len(phones), bool)
    stays[1:] = (phones[1:] == phones[:-1]) & (states[1:] == states[:-1])
    return (first + np.where(stays, 0, 1)).astype(np.int32)
