"""Transforms of speakers (fMLLR) in a packed model, estimated from what is heard of them, as `roundelay adapt` does.

Mixtures find tied states on the model's graph, first those of all speakers, then, pass by pass, those of transformed
frames. The transform that fits the last of them stays (docs/adaptation.md).

PROJECTION, INDEPENDENT, ADAPTED of adapt/folder.py are the models, beside packed.json.

Legend: T frames, B bands of the filterbank, C cepstra, S spliced cepstra, D dimensions, F features of a network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.adapt.estimating import speech_weights
from roundelay_speech.adapt.fmllr import Estimate, estimate
from roundelay_speech.adapt.folder import read_models
from roundelay_speech.adapt.sat import Models, projected
from roundelay_speech.data.arrays import Float32, Float64
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.decode.parallel import Decoders, decoder_here
from roundelay_speech.hmm.gmm import CEPSTRA, STD_FLOOR, cepstral_matrix
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.packed.folder import PackedAdaptation

ENOUGH_FOR_CEPSTRA = 500
"""Frames of a speaker from which mean and deviations of cepstra are known well enough."""
ENOUGH_SPEECH = 2000
"""Frames of speech from which transforms are those of `roundelay adapt`; those of less are kept near the identity."""
LEAST_SPEECH = 30
"""Frames of speech below which a transform is the identity."""
_PRIOR = 300.0  # frames, as of `fmllr.accumulate`, beside no speech at all; of 30, 100 and 300 the best on AN4's dev


@final
@dataclass(frozen=True, eq=False)
class SpeakerFrames:
    """The way from a filterbank's bands to a speaker's transformed frames."""

    mean: Float64  # (C,) of the speaker's cepstra
    std: Float64  # (C,)
    matrix: Float64  # (D, S + 1), of spliced cepstra: projection and transform, offset last
    context: int  # frames on each side that are spliced
    estimated: bool = False  # False: the transform is the identity, for want of speech

    def __call__(self, bands: Float32) -> Float32:
        """Return the transformed frames (T, D) of an utterance's bands (T, B)."""
        cepstra = (bands @ cepstral_matrix(bands.shape[1]) - self.mean) / self.std
        return projected(cepstra.astype(np.float32), np.array([0, len(bands)]), self.matrix, self.context)


@final
@dataclass(frozen=True, eq=False)
class Placed:
    """A speaker's transformed frames among the other features of a network."""

    speaker: SpeakerFrames
    bands: slice  # columns of the filterbank among computed features
    computed: npt.NDArray[np.bool_]  # (F,) True for the network's features that are computed from audio

    @property
    def reach(self) -> int:
        """Frames on each side that a frame depends on."""
        return self.speaker.context

    def heard(self, features: Float32) -> Float32:
        """Return all features (T, F) of a network, from those that are computed from audio."""
        result = np.empty((len(features), len(self.computed)), np.float32)
        result[:, self.computed] = features
        result[:, ~self.computed] = self.speaker(features[:, self.bands])
        return result


@final
@dataclass(frozen=True, eq=False)
class Adapting:
    """The estimation of speakers' transforms by a packed model."""

    models: Models
    how: PackedAdaptation
    tying: Tying
    decoder: Decoders

    @classmethod
    def of(cls, folder: Path, how: PackedAdaptation, graph: Graph, tying: Tying) -> "Adapting":
        """Load the models in the folder of a packed model.

        Raises:
            UserError: a file is missing or broken, or they are of other sizes than the model.
        """
        models = read_models(folder)
        size, width = models.projection.shape if models.projection.ndim == 2 else (0, 0)
        cepstra = len(how.usual_std)
        fits = width == cepstra * (2 * models.context + 1) + 1 and np.isfinite(models.projection).all()
        for mixtures in (models.independent, models.adapted):
            first, means, variances, weights = mixtures.first, mixtures.means, mixtures.variances, mixtures.weights
            fits &= first.shape == (graph.num_pdfs + 1,) and first[0] == 0 and bool((np.diff(first) > 0).all())
            fits &= means.shape == variances.shape == (first[-1], size) and weights.shape == (first[-1],)
            fits &= bool(np.isfinite(means).all() and (variances > 0).all() and (weights > 0).all())
        if not fits or cepstra != CEPSTRA:
            raise UserError(f"{folder}: the models of its transforms are not of its {graph.num_pdfs} tied states.")
        return cls(models, how, tying, decoder_here(graph))

    @property
    def dimension(self) -> int:
        """Width D of transformed frames."""
        return len(self.models.projection)

    def speaker(
        self, pieces: Sequence[Float32], mean: Float32, *, exact: bool, transform: bool = True
    ) -> SpeakerFrames:
        """Return the transformed frames of one speaker.

        Args:
            pieces: bands (T, B) of the speech that is known of the speaker.
            mean: (B,) of the speaker's bands, made up where they are few.
            exact: True to do as `roundelay adapt`; False to complete deviations of little speech by those of the
                average training speaker, and to keep its transform near the identity.
            transform: False to estimate none.
        """
        turn = cepstral_matrix(len(mean))
        cepstra = np.concatenate([np.zeros((0, turn.shape[1])), *(piece @ turn for piece in pieces)])
        frames = len(cepstra)
        variance = cepstra.var(0) if frames else np.zeros(len(self.how.usual_std))
        share = 1.0 if exact and frames else min(1.0, frames / ENOUGH_FOR_CEPSTRA)
        variance = share * variance + (1 - share) * np.square(self.how.usual_std)
        plain = SpeakerFrames(
            mean.astype(np.float64) @ turn, np.sqrt(variance) + STD_FLOOR, self.models.projection, self.models.context
        )
        if not transform or not frames:
            return plain
        found = self._transform([plain(piece) for piece in pieces if len(piece)], exact)
        if not found.objective:
            return plain
        turned = found.transform.matrix[:, :-1] @ plain.matrix
        turned[:, -1] += found.transform.matrix[:, -1]
        return replace(plain, matrix=turned, estimated=True)

    def _transform(self, pieces: Sequence[Float32], exact: bool) -> Estimate:
        """Estimate the transform of frames (T, D) by all passes; `exact` as of `speaker`."""
        frames, mixtures, mapped = np.concatenate(pieces), self.models.independent, pieces
        for search in self.how.passes:
            jobs = ((str(number), mixtures.loglikes(piece)) for number, piece in enumerate(mapped))
            paths = self.decoder.search(jobs, search.decoding()).hypotheses
            pdfs = np.full(len(frames), -1, np.int32)
            begin = 0
            for number, piece in enumerate(pieces):
                if len(path := paths[str(number)].pdfs) == len(piece):
                    pdfs[begin : begin + len(piece)] = path
                begin += len(piece)
            weights = speech_weights(pdfs, self.tying, self.how.silence_weight)
            mixtures = self.models.adapted
            prior = 0.0 if exact else max(0.0, _PRIOR * (1 - float(weights.sum()) / ENOUGH_SPEECH))
            rounds, least = self.how.em_rounds, LEAST_SPEECH if prior else self.how.min_frames
            found = estimate(mixtures, frames, pdfs, weights, rounds=rounds, least=least, prior=prior)
            mapped = [found.transform(piece) for piece in pieces]
        return found
