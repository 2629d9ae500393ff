"""Evidence of words that were said, for a packed model: learnt of held-out speech, and of noise that is made for it.

Both are recognised by the model as `transcribe` would: each utterance by itself. See speech/decode/evidence.py.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from roundelay.core.progress import Progress, tracked
from roundelay.core.streams import stream
from roundelay_speech.audio.noises import NOISES, STEADY, noise
from roundelay_speech.data.arrays import Bools, Float32, Float64
from roundelay_speech.decode.evidence import MEASURES, OF_CONFIDENCE, ROOM, Evidence, Likeness, cepstra, mixture_of
from roundelay_speech.packed.hearing import PieceFeatures
from roundelay_speech.packed.model import Examined, Model
from roundelay_speech.scoring.reliability import Reliability, judged, reliability
from roundelay_speech.scoring.score import align_words

MOST_SECONDS = 600.0
"""Most seconds of held-out speech that are recognised."""
_NOISE_SECONDS = (1.0, 2.0, 4.0, 6.0)  # of each kind
_NOISES_HEARD, _NOISE_HEARD_SECONDS = 8, 4.0  # of each kind, that the mixture of noise is estimated of
_TRAINING_FRAMES = 100_000
_LEAST_WORDS = 20  # of either kind, without which nothing can be fitted
_REFUSED = 0.001  # share of words that were said, about
_ENOUGH_WORDS = 400  # of them, without which that is not known
_TAIL = 5.0  # standard deviations
_ANYTHING = -1e9  # log-likelihood below that of anything
_RIDGE = 1e-3
_FEW_WRONG = 1e-2  # the same where only some thirty wrong words are known
_ON_LEVEL = 0.25  # of the way from the quiet to the loud frames of an utterance, speech begins


HeldOut = Sequence[tuple[Callable[[], PieceFeatures], Sequence[str]]]
"""Yields features and words of utterances."""


@dataclass(frozen=True, eq=False)
class CalibrationSpeech:
    """Speech of a model's corpus, by which its confidences are fitted and judged."""

    training: Iterable[Float32]  # features (T, F) of utterances for the first network, one by one
    held_out: HeldOut  # features and words of utterances, which evidence is fitted to
    unseen: Mapping[str, HeldOut]  # those of other splits, by name, on which it is judged
    longest: dict[str, float]  # seconds that phones last at most, by name


def calibrated(model: Model, speech: CalibrationSpeech, progress: Progress) -> Evidence:
    """Learn the evidence that distinguishes words that were said from others.

    Args:
        model: a packed model without evidence.
    """
    likeness, noise_likeness = _likeness(model, speech.training), _noise_likeness(model)
    nothing = (0.0,) * len(MEASURES)
    blank = Evidence(speech.longest, likeness, nothing, nothing, 1.0, 0.0, _ANYTHING, noise=noise_likeness, room=ROOM)
    asking = replace(model, evidence=blank)
    progress.start("telling words from noise", len(speech.held_out) + len(NOISES) * len(_NOISE_SECONDS))
    heard = [*_speech(asking, speech, progress)]
    noisy = [one.measures for one in _noise(asking, progress) if one.measures is not None]
    progress.finish()
    none = np.zeros((0, len(MEASURES) + len(OF_CONFIDENCE)))
    measures, noise_measures = np.concatenate([none, *(one for one, _, _ in heard)]), np.concatenate([none, *noisy])
    right = np.concatenate([np.zeros(0, bool), *(one for _, one, _ in heard)])
    sure = [confidence for _, _, some in heard for confidence in some]
    evidence = blank
    if min(int(right.sum()), len(noise_measures)) >= _LEAST_WORDS:
        evidence = _told_apart(blank, measures[right, : len(MEASURES)], noise_measures[:, : len(MEASURES)])
    if sure and len(right) >= _LEAST_WORDS:
        evidence = _made_true(evidence, evidence.signs(sure, measures), right)
    return evidence


def truths(model: Model, speech: CalibrationSpeech, progress: Progress) -> dict[str, Reliability]:
    """Judge the confidences of a model on each split to which nothing was fitted; empty if the model gives no
    confidences.

    Args:
        model: a packed model with its evidence.
    """
    found = {}
    for split, utterances in speech.unseen.items() if model.gives_times else ():
        words = []
        for features, said in tracked(progress, f"holding confidences to {split}", utterances):
            heard = features()
            transcript = model.of_features(heard, model.statistics([heard]), believing="all")
            words.append(judged(said, transcript.timed))
        found[split] = reliability(words)
    return found


def _likeness(model: Model, training: Iterable[Float32]) -> Likeness:
    """Estimate the mixture of Gaussians of speech, from the louder frames of utterances."""
    found: list[Float32] = []
    for features in training:
        bands = model.hearings[0].telephone(features, model.sample_rate)
        loud = bands.mean(1)
        floor, top = np.quantile(loud, [0.1, 0.95])
        found.append(cepstra(bands, ROOM)[loud >= floor + _ON_LEVEL * (top - floor)])
        if sum(map(len, found)) >= _TRAINING_FRAMES:
            break
    return mixture_of(np.concatenate(found), stream(0, "evidence"))


