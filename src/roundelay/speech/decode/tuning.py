"""Settings with the fewest word errors on held-out speech: the acoustic scale, then the cost of a word."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.speech.decode.parallel import Decoders
from roundelay.speech.decode.search import BEAM, MAX_ACTIVE, SCALES, Float32, Hypothesis
from roundelay.speech.score import ErrorCounts, score

_STEP = 1.4  # between scales beyond the grid
_LOWEST, _HIGHEST = 0.01, 2.0


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
    word_cost: float | None = None,
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
            found[scale] = run(loglikes.items(), scale, beam, max_active, progress, word_cost)
            tried[scale] = score(refs, {u: h.words for u, h in found[scale].items()}).errors
        todo = _beyond(tried)
    best = plateau(tried)
    scale = best[len(best) // 2]
    return ScaleChoice(scale, {s: tried[s] for s in sorted(tried)}, found[scale])


@dataclass(frozen=True)
class WordCostChoice:
    """The cost of a word with the fewest word errors on held-out speech, and what was tried."""

    word_cost: float
    tried: Mapping[float, ErrorCounts]  # in ascending order of the cost


def choose_word_cost(
    run: Decoders,
    loglikes: Mapping[str, Float32],
    refs: Mapping[str, Sequence[str]],
    costs: Sequence[float],
    scale: float,
    *,
    beam: float = BEAM,
    max_active: int = MAX_ACTIVE,
    progress: Progress | None = None,
) -> WordCostChoice:
    """Decode held-out speech with every cost of a word, at one acoustic scale; of equally good ones the middle.

    Raises:
        UserError: as `decode_all` and `score`.
    """
    tried: dict[float, ErrorCounts] = {}
    for cost in sorted(set(costs)):
        found = run(loglikes.items(), scale, beam, max_active, progress, cost)
        tried[cost] = score(refs, {u: h.words for u, h in found.items()}).errors
    best = plateau(tried)
    return WordCostChoice(best[(len(best) - 1) // 2], tried)


def plateau(tried: Mapping[float, ErrorCounts]) -> list[float]:
    """The settings with the fewest errors, ascending."""
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
