"""Expected statistics of a speaker after a few seconds, by the differences between training speakers.

The mean of T frames of one speaker differs from that of an average speaker by r, for two reasons: speakers differ, with
a covariance S, and so do stretches of speech of one speaker, with C / T. The best linear estimate of how the speaker
differs is

    S (S + C / T)^-1 r = B diag(g T / (1 + g T)) A r,    A C A^T = I,   A S A^T = diag(g),   B = C A^T

(Robinson 1991, "That BLUP is a good thing"). The K directions whose g is largest are kept: in the others stretches of
speech differ rather than speakers. It is used twice: for means, less the loudness of the recording, which is believed
as it is; and for logarithms of deviations.

Legend: F features, K directions, U utterances, N speakers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Float64
from roundelay_speech.features.store import SpeakerStats, StoredPart

LEAST_SPEAKERS = 20
"""Fewest training speakers from whom the differences between speakers are learnt."""
UTTERANCES_FITTED = 3000
_DIRECTIONS = 4
_RIDGE = 0.01  # of the mean variance within speakers
_OF_ONE = 1.5  # a speaker's frames, over those of one utterance, for it to tell how the speaker's utterances differ


@final
@dataclass(frozen=True, eq=False)
class Directions:
    """Directions in which speakers differ more than parts of one speaker's speech."""

    gains: Float64  # (K,), a frame
    shapes: Float64  # (F, K), B
    measures: Float64  # (K, F), A

    @classmethod
    def of(cls, between: Float64, within: Float64) -> "Directions":
        """Return the directions from the covariances between speakers, S (F, F), and within them, C (F, F), which may
        be singular."""
        within = within + (_RIDGE * np.trace(within) / len(within) + 1e-12) * np.eye(len(within))
        root = np.linalg.cholesky(within)
        inverse = np.linalg.inv(root)
        gains, turned = np.linalg.eigh(inverse @ between @ inverse.T)
        turned = turned[:, ::-1][:, :_DIRECTIONS]
        return cls(np.maximum(gains[::-1][:_DIRECTIONS], 0.0), root @ turned, turned.T @ inverse)

    def expected(self, seen: Float64, frames: int) -> Float64:
        """Return the expected difference (F,) of a speaker, `frames` frames of whom differ by `seen` (F,)."""
        known = self.gains * frames
        return np.asarray(self.shapes @ (known / (1 + known) * (self.measures @ seen)), np.float64)


@final
@dataclass(frozen=True, eq=False)
class SpeakerSpread:
    """The differences between speakers, in means and in logarithms of deviations."""

    means: Directions
    deviations: Directions

    @classmethod
    def fitted(
        cls, utterances: SpeakerStats, of: Sequence[int], speakers: SpeakerStats, parts: Sequence[StoredPart]
    ) -> "SpeakerSpread":
        """Fit the differences between the speakers of a training set.

        Args:
            utterances: statistics of U utterances, each as a speaker of its own.
            of: (U,) index of each utterance's speaker.
            speakers: statistics of the N speakers.
            parts: the columns of the features.
        """

        def directions(whole: Float64, some: Float64) -> Directions:
            frames, all_ = utterances.frames, speakers.frames[of]
            told = all_ > _OF_ONE * frames
            apart = (some - whole[of])[told] / np.sqrt(1 / frames[told] - 1 / all_[told])[:, None]
            within = apart.T @ apart / len(apart)
            heard = np.unique(of)
            differ = whole[heard] - np.average(whole[heard], axis=0, weights=speakers.frames[heard])
            between = differ.T @ differ / len(heard) - within * (1 / speakers.frames[heard]).mean()
            return Directions.of(between, within)

        def even(mean: Float64) -> Float64:
            return mean - loudness(mean, parts)

        means = [even(one.mean.astype(np.float64)) for one in (speakers, utterances)]
        deviations = [np.log(one.std.astype(np.float64)) for one in (speakers, utterances)]
        return cls(directions(means[0], means[1]), directions(deviations[0], deviations[1]))

    def rows(self) -> tuple[str, ...]:
        """Return the spread as text, row by row."""
        tables = ([one.gains, *one.shapes.T, *one.measures] for one in (self.means, self.deviations))
        return tuple(" ".join(f"{number:.3g}" for number in row) for table in tables for row in table)

    @classmethod
    def of_rows(cls, rows: Sequence[str]) -> "SpeakerSpread":
        """Return the spread in rows of text from `rows`.

        Raises:
            UserError: the rows are not two tables of finite numbers, or a gain is below 0.
        """
        half = len(rows) // 2
        try:
            return cls(_directions(rows[:half]), _directions(rows[half:]))
        except ValueError:
            raise UserError("spread: not directions in which speakers differ. Pack the model again.") from None


def _directions(rows: Sequence[str]) -> Directions:
    gains, *others = [np.array([float(number) for number in row.split()]) for row in rows]
    shapes, measures = np.array(others).reshape(2, len(gains), -1)
    if not (np.isfinite(shapes).all() and np.isfinite(measures).all() and (gains >= 0).all()):
        raise ValueError
    return Directions(gains, shapes.T, measures)


def loudness(mean: Float64, parts: Sequence[StoredPart]) -> Float64:
    """Return the loudness in differences (..., F): in all columns of a normalised part their mean, in others 0."""
    found = np.zeros_like(mean)
    first = 0
    for part in parts:
        columns = slice(first, first + part.width)
        if part.normalise != "none":
            found[..., columns] = mean[..., columns].mean(-1, keepdims=True)
        first += part.width
    return found
