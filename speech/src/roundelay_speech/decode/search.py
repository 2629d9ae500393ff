"""Words of one utterance: beam search over a decoding graph.

The decoder sees a (T, S) matrix of scaled log-likelihoods and a graph, nothing of who made them. Frames are far from
independent, so their log-likelihoods are scaled down before they meet the language model; by how much is found on
held-out speech. Beam and scale go together: at a low scale the same beam keeps many more paths.

Legend: T frames, S pdfs.
"""

from dataclasses import dataclass

import numpy as np

from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.search.beam import search

BEAM = 11.0
MAX_ACTIVE = 7000
SCALES = (0.05, 0.07, 0.1, 0.14, 0.18, 0.25)


@dataclass(frozen=True)
class Hypothesis:
    """The result of the search for one utterance."""

    words: tuple[str, ...]  # without silence and without sentence marks
    # graph_cost + acoustic_cost, in nats; inf when the search found no path at all. After rescoring the two are NaN: a
    # lattice keeps their sum only.
    cost: float
    graph_cost: float
    acoustic_cost: float
    # whether the words are a whole sentence of the graph; if not, they are the best beginning of one that was still in
    # the beam at the last frame.
    reached_final: bool
    pdfs: tuple[int, ...] = ()  # the pdf of every frame along the best path


def decode(graph: Graph, loglikes: Float32, beam: float = BEAM, max_active: int = MAX_ACTIVE) -> Hypothesis:
    """Find the best path of an utterance through a graph.

    Args:
        loglikes: (T, S) scaled log-likelihoods, S = graph.num_pdfs.
        beam: paths worse than the best by more than this (nats) are dropped.
        max_active: paths kept at any frame, at most; above FEWEST_ACTIVE.

    Raises:
        ValueError: wrong shape, no frame, or a value that is NaN or +inf.
    """
    check_scores(graph, loglikes)
    found = search(graph.fst, loglikes, beam, max_active)
    if found is None:
        return Hypothesis((), np.inf, np.inf, np.inf, False)
    labels, words, graph_cost, acoustic_cost, final = found
    return Hypothesis(
        words=tuple(graph.words[word] for word in words),
        cost=graph_cost + acoustic_cost,
        graph_cost=graph_cost,
        acoustic_cost=acoustic_cost,
        reached_final=final,
        pdfs=tuple(label - 1 for label in labels),
    )


def check_scores(graph: Graph, loglikes: Float32) -> None:
    """Raise a ValueError if log-likelihoods (T, S) cannot be decoded with this graph."""
    if loglikes.ndim != 2 or loglikes.shape[1] != graph.num_pdfs or not len(loglikes):
        raise ValueError(f"log-likelihoods have shape {loglikes.shape}, expected (T > 0, {graph.num_pdfs})")
    if not loglikes.max() < np.inf:  # NaN fails the comparison as well
        raise ValueError("log-likelihoods hold NaN or +inf")
