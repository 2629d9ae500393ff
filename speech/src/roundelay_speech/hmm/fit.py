"""Do transcripts and audio belong together? Every utterance is compared with the transcripts of others.

Viterbi aligns any words to any speech, so an alignment says nothing of its transcript. Three log-likelihoods a frame
do: of the utterance's own words (o), of other utterances' words of like length (mean r), and of any phones in any order
(p, a loop over all phones). The fit is

    (o - r) / (p - r)       1: as well as any phones could; 0: no better than words of another utterance

Mixtures that were trained on a wrong transcript like it; in a small corpus they know it by heart. So the training split
is cut into FOLDS, and each fold is scored by monophone mixtures of its own, trained on the others with the labels of
the finished alignment. An utterance that fits much worse than the median is a suspect. The worst are compared with each
other's transcripts: two that fit better when these are exchanged were probably swapped.

Legend: T frames of all utterances together, D dimensions, S pdfs.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.files import write_json
from roundelay.core.progress import Progress, tracked
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.data.problems import counted, named
from roundelay_speech.hmm.align import shortest
from roundelay_speech.hmm.alignment import FIT_FILE
from roundelay_speech.hmm.gmm import Mixtures, joined, reestimate_some, rows_of, save_mixtures, single_gaussians, split
from roundelay_speech.hmm.passes import Aligners, Pass, Scored, Spoken, ToScore
from roundelay_speech.hmm.task import Labels, Task
from roundelay_speech.hmm.topology import EDGE, Tying
from roundelay_speech.hmm.tree import untied
from roundelay_speech.lexicon.lexicon import Lexicon

FOLDS = 4
OTHERS = 2  # transcripts that each utterance is compared with
_NEIGHBOURS = 40  # of the utterances next in length, these on both sides are drawn from
_SUSPECT = 0.25  # of the median fit
_NONE_FITS = 0.4  # a median fit below this: the corpus as a whole is in doubt
_COMPARED = 40  # of the worst are tried with each other's transcripts
_BETTER = 0.5  # by so much of the median fit must two gain together when their transcripts are exchanged
_FRAMES_PER_GAUSSIAN, _MOST_GAUSSIANS, _MOST_FRAMES = 100, 600, 500_000
_ROUNDS = 4
SUSPECTS_SHOWN = 8


@dataclass(frozen=True)
class Fit:
    """The fit of the utterances of a corpus to their transcripts."""

    fits: Mapping[str, float]  # fit by id
    suspects: Sequence[str]  # those that fit hardly better than words of others, the worst first
    swapped: Sequence[tuple[str, str]] = ()  # pairs that fit better with each other's transcripts
    median: float = field(default=1.0)  # fit of the median utterance

    def to_json(self) -> dict[str, Any]:
        """Return the fit as align.json keeps it."""
        return {
            "median": round(self.median, 3),
            "of": len(self.fits),
            "suspects": list(self.suspects),
            "swapped": [list(pair) for pair in self.swapped],
        }


def warnings(fit: Mapping[str, Any] | None, folder: Path) -> list[str]:
    """Return warnings from a `Fit.to_json`; none for a corpus that fits."""
    if not fit or not fit["of"]:
        return []
    found = []
    if fit["median"] < _NONE_FITS:
        found.append(
            f"the speech fits its own transcripts hardly better than those of others (median fit {fit['median']:.2f}; "
            f"1 would be as well as any phones do, 0 no better). Do transcripts and audio belong together? Every "
            f"utterance is in {folder / FIT_FILE}"
        )
    elif suspects := fit["suspects"]:
        found.append(
            f"{len(suspects)} of {counted(fit['of'], 'utterance')} fit their transcripts hardly better than those of "
            f"others: {named(suspects, SUSPECTS_SHOWN)}. All are in {folder / FIT_FILE}, the worst first"
        )
    found += [
        f"{one} and {other} fit each other's transcripts better: were these swapped?"
        for one, other in fit["swapped"][:SUSPECTS_SHOWN]
    ]
    return found


@dataclass(frozen=True, eq=False)
class FitConfig:
    """Options by which utterances were aligned, and are scored again: lexicon, states of silence, scale of
    log-likelihoods, beams."""

    lexicon: Lexicon
    silence_states: int
    scale: float
    beams: tuple[float, ...]
    seed: int


def check_fit(
    task: Task, labels: Labels, frames: Float32, config: FitConfig, run: Aligners, scratch: Path, progress: Progress
) -> tuple[Fit, str]:
    """Compare every aligned utterance with transcripts of others.

    Args:
        frames: (T, D) features for the mixtures.
        run: workers that have these frames.

    Returns:
        The fit, and the table of all utterances for FIT_FILE.
    """
    lexicon, seed = config.lexicon, config.seed
    tree = untied(lexicon.phones, config.silence_states)
    fold_of = _folds(task, seed)
    files = _models(task, tree.tying(), labels, frames, fold_of, scratch, seed)
    write_json(scratch / "fit.json", tree.to_json())

    def to_score(name: str, transcripts: Sequence[tuple[str, ...]]) -> ToScore:
        what = Pass(scratch / "fit.json", files[fold_of.get(name, 0)], config.scale, config.beams)
        return ToScore(name, what, tuple(transcripts))

    # Fold by fold, so that a worker reads each model once.
    names = sorted((n for n in task.spoken if n not in task.failed), key=lambda n: fold_of.get(n, 0))
    others = _others(task.spoken, names, lexicon, seed)
    names = [name for name in names if others[name]]
    jobs = (to_score(n, [task.spoken[n].words, *(task.spoken[o].words for o in others[n])]) for n in names)
    scored = {one.id: one for one in tracked(progress, "comparing transcripts", run.scored(jobs), len(names))}
    fits = {name: _fit(one, one.scores[0]) for name, one in scored.items()}
    median = float(np.median(list(fits.values()))) if fits else 1.0
    unit = max(median, _NONE_FITS)
    worst = sorted(fits, key=lambda n: (fits[n], n))
    suspects = [name for name in worst if fits[name] < _SUSPECT * unit]
    # Where nothing fits, anything fits better.
    swapped = []
    if median >= _NONE_FITS:
        doubtful = [name for name in worst[:_COMPARED] if fits[name] < unit]  # as good as the median is no suspect
        partners = _partners(task.spoken, doubtful, lexicon)
        jobs = (to_score(one, [task.spoken[o].words for o in partners[one]]) for one in doubtful if partners[one])
        gains = {
            (found.id, other): _fit(scored[found.id], score) - fits[found.id]
            for found in run.scored(jobs)
            for other, score in zip(partners[found.id], found.scores, strict=True)
        }
        swapped = _swapped(doubtful, gains, _BETTER * unit)
    return Fit(fits, suspects, swapped, median), _table(task, worst, fits, scored, suspects, swapped)


def _fit(scored: Scored, own: float | None) -> float:
    """Return the fit of an utterance to some words of log-likelihood `own`; None: they have no path."""
    others = [score for score in scored.scores[1:] if score is not None]
    if own is None or not others:
        return -1.0 if own is None else 1.0
    stranger = float(np.mean(others))
    return (own - stranger) / max(scored.loop - stranger, 1e-3)


def _folds(task: Task, seed: int) -> dict[str, int]:
    """Assign a fold to every training utterance."""
    training = [spoken.id for spoken in task.training if spoken.id not in task.failed]
    order = stream(seed, "fit", "folds").permutation(len(training))
    return {training[i]: place % FOLDS for place, i in enumerate(order)}


def _models(
    task: Task, tying: Tying, labels: Labels, frames: Float32, fold_of: Mapping[str, int], scratch: Path, seed: int
) -> list[Path]:
    """Train monophone mixtures for each fold on the other folds' frames; return their files."""
    files = []
    names = list(fold_of)
    for fold in range(FOLDS):
        rng = stream(seed, "fit", fold)
        used = np.zeros(len(frames), bool)
        total = 0
        for i in rng.permutation(len(names)):
            spoken = task.spoken[names[i]]
            # One utterance alone is in every model: there is nothing else to train on.
            if (fold_of[spoken.id] != fold or len(names) == 1) and total < _MOST_FRAMES:
                used[spoken.first : spoken.first + spoken.frames] = True
                total += spoken.frames
        used &= labels.pdf >= 0
        phones, states = labels.phones[used].astype(int), labels.states[used].astype(int)
        pdfs = tying.table[EDGE, phones, EDGE, states].astype(np.int32)
        files.append(scratch / f"fit-{fold}.npz")
        save_mixtures(files[-1], _mixtures(frames[used], pdfs, tying.num_pdfs, rng))
    return files