def _noise_likeness(model: Model) -> Likeness:
    """Estimate the mixture of Gaussians of noises that come and go, from other sounds than those in which words are
    searched. Steady noise is left to other measures, so that speech in it stays speech."""
    first = len(_NOISE_SECONDS)
    found = [
        cepstra(model.hearings[0].telephone(features.of_network[0], model.sample_rate), ROOM)
        for kind in NOISES
        if kind not in STEADY
        for seed in range(first, first + _NOISES_HEARD)
        if len(features := model.features(noise(kind, _NOISE_HEARD_SECONDS, model.sample_rate, seed)))
    ]
    return mixture_of(np.concatenate(found), stream(0, "noise evidence"))


def _speech(
    model: Model, speech: CalibrationSpeech, progress: Progress
) -> Iterator[tuple[Float64, Bools, list[float | None]]]:
    """Yield, for each utterance, the measures of the words found, True for those that are right, and their confidences,
    if any."""
    for features, said in speech.held_out:
        heard = features()
        found = model.examined(heard, model.statistics([heard]))
        progress.advance()
        if found.measures is None:
            continue
        pairs = align_words(list(said), list(found.transcript.words))
        right = np.array([ours == theirs for ours, theirs in pairs if theirs is not None])
        yield found.measures, right, [word.confidence for word in found.transcript.timed]


def _noise(model: Model, progress: Progress) -> Iterator[Examined]:
    for kind in NOISES:
        for seed, seconds in enumerate(_NOISE_SECONDS):
            heard = model.features(noise(kind, seconds, model.sample_rate, seed))
            if len(heard):
                yield model.examined(heard, model.statistics([heard]), times=False)
            progress.advance()


def _told_apart(blank: Evidence, said: Float64, noisy: Float64) -> Evidence:
    """Return evidence with weights that distinguish words that were said from those found in noise, and the least sum
    that is believed: the lowest of speech, or, if noise is far below, the middle between the two. A word more like
    speech than noise is never refused."""
    usual = np.median(said, axis=0)
    cases = np.minimum(np.concatenate([said, noisy]), usual)
    answers = np.repeat([True, False], [len(said), len(noisy)])
    weights, offset = _rising(cases, answers, balanced=True)
    found = replace(blank, usual=tuple(usual.tolist()), weights=tuple(weights.tolist()), offset=offset)
    sums, likeness = found.sums(said), said[:, MEASURES.index("likeness")]
    beyond = float(np.quantile(found.sums(noisy), 0.999))
    # The lowest of few words is not as low as that of many: its tail is taken for exponential.
    fewer = max(0.0, math.log(_ENOUGH_WORDS / len(said)))
    lowest = float(np.quantile(sums, _REFUSED))
    least = lowest - fewer * (float(sums.mean()) - lowest) / math.log(len(said))
    return replace(
        found,
        least=min(least, (least + beyond) / 2, 0.0),
        least_likeness=min(float(likeness.min()), float(likeness.mean() - _TAIL * likeness.std())),
    )


def _made_true(evidence: Evidence, signs: Float64, right: Bools) -> Evidence:
    """Return evidence with the map that makes confidences true; unchanged if the map would fall with rising
    confidences, or no word is right."""
    if not right.any():
        return evidence
    floors = signs[right].min(0)
    weights, offset = _rising(np.maximum(signs, floors), right, penalty=_FEW_WRONG)
    if weights[0] <= 0:
        return evidence
    return replace(evidence, confidence=(*weights.tolist(), offset), floors=tuple(floors.tolist()))


def _rising(
    cases: Float64, answers: Bools, *, balanced: bool = False, penalty: float = _RIDGE
) -> tuple[Float64, float]:
    """Return weights and offset of a `logistic` regression without negative weights, so that more of a measure never
    counts against a word."""
    used = np.arange(cases.shape[1])
    while True:
        weights, offset = logistic(cases[:, used], answers, balanced=balanced, penalty=penalty)
        if (weights >= 0).all() or not len(used):
            break
        used = used[weights > 0]
    every = np.zeros(cases.shape[1])
    every[used] = weights
    return every, offset


def logistic(
    cases: Float64, answers: Bools, *, balanced: bool = False, penalty: float = _RIDGE
) -> tuple[Float64, float]:
    """Return weights and offset of a logistic regression, by Newton's method, with a small penalty on weights.

    Args:
        cases: (N, D) measures of each case.
        answers: (N,) True or False for each case.
        balanced: True if both kinds of answers have equal total weight.
        penalty: factor of half the squared weights, of measures scaled to a standard deviation of 1, added to the mean
            loss.
    """
    mean, std = cases.mean(0), cases.std(0) + 1e-9
    design = np.concatenate([(cases - mean) / std, np.ones((len(cases), 1))], axis=1)
    count = np.full(len(cases), 1 / len(cases))
    if balanced:
        count = np.where(answers, 1 / max(1, answers.sum()), 1 / max(1, (~answers).sum()))
    ridge = penalty * np.eye(design.shape[1])
    ridge[-1, -1] = 1e-9
    found = np.zeros(design.shape[1])
    for _ in range(50):
        chance = 1 / (1 + np.exp(-np.clip(design @ found, -30, 30)))
        slope = design.T @ (count * (chance - answers)) + ridge @ found
        curve = (design * (count * chance * (1 - chance))[:, None]).T @ design + ridge
        step = np.linalg.solve(curve + 1e-9 * np.eye(len(found)), slope)
        found -= step / max(1.0, float(np.abs(step).max()))
    weights = found[:-1] / std
    return weights, float(found[-1] - weights @ mean)
