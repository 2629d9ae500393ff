"""From samples to log-likelihoods, as in `prepare` and `decode`, but without files.

Legend: N samples, T frames, F features, S tied states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Bools, Float32
from roundelay_speech.features.fbank import LOG_FLOOR, band_centres, fbank
from roundelay_speech.features.parts import FeatureConfig
from roundelay_speech.features.store import FeatureStore, SpeakerStats, SpeakerSums, StoredPart
from roundelay_speech.models.frames import log_likelihoods
from roundelay_speech.packed.adapting import Placed
from roundelay_speech.packed.folder import PackedNetwork
from roundelay_speech.packed.spread import SpeakerSpread, loudness
from roundelay_speech.packed.upper import Step, Told, lacking, lower_bands, weights_of
from roundelay_speech.trained import AcousticModel

ENOUGH_FRAMES = 500
"""Frames of a speaker from which the mean is known well enough: five seconds. With fewer, an expected part is added."""
ENOUGH_FOR_DEVIATIONS = 2000
"""Frames from which standard deviations are known well enough, if it is known how speakers differ."""
_TELEPHONE = 3400.0  # Hz
_DEEPEST = 5.0  # deviations below the loudest frame, where there is no sound
_ROOM = 1.0  # deviations below the mean; pauses of speech lie 1 to 2 below it
_ROOM_AT_MOST = 1e-3  # by which columns of such a frame differ; those of no recording do
_ONLY = "speech"  # name of the utterance, and of its speaker, in a store of one


@dataclass(frozen=True, eq=False)
class PieceFeatures:
    """The features (T, F) of a piece of audio for each network, with each kind stored once."""

    of_network: tuple[Float32, ...]

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.of_network[0])


@dataclass(frozen=True, eq=False)
class Statistics:
    """Mean (F,) and standard deviation (F,) of a speaker's features, for each network; and the map for bands that the
    recording lacks, in which these are then not its own."""

    of_network: tuple[tuple[Float32, Float32], ...]
    told: tuple[Told | None, ...]
    transforms: tuple[Placed | None, ...]  # the speaker's transform, for networks that hear it

    @property
    def unadapted(self) -> bool:
        """True if too little is known of the speaker for the transform that networks hear."""
        return any(one is not None and not one.speaker.estimated for one in self.transforms)

    def steps(self, network: int) -> list[Step]:
        """Return the steps from features of this speaker to those that a network hears."""
        return [step for step in (self.told[network], self.transforms[network]) if step is not None]

    def heard(self, features: PieceFeatures) -> PieceFeatures:
        """Return features of this speaker with missing bands filled in, and transforms beside them."""
        found = [*features.of_network]
        for number in range(len(found)):
            for step in self.steps(number):
                found[number] = step.heard(found[number])
        return PieceFeatures(tuple(found))


@dataclass(frozen=True, eq=False)
class Hearing:
    """A network of a packed model, with the features it reads and its weight among the others.

    Features (T, F) are those that are computed from audio, unless it is said that transforms of speakers are beside
    them."""

    model: AcousticModel
    weight: float  # of its log-likelihoods beside those of other networks
    features: FeatureConfig
    usual: tuple[Float32, Float32]  # mean and standard deviation of an average training speaker's features
    upper: npt.NDArray[np.float64] | None = None
    """The map from lower bands to those that a recording lacks; None if there is none."""
    spread: SpeakerSpread | None = None
    """Differences between training speakers; None if not known."""

    @classmethod
    def of(cls, packed: PackedNetwork, model: AcousticModel) -> "Hearing":
        usual = (np.array(packed.usual_mean, np.float32), np.array(packed.usual_std, np.float32))
        upper = weights_of(packed.upper) if packed.upper else None
        spread = SpeakerSpread.of_rows(packed.spread) if packed.spread else None
        return cls(model, packed.weight, packed.features, usual, upper, spread)

    @property
    def parts(self) -> Sequence[StoredPart]:
        """The columns of the network's features, transforms among them."""
        return self.model.module.frontend.parts

    @cached_property
    def computed(self) -> Bools:
        """True (F,) for those of the network's columns that are computed from audio."""
        return np.repeat([part.filterbank for part in self.parts], [part.width for part in self.parts])

    @property
    def bands(self) -> slice:
        """The first filterbank's columns."""
        return slice(0, next(part.width for part in self.parts if part.filterbank))

    def beside_transforms(self, statistics: tuple[Float32, Float32]) -> tuple[Float32, Float32]:
        """Return mean (F,) and deviation (F,) of all columns of the network; transforms have 0 and 1."""
        if self.computed.all():
            return statistics
        mean, std = np.zeros(len(self.computed), np.float32), np.ones(len(self.computed), np.float32)
        mean[self.computed], std[self.computed] = statistics
        return mean, std

    @property
    def _own_parts(self) -> Sequence[StoredPart]:
        return [part for part in self.parts if part.filterbank]

    def filterbanks(self, samples: Float32, rate: int) -> Float32:
        """Return the features (T, F) of samples (N,)."""
        wave = torch.from_numpy(samples)
        found = [fbank(wave, rate, part.fbank).numpy() for part in self.features.filterbanks]
        return self.with_rooms(found[0] if len(found) == 1 else np.concatenate(found, axis=1))

    def with_rooms(self, features: Float32) -> Float32:
        """Replace frames without any sound, as a muted microphone or an editor leaves, by those of a quiet room; return
        features (T, F).

        The logarithm of nothing lies nine deviations below speech: a second of it on either side spoils the speaker's
        mean and deviation, and with them all words. A frame counts as without sound if it is further below the loudest
        than any of speech (3.6 deviations of the average training speaker, in 301 recordings). A model of speech with
        such pauses has so large a deviation that no frame counts.
        """
        if not len(features):
            return features
        mean, std = self.usual
        loudness = features.mean(1)
        nothing = loudness.max() < np.log(LOG_FLOOR) + 1
        quiet = loudness < (mean.mean() if nothing else loudness.max()) - _DEEPEST * std.mean()
        if not quiet.any():
            return features
        louder = 0.0 if nothing else loudness[~quiet].mean() - mean.mean()
        result = features.copy()
        result[quiet] = mean - _ROOM * std + louder
        return result

    def between_silences(self, features: Float32) -> slice:
        """Return the frames of features (T, F) from the first with sound to the last: silence on either side, however
        long it is, has no words, and tells nothing of a speaker. Pauses between words do, for training speakers have
        them."""
        sound = np.flatnonzero(self.sounding(features))
        return slice(int(sound[0]), int(sound[-1]) + 1) if len(sound) else slice(0, len(features))

    def sounding(self, features: Float32) -> Bools:
        """Return (T,) True for the frames of features (T, F) with any sound."""
        mean, std = self.usual
        found: Bools = np.ptp(features - (mean - _ROOM * std), axis=1) > _ROOM_AT_MOST
        return found

    def telephone(self, features: Float32, rate: int) -> Float32:
        """Return those log mel energies (T, B) of features (T, F) whose bands a telephone transmits."""
        bank = self.features.filterbanks[0].fbank
        return features[:, : max(2, int((band_centres(bank, rate) <= _TELEPHONE).sum()))]

    def statistics(self, pieces: Sequence[Float32], exact: bool) -> tuple[tuple[Float32, Float32], Told | None]:
        """Return the mean and standard deviation over all frames of the pieces, unless `exact` made up where they are
        few; and the map for the bands that they lack."""
        pieces = [piece[self.between_silences(piece)] for piece in pieces]
        if not sum(map(len, pieces)):
            return self.usual, None
        frames = None if exact else sum(map(len, pieces))
        mean, std = self._moments(pieces)
        if self.upper is None or not len(columns := lacking(self.upper, mean, self.usual[0])):
            return self._made_up(mean, std, frames), None
        lower = lower_bands(self.upper)
        louder = (mean - self.usual[0])[:lower].mean()
        mean[columns], std[columns] = self.usual[0][columns] + louder, self.usual[1][columns]
        told = Told(columns, self.upper[columns - lower], self._made_up(mean, std, frames))
        return self._made_up(*self._moments([told.heard(piece) for piece in pieces]), frames), told

    def _moments(self, pieces: Sequence[Float32]) -> tuple[Float32, Float32]:
        sums = SpeakerSums()
        for piece in pieces:
            sums.add(_ONLY, piece)
        found = sums.finish(self._own_parts)
        return found.mean[0], found.std[0]

    def _made_up(self, mean: Float32, std: Float32, frames: int | None) -> tuple[Float32, Float32]:
        """Complete the statistics of `frames` frames (None: enough) by expected ones: those of the average training
        speaker at this recording's loudness, which a second of speech tells; or, if it is known how speakers differ, of
        a speaker who differs from that as these frames suggest."""
        share = 1.0 if frames is None else min(1.0, frames / ENOUGH_FRAMES)
        width = 1.0 if frames is None else min(1.0, frames / ENOUGH_FOR_DEVIATIONS) if self.spread else share
        if frames is None or min(share, width) >= 1:
            return mean, std
        usual, wide = self.usual
        likely = usual + loudness((mean - usual).astype(np.float64), self._own_parts)
        if self.spread is None:
            variance = share * np.square(std) + (1 - share) * np.square(wide)
            return (share * mean + (1 - share) * likely).astype(np.float32), np.sqrt(variance).astype(np.float32)
        likely += self.spread.means.expected(mean - likely, frames)
        wider = np.log(std.astype(np.float64) / wide)
        wider = width * wider + (1 - width) * self.spread.deviations.expected(wider, frames)
        return (share * mean + (1 - share) * likely).astype(np.float32), (wide * np.exp(wider)).astype(np.float32)

    def scores(self, features: Float32, statistics: tuple[Float32, Float32], rate: int) -> Float32:
        """Return the network's unscaled log-likelihoods (T, S) of features (T, F), transforms among them."""
        mean, std = statistics
        frames = np.array([len(features)])
        store = FeatureStore(
            Path(_ONLY),
            features,
            (_ONLY,),
            np.array([0, len(features)]),
            np.zeros(1, np.int32),
            SpeakerStats((_ONLY,), mean[None], std[None], frames),
            rate,
            {},
            tuple(self.parts),
        )
        return log_likelihoods(self.model.module, store, _ONLY, self.model.prior)


def checked(samples: Float32) -> Float32:
    """Check samples, and return them.

    Raises:
        UserError: they are not one channel of float32 between -1 and 1, or have NaN or infinity.
    """
    if samples.ndim != 1:
        raise UserError(f"Samples of one channel are expected, (N,), not an array of shape {samples.shape}.")
    if samples.dtype != np.float32:
        raise UserError(
            f"Samples are {samples.dtype}; float32 between -1 and 1 is expected. Of 16-bit integers: "
            "(samples / 32768).astype('float32')."
        )
    if not np.isfinite(samples).all():
        raise UserError(f"Sample {int(np.isfinite(samples).argmin())} is NaN or infinite.")
    return np.ascontiguousarray(samples)