def _mixtures(frames: Float32, pdfs: npt.NDArray[np.int32], num_pdfs: int, rng: np.random.Generator) -> Mixtures:
    mixtures = single_gaussians(frames, pdfs, num_pdfs)
    wanted = int(np.clip(len(frames) / _FRAMES_PER_GAUSSIAN, num_pdfs, max(num_pdfs, _MOST_GAUSSIANS)))
    counts, rows = np.bincount(pdfs, minlength=num_pdfs), rows_of(pdfs, num_pdfs)
    for step in range(1, _ROUNDS + 1):
        target = num_pdfs + (wanted - num_pdfs) * step // _ROUNDS
        if mixtures.components < target:
            mixtures = split(mixtures, counts, target, rng)
        mixtures = joined(reestimate_some(mixtures, frames, rows, range(num_pdfs)), mixtures.floor)
    return mixtures


def _others(spoken: Mapping[str, Spoken], names: Sequence[str], lexicon: Lexicon, seed: int) -> dict[str, list[str]]:
    """Return, for every utterance, others of similar length with other words."""
    length = {name: shortest(spoken[name].words, lexicon) for name in names}
    order = sorted(names, key=lambda name: (length[name], name))
    found: dict[str, list[str]] = {}
    for place, name in enumerate(order):
        near = order[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS + 1]
        own, chosen = spoken[name], list[str]()
        for i in stream(seed, "fit", name).permutation(len(near)):
            other = spoken[near[i]]
            alike = len(set(other.words) & set(own.words)) > len(set(own.words)) / 2
            if not alike and length[other.id] <= own.frames:
                chosen.append(other.id)
                if len(chosen) == OTHERS:
                    break
        found[name] = chosen
    return found


