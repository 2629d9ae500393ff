"""Beam search over a decoding graph (kaldi-decoder's FasterDecoder), for one utterance or many, and the acoustic scale.

The decoder sees a (T, S) matrix of scaled log-likelihoods and a graph, nothing of who made them. Frames are far from
independent, so their log-likelihoods are scaled down before they meet the language model; by how much is found on
held-out speech. Beam and scale go together: at a low scale the same beam keeps many more paths.

Legend: T frames, S pdfs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import kaldi_decoder
import kaldifst
import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay.speech.decode.graph import Graph, load_graph
from roundelay.speech.processes import Workers, cores, start_workers
from roundelay.speech.score import ErrorCounts, score

Float32 = npt.NDArray[np.float32]

BEAM = 11.0
MAX_ACTIVE = 7000
SCALES = (0.05, 0.07, 0.1, 0.14, 0.18, 0.25)
_STEP = 1.4  # between scales beyond the grid
_LOWEST, _HIGHEST = 0.01, 2.0
_BATCH_FRAMES = 4000  # sent to a worker at once: long enough to hide the transfer, short enough to balance


@dataclass(frozen=True)
class Hypothesis:
    """What was recognised.

    Attributes:
        words: without silence and without sentence marks.
        cost: graph_cost + acoustic_cost, in nats; inf when the search found no path at all.
        reached_final: whether the words are a whole sentence of the graph; if not, they are the best beginning of one
            that was still in the beam at the last frame.
        pdfs: the pdf of every frame along the best path.
    """

    words: tuple[str, ...]
    cost: float
    graph_cost: float
    acoustic_cost: float
    reached_final: bool
    pdfs: tuple[int, ...] = ()


def decode(graph: Graph, loglikes: Float32, beam: float = BEAM, max_active: int = MAX_ACTIVE) -> Hypothesis:
    """Find the best path.

    Args:
        loglikes: (T, S) scaled log-likelihoods, S = graph.num_pdfs.
        beam: paths worse than the best by more than this (nats) are dropped.
        max_active: paths kept at any frame, at most.

    Raises:
        ValueError: wrong shape, no frame, or a value that is NaN or +inf.
    """
    if loglikes.ndim != 2 or loglikes.shape[1] != graph.num_pdfs or not len(loglikes):
        raise ValueError(f"log-likelihoods have shape {loglikes.shape}, expected (T > 0, {graph.num_pdfs})")
    if not loglikes.max() < np.inf:  # NaN fails the comparison as well
        raise ValueError("log-likelihoods hold NaN or +inf")
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


def search(
    fst: object, scores: Float32, beam: float, max_active: int
) -> tuple[list[int], list[int], float, float, bool] | None:
    """The best path: (input labels, output labels, graph cost, acoustic cost, final state reached); None without one.

    Label i of the graph scores column i - 1 of `scores`.
    """
    decoder = kaldi_decoder.FasterDecoder(fst, kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=max_active))
    decoder.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(scores, dtype=np.float32)))
    found, best = decoder.get_best_path()
    if not found:
        return None
    _, labels, words, weight = kaldifst.get_linear_symbol_sequence(best)
    return labels, words, weight.value1, weight.value2, decoder.reached_final()


# --------------------------------------------------------------------------------------------------- many utterances

Job = tuple[Sequence[tuple[str, Float32]], float, float, int]
"""Utterances with unscaled log-likelihoods, scale, beam, max_active."""


def decode_all(
    graph_folder: Path,
    loglikes: Iterable[tuple[str, Float32]],
    scale: float,
    *,
    beam: float = BEAM,
    max_active: int = MAX_ACTIVE,
    workers: int = 0,
    progress: Progress | None = None,
) -> dict[str, Hypothesis]:
    """Decode utterances in parallel; results are in the order given and do not depend on the number of workers.

    Args:
        graph_folder: what `save_graph` wrote; every worker reads it.
        loglikes: (utterance id, (T, S) unscaled log-likelihoods); may be a generator, which is read only as fast as the
            workers decode.
        scale: the acoustic scale.
        workers: processes; 0 for as many as there are cores, 1 for none but this one.

    Raises:
        UserError: no graph in the folder; log-likelihoods of an utterance are NaN; the scale is not positive.
    """
    with decoders(graph_folder, workers) as run:
        return run(loglikes, scale, beam, max_active, progress or Silent())


class Decoders:
    """A graph that is loaded once, here or in worker processes, and decodes any number of lists of utterances."""

    def __init__(self, graph: Graph | None, workers: Workers | None) -> None:
        self._graph, self._workers = graph, workers

    def __call__(
        self,
        loglikes: Iterable[tuple[str, Float32]],
        scale: float,
        beam: float = BEAM,
        max_active: int = MAX_ACTIVE,
        progress: Progress | None = None,
    ) -> dict[str, Hypothesis]:
        """As `decode_all`."""
        if not scale > 0.0:
            raise UserError(f"The acoustic scale {scale} is not above 0; 0.05 to 0.25 is usual.")
        progress = progress or Silent()
        results: dict[str, Hypothesis] = {}
        jobs = ((batch, scale, beam, max_active) for batch in _batched(loglikes))
        for done in self._run(jobs):
            results |= done
            progress.advance(len(done))
        return results

    def _run(self, jobs: Iterable[Job]) -> Iterator[dict[str, Hypothesis]]:
        if self._workers is not None:
            yield from self._workers.in_order(_work, jobs)
            return
        assert self._graph is not None
        for job in jobs:
            yield decode_batch(self._graph, *job)


@contextmanager
def decoders(graph_folder: Path, workers: int = 0) -> Iterator[Decoders]:
    """Load a graph for many calls; worker processes end with the block.

    Raises:
        UserError: no graph in the folder.
    """
    graph = load_graph(graph_folder)  # also when workers load it, so that a broken graph is one clear message
    if (workers or cores()) == 1:
        yield Decoders(graph, None)
        return
    with start_workers(workers or cores(), _start, graph_folder) as running:
        yield Decoders(None, running)


_LOADED: dict[str, Graph] = {}  # of a worker process


def _start(graph_folder: Path) -> None:
    _LOADED["graph"] = load_graph(graph_folder)


def _work(job: Job) -> dict[str, Hypothesis]:
    return decode_batch(_LOADED["graph"], *job)


def decode_batch(
    graph: Graph, batch: Iterable[tuple[str, Float32]], scale: float, beam: float, max_active: int
) -> dict[str, Hypothesis]:
    """Decode in this process.

    Raises:
        UserError: names the utterance whose log-likelihoods cannot be used.
    """
    results = {}
    for utterance, loglikes in batch:
        try:
            results[utterance] = decode(graph, np.float32(scale) * loglikes, beam, max_active)
        except ValueError as error:
            raise UserError(f"{utterance}: cannot be decoded: {error}. Check its features and the model.") from error
    return results


def _batched(loglikes: Iterable[tuple[str, Float32]]) -> Iterator[list[tuple[str, Float32]]]:
    batch: list[tuple[str, Float32]] = []
    frames = 0
    for utterance, matrix in loglikes:
        batch.append((utterance, matrix))
        frames += len(matrix)
        if frames >= _BATCH_FRAMES:
            yield batch
            batch, frames = [], 0
    if batch:
        yield batch


# ------------------------------------------------------------------------------------------------------------- scale


@dataclass(frozen=True)
class ScaleChoice:
    """The acoustic scale with the fewest word errors on held-out speech, and what was tried."""

    scale: float
    tried: Mapping[float, ErrorCounts]  # in ascending order of the scale
    hypotheses: Mapping[str, Hypothesis]  # at the chosen scale


def choose_scale(
    run: Decoders,
    loglikes: Mapping[str, Float32],
    refs: Mapping[str, Sequence[str]],
    scales: Sequence[float] = SCALES,
    *,
    beam: float = BEAM,
    max_active: int = MAX_ACTIVE,
    progress: Progress | None = None,
) -> ScaleChoice:
    """Decode held-out speech at every scale of a coarse grid; at the edge of the grid, go on beyond it.

    Scales with equally few errors are a plateau: the middle one is taken, as the one furthest from where errors rise
    (of two middle ones the larger, at which the same beam searches faster).

    Args:
        loglikes: (T, S) unscaled log-likelihoods by utterance id.
        refs: the words that were said, by utterance id.
        progress: told of every utterance; `start` is left to the caller, who knows the grid, not how far it is left.

    Raises:
        UserError: as `decode_all` and `score`; an empty grid.
    """
    if not scales or min(scales) <= 0.0:
        raise UserError(f"Acoustic scales to try must be positive numbers, not {list(scales)}; 0.05 to 0.25 is usual.")
    tried: dict[float, ErrorCounts] = {}
    found: dict[float, dict[str, Hypothesis]] = {}
    todo = sorted(set(scales))
    while todo:
        for scale in todo:
            found[scale] = run(loglikes.items(), scale, beam, max_active, progress)
            tried[scale] = score(refs, {u: h.words for u, h in found[scale].items()}).errors
        todo = _beyond(tried)
    best = plateau(tried)
    scale = best[len(best) // 2]
    return ScaleChoice(scale, {s: tried[s] for s in sorted(tried)}, found[scale])


def plateau(tried: Mapping[float, ErrorCounts]) -> list[float]:
    """The scales with the fewest errors, ascending."""
    fewest = min(errors.total for errors in tried.values())
    return sorted(scale for scale, errors in tried.items() if errors.total == fewest)


def _beyond(tried: Mapping[float, ErrorCounts]) -> list[float]:
    best, lowest, highest = plateau(tried), min(tried), max(tried)
    beyond = []
    if best[0] == lowest and lowest / _STEP >= _LOWEST:
        beyond.append(lowest / _STEP)
    if best[-1] == highest and highest * _STEP <= _HIGHEST:
        beyond.append(highest * _STEP)
    return [float(f"{scale:.2g}") for scale in beyond]
