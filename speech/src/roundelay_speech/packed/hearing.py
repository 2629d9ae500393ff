"""From samples to log-likelihoods, as `prepare` and `decode` come to them, without files.

Legend: N samples, T frames, F features, S tied states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from roundelay.core.errors import UserError
from roundelay_speech.features.fbank import band_centres, fbank
from roundelay_speech.features.parts import FeatureConfig
from roundelay_speech.features.store import FeatureStore, SpeakerStats, SpeakerSums, StoredPart
from roundelay_speech.models.frames import log_likelihoods
from roundelay_speech.packed.folder import PackedNetwork
from roundelay_speech.packed.upper import Told, lacking, lower_bands, weights_of
from roundelay_speech.trained import AcousticModel

Float32 = npt.NDArray[np.float32]

ENOUGH_FRAMES = 500
"""Frames of a speaker that say enough of how they speak: five seconds. Of fewer, what is missing is made up."""
_TELEPHONE = 3400.0  # Hz
_ONLY = "speech"  # name of the utterance, and of its speaker, in a store of one


@dataclass(frozen=True, eq=False)
class PieceFeatures:
    """Features (T, F) of a piece of audio, for each network in turn; those of one kind are there once."""

    of_network: tuple[Float32, ...]

    def __len__(self) -> int:
        """Return frames."""
        return len(self.of_network[0])


@dataclass(frozen=True, eq=False)
class Statistics:
    """Mean (F,) and standard deviation (F,) of a speaker's features, for each network in turn; and what tells the bands
    that the recording lacks, whose own these are then not."""

    of_network: tuple[tuple[Float32, Float32], ...]
    told: tuple[Told | None, ...]

    def heard(self, features: PieceFeatures) -> PieceFeatures:
        """Return features of this speaker with the bands that they lack."""
        both = zip(features.of_network, self.told, strict=True)
        return PieceFeatures(tuple(one if told is None else told.heard(one) for one, told in both))


@dataclass(frozen=True, eq=False)
class Hearing:
    """A network, and what it hears."""

    model: AcousticModel
    weight: float  # of its log-likelihoods beside those of other networks
    features: FeatureConfig
    usual: tuple[Float32, Float32]  # mean and standard deviation of an average training speaker's features
    upper: npt.NDArray[np.float64] | None = None
    """The map that tells bands which a recording lacks; None where there is none."""

    @classmethod
    def of(cls, packed: PackedNetwork, model: AcousticModel) -> "Hearing":
        usual = (np.array(packed.usual_mean, np.float32), np.array(packed.usual_std, np.float32))
        upper = weights_of(packed.upper) if packed.upper else None
        return cls(model, packed.weight, packed.features, usual, upper)

    @property
    def parts(self) -> Sequence[StoredPart]:
        """The columns of its features."""
        return self.model.module.frontend.parts

    def filterbanks(self, samples: Float32, rate: int) -> Float32:
        """Return features (T, F) of samples (N,)."""
        wave = torch.from_numpy(samples)
        found = [fbank(wave, rate, part.fbank).numpy() for part in self.features.filterbanks]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def telephone(self, features: Float32, rate: int) -> Float32:
        """Return (T, B) log mel energies of what a telephone lets through, of features (T, F)."""
        bank = self.features.filterbanks[0].fbank
        return features[:, : max(2, int((band_centres(bank, rate) <= _TELEPHONE).sum()))]

    def statistics(self, pieces: Sequence[Float32], exact: bool) -> tuple[tuple[Float32, Float32], Told | None]:
        """Return the mean and standard deviation over all frames of the pieces, unless `exact` made up where they are
        few; and what tells the bands that they lack."""
        if not sum(map(len, pieces)):
            return self.usual, None
        share = 1.0 if exact else sum(map(len, pieces)) / ENOUGH_FRAMES
        mean, std = self._moments(pieces)
        if self.upper is None or not len(columns := lacking(self.upper, mean, self.usual[0])):
            return self._made_up(mean, std, share), None
        lower = lower_bands(self.upper)
        louder = (mean - self.usual[0])[:lower].mean()
        mean[columns], std[columns] = self.usual[0][columns] + louder, self.usual[1][columns]
        told = Told(columns, self.upper[columns - lower], self._made_up(mean, std, share))
        return self._made_up(*self._moments([told.heard(piece) for piece in pieces]), share), told

    def _moments(self, pieces: Sequence[Float32]) -> tuple[Float32, Float32]:
        sums = SpeakerSums(len(self.usual[0]))
        for piece in pieces:
            sums.add(_ONLY, piece)
        found = sums.finish(self.parts)
        return found.mean[0], found.std[0]

    def _made_up(self, mean: Float32, std: Float32, share: float) -> tuple[Float32, Float32]:
        """Return statistics of a `share` of the frames that are enough, the rest those of the average training speaker:
        as loud as this recording is, for that a second of speech tells."""
        if share >= 1:
            return mean, std
        likely = self.usual[0].copy()
        first = 0
        for part in self.parts:
            columns = slice(first, first + part.width)
            if part.normalise != "none":
                likely[columns] += (mean[columns] - likely[columns]).mean()
            first += part.width
        variance = share * np.square(std) + (1 - share) * np.square(self.usual[1])
        return (share * mean + (1 - share) * likely).astype(np.float32), np.sqrt(variance).astype(np.float32)

    def scores(self, features: Float32, statistics: tuple[Float32, Float32], rate: int) -> Float32:
        """Return (T, S) log-likelihoods, unscaled."""
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
    """Return the samples, if they can be heard.

    Raises:
        UserError: not one channel of float32 between -1 and 1, or NaN or infinity among them.
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