def _partners(spoken: Mapping[str, Spoken], names: Sequence[str], lexicon: Lexicon) -> dict[str, list[str]]:
    """Return, for each of `names`, the others with other words that are short enough for its frames."""
    length = {name: shortest(spoken[name].words, lexicon) for name in names}
    return {
        one: [o for o in names if spoken[o].words != spoken[one].words and length[o] <= spoken[one].frames]
        for one in names
    }


def _swapped(names: Sequence[str], gains: Mapping[tuple[str, str], float], least: float) -> list[tuple[str, str]]:
    """Return pairs that fit better with each other's transcripts, the surest first; each utterance once.

    Args:
        gains: gain in fit of a pair's first utterance with the transcript of the second; missing if not tried.
        least: least gain that a pair must have together.
    """
    pairs = [
        (gains[pair] + gains[pair[::-1]], pair)
        for pair in itertools.combinations(names, 2)
        if min(gains.get(pair, -1.0), gains.get(pair[::-1], -1.0)) > 0
    ]
    chosen: list[tuple[str, str]] = []
    for gain, pair in sorted(pairs, reverse=True):
        if gain > least and not any(name in other for name in pair for other in chosen):
            chosen.append(pair)
    return chosen


def _table(
    task: Task,
    worst: Sequence[str],
    fits: Mapping[str, float],
    scored: Mapping[str, Scored],
    suspects: Sequence[str],
    swapped: Sequence[tuple[str, str]],
) -> str:
    partner = {one: other for pair in swapped for one, other in (pair, pair[::-1])}
    split_of = {name: split_name for split_name, ids in task.splits.items() for name in ids}
    doubted = set(suspects)
    lines = ["utterance\tsplit\tfit\tsuspect\tswapped_with\town\tothers\tany_phones\n"]
    for name in worst:
        own, *others = scored[name].scores
        told = [f"{score:.3f}" for score in others if score is not None]
        lines.append(
            f"{name}\t{split_of[name]}\t{fits[name]:.3f}\t{'yes' if name in doubted else '-'}\t"
            f"{partner.get(name, '-')}\t{'-' if own is None else f'{own:.3f}'}\t{' '.join(told) or '-'}\t"
            f"{scored[name].loop:.3f}\n"
        )
    return "".join(lines)
