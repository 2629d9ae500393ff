"""Search settings chosen on held-out speech, one after the other: acoustic scale, cost of a word, beam, max_active.

The first two are those with the fewest word errors. The last two only trade errors for time, so the narrowest is taken
that makes hardly more errors than the widest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.parallel import Decoders, Search
from roundelay_speech.decode.search import SCALES
from roundelay_speech.scoring.score import ErrorCounts, score

_STEP = 1.4  # between scales beyond the grid
_LOWEST, _HIGHEST = 0.01, 2.0


@dataclass(frozen=True)
class Tried:
    """The result of one setting on held-out speech."""

    errors: ErrorCounts
    real_time_factor: float  # processor seconds of the search per second of speech


@dataclass(frozen=True)
class Trials:
    """The settings tried before, and a function that is called with every new one."""

    tried: Mapping[Search, Tried]
    keep: Callable[[Search, Tried], None]


class Tuning:
    """A tuning of search settings on held-out speech; no setting is tried twice.

    Args:
        loglikes: (T, S) unscaled log-likelihoods by utterance id.
        refs: the words that were said, by utterance id.
        frame_seconds: the time a frame stands for.
        name: name of the held-out speech, for the progress bar.
        before: results left by an interrupted tuning, and a function that saves new ones.
    """

    def __init__(
        self,
        run: Decoders,
        loglikes: Mapping[str, Float32],
        refs: Mapping[str, Sequence[str]],
        frame_seconds: float,
        name: str = "dev",
        progress: Progress | None = None,
        before: "Trials | None" = None,
    ) -> None:
        self._run, self._loglikes, self._refs, self._name = run, loglikes, refs, name
        self._seconds = frame_seconds * sum(len(matrix) for matrix in loglikes.values())
        self._progress = progress or Silent()
        self.tried: dict[Search, Tried] = dict(before.tried if before else {})
        self._keep = before.keep if before else None

    def choose_scale(self, search: Search, scales: Sequence[float] = SCALES) -> Search:
        """Return `search` with the acoustic scale of a coarse grid that has the fewest errors; if the best is at the
        grid's edge, try scales beyond.

        Scales with equally few errors are a plateau: the middle one is taken, as the one furthest from where errors
        rise (of two middle ones the larger, at which the same beam searches faster).

        Raises:
            UserError: an empty grid, or a scale that is not positive; as `Decoders.search` and `score`.
        """
        if not scales or min(scales) <= 0.0:
            raise UserError(
                f"Acoustic scales to try must be positive numbers, not {list(scales)}; 0.05 to 0.25 is usual."
            )
        errors: dict[float, int] = {}
        todo, what = sorted(set(scales)), "acoustic scale"
        while todo:
            self._start(what, len(todo))
            for scale in todo:
                errors[scale] = self._errors(replace(search, scale=scale))
            self._progress.finish()
            todo, what = _beyond(errors), "acoustic scale beyond those given"
        best = _plateau(errors)
        return replace(search, scale=best[len(best) // 2])

    def choose_word_cost(self, search: Search, costs: Sequence[float]) -> Search:
        """Return `search` with the cost of a word that has the fewest errors; of equally good ones the middle."""
        self._start("cost of a word", len(costs))
        errors = {cost: self._errors(replace(search, word_cost=cost)) for cost in sorted(set(costs))}
        self._progress.finish()
        best = _plateau(errors)
        return replace(search, word_cost=best[(len(best) - 1) // 2])

    def choose_width(self, search: Search, beams: Sequence[float], max_actives: Sequence[int], slack: float) -> Search:
        """Return `search` with the narrowest beam, then the fewest paths, whose errors are within `slack` of the best
        beam's.

        All beams are tried with the most paths, then all numbers of paths with the beam that was chosen. By errors
        alone, not by the seconds that were measured: the choice is the same on every machine.

        Args:
            slack: share of additional errors that is accepted, 0.02 for 2 %.

        Raises:
            UserError: an empty grid; `slack` is negative; as `Decoders.search` and `score`.
        """
        if not beams or not max_actives:
            raise UserError("Nothing to try: neither the list of beams nor that of active paths may be empty.")
        if not slack >= 0.0:
            raise UserError(f"decode.search_slack {slack} is not a share of errors; 0 to 0.05 is usual.")
        beams, paths = sorted(set(beams)), sorted(set(max_actives))
        self._start("beam and active paths", len(beams) + len(paths) - 1)
        errors = {beam: self._errors(replace(search, beam=beam, max_active=paths[-1])) for beam in beams}
        allowed = min(errors.values()) * (1.0 + slack)
        beam = next(beam for beam in beams if errors[beam] <= allowed)
        fewer = {most: self._errors(replace(search, beam=beam, max_active=most)) for most in paths[:-1]}
        self._progress.finish()
        return replace(search, beam=beam, max_active=next((m for m in fewer if fewer[m] <= allowed), paths[-1]))

    def _start(self, what: str, settings: int) -> None:
        self._progress.start(f"{what} on {self._name}", settings * len(self._loglikes))

    def _errors(self, search: Search) -> int:
        known = self.tried.get(search)
        if known is not None:
            self._progress.advance(len(self._loglikes))
            return known.errors.total
        batch = self._run.search(self._loglikes.items(), search, self._progress)
        errors = score(self._refs, {u: h.words for u, h in batch.hypotheses.items()}).errors
        self.tried[search] = Tried(errors, batch.search_seconds / self._seconds)
        if self._keep is not None:
            self._keep(search, self.tried[search])
        return errors.total


def _plateau(errors: Mapping[float, int]) -> list[float]:
    """Return the settings with the fewest errors, ascending."""
    fewest = min(errors.values())
    return sorted(setting for setting, count in errors.items() if count == fewest)


def _beyond(errors: Mapping[float, int]) -> list[float]:
    best, lowest, highest = _plateau(errors), min(errors), max(errors)
    beyond = []
    if best[0] == lowest and lowest / _STEP >= _LOWEST:
        beyond.append(lowest / _STEP)
    if best[-1] == highest and highest * _STEP <= _HIGHEST:
        beyond.append(highest * _STEP)
    return [float(f"{scale:.2g}") for scale in beyond]
