"""Word lattices and lists of the best word strings.

kaldi-decoder's lattice is one of states and frames: the same words stand in it in as many ways as they can be aligned.
Here it becomes a deterministic acceptor of words: every word string whose best path is within `lattice_beam` of the
best is in it exactly once, with the cost of that path (graph and scaled acoustics together), and so are some that are
worse, put together of parts of others.

A lattice file is gzipped text, lattice after lattice: the utterance id on a line; an arc a line, `from to word cost`;
a final state a line, `state cost`; an empty line. State 0 is the start, costs are in nats, and a path's cost is the sum
of its arcs' and its final state's.
"""

import gzip
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundelay.core.files import atomic_write
from roundelay_speech.bindings import kaldi_decoder, kaldifst
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.decode.search import BEAM, check_scores
from roundelay_speech.search.beam import crowded
from roundelay_speech.search.fst import Fst, to_arrays

LATTICE_BEAM = 6.0
_MARGIN = 2.0  # of the search's beam beyond that of the lattice
NARROW, WIDE = 1, 4
"""Most states of a lattice for each frame: if only confidences are made of it, and if it is kept. Speech has 0.1."""
_FEWEST = 1000  # states that any lattice may have
_ARCS = 30_000  # that a search may follow in a frame, on average: somewhat more than 7000 paths do
_SHORTEST = 200  # frames that an utterance counts for beside its own
_STATES = 250  # of a lattice of states and frames, for each frame; speech has about 10
_PAIRS = 5000  # of a state and an arc with a word, in a frame: memory and time of taking out the frames grow with them
_STEPS = 50_000_000  # states of the one times states of the other: a second or two


@dataclass(frozen=True)
class WordString:
    """One entry of an n-best list: words and cost."""

    words: tuple[str, ...]
    cost: float  # nats


@dataclass(frozen=True, eq=False)
class WordLattice:
    """A word lattice: word strings and their costs."""

    fst: Fst  # deterministic acceptor of word ids; start state 0
    words: tuple[str, ...]  # symbols by word id
    whole: bool = True  # whether the strings are whole sentences; if not, the search reached the end of none

    def best(self, count: int) -> list[WordString]:
        """Return the `count` cheapest word strings, all different, or as many as there are."""
        found = []
        for path in kaldifst.convert_nbest_to_vector(kaldifst.shortest_path(self.fst, n=count)):
            _, _, ids, weight = kaldifst.get_linear_symbol_sequence(path)
            found.append(WordString(tuple(self.words[i] for i in ids), float(weight.value)))
        return sorted(found, key=lambda string: string.cost)

    def to_text(self) -> str:
        """Return the lattice as text: arcs and final states, a line each, without the utterance's line."""
        arrays = to_arrays(self.fst)
        number = np.arange(len(arrays.final))  # the start first
        number[[0, arrays.start]] = number[[arrays.start, 0]]
        lines = [
            f"{number[source]} {number[arc['target']]} {self.words[arc['ilabel']]} {arc['weight']:.4f}\n"
            for source, arc in zip(arrays.source, arrays.arcs, strict=True)
        ]
        ends = np.flatnonzero(np.isfinite(arrays.final))
        return "".join(lines) + "".join(f"{number[state]} {arrays.final[state]:.4f}\n" for state in ends)


class Unbounded(Exception):
    """There are too many word strings near the best to look at all of them, as in music or pulsing tones."""


def word_lattice(
    graph: Graph, loglikes: Float32, beam: float = BEAM, lattice_beam: float = LATTICE_BEAM, *, width: int = WIDE
) -> WordLattice | None:
    """Decode an utterance to a lattice; None where the search found no path.

    There is no limit to the paths at a frame, so a wide beam takes long: at 11, twenty times as long as a search for
    the best words limited to 7000 paths. The beam that is used is therefore at most 2 more than `lattice_beam`.

    Sound that fits all words equally well has paths without number, and the deterministic acceptor of its words may
    have states exponentially many in its length. So the paths are counted beforehand, and the acceptor is made first
    of words alone, without the frames between them, with a limit. Counts decide, never seconds: the same utterance
    has the same lattice everywhere.

    Args:
        loglikes: (T, S) scaled log-likelihoods.
        beam: largest beam of the search.
        lattice_beam: arcs that are on no path within this of the best are left out.
        width: most states of the lattice for each frame, `NARROW` or `WIDE`.

    Raises:
        Unbounded: there are too many strings.
        ValueError: as `decode`.
    """
    check_scores(graph, loglikes)
    beam = min(beam, lattice_beam + _MARGIN)
    if crowded(graph.fst, loglikes, beam, _ARCS):
        raise Unbounded
    config = kaldi_decoder.LatticeSimpleDecoderConfig(beam=beam, lattice_beam=lattice_beam)
    decoder = kaldi_decoder.LatticeSimpleDecoder(graph.fst, config)
    if not decoder.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(loglikes, dtype=np.float32))):
        return None
    found, raw = decoder.get_raw_lattice()
    if not found:
        return None
    size = _SHORTEST + len(loglikes)
    if raw.num_states > width * _STATES * size:
        raise Unbounded
    text, arcs = _acceptor(str(raw))
    if arcs * raw.num_states > width * _PAIRS * size**2:
        raise Unbounded
    fst = _deterministic(kaldifst.compile(text, acceptor=False), _FEWEST + width * len(loglikes))
    kaldifst.minimize(fst)
    whole = math.isfinite(decoder.final_relative_cost())
    return WordLattice(fst, graph.words, whole) if fst.num_states else None


def _deterministic(fst: Fst, most: int) -> Fst:
    """Return the deterministic acceptor, which has each string once.

    Raises:
        Unbounded: it would have more than `most` states.
    """
    words = kaldifst.StdVectorFst(fst)
    kaldifst.rmepsilon(words)  # a fiftieth of the states are left, so that a try is cheap
    try:
        if kaldifst.determinize_star(words, max_states=most):
            raise Unbounded
    except RuntimeError:  # so it says the same
        raise Unbounded from None
    if words.num_states * fst.num_states > _STEPS:
        return words  # the same costs, rounded elsewhere
    kaldifst.determinize_star(fst)
    return fst


def with_string(best: Sequence[WordString], string: WordString) -> list[WordString]:
    """Insert a string that another search found into an n-best list; if it is there already, keep the lower cost."""
    rest = [one for one in best if one.words != string.words]
    cost = min([string.cost, *(one.cost for one in best if one.words == string.words)])
    return sorted([*rest, WordString(string.words, cost)], key=lambda one: one.cost)


def _acceptor(text: str) -> tuple[str, int]:
    """Return a printed lattice as an acceptor: words on both sides, and the sum of graph and acoustic cost; and the
    number of arcs with a word."""
    lines, spoken = [], 0
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4:
            source, target, _, word, *weight = fields
            spoken += word != "0"
            lines.append(f"{source} {target} {word} {word} {_cost(weight)}\n")
        elif fields:
            lines.append(f"{fields[0]} {_cost(fields[1:])}\n")
    return "".join(lines), spoken


def _cost(weight: Sequence[str]) -> float:
    return sum(map(float, weight[0].split(","))) if weight else 0.0


def write_lattices(path: Path, lattices: Iterable[tuple[str, str]]) -> None:
    """Write (utterance id, `WordLattice.to_text()`) pairs in the format at the top of this file."""
    with atomic_write(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for utterance, text in lattices:
            packed.write(f"{utterance}\n{text}\n".encode())
