"""Scores of an utterance that is still being said, by all networks of a packed model: each frame is evaluated once.

Legend: N samples, B rows of scores, S columns.
"""

from dataclasses import replace
from typing import final

import numpy as np
import torch

from roundelay_speech.data.arrays import Bools, Float32
from roundelay_speech.models.frames import scaled
from roundelay_speech.models.network import Streamed
from roundelay_speech.packed.hearing import Statistics
from roundelay_speech.packed.model import Model
from roundelay_speech.packed.upper import Telling

_GAP = 10
"""Frames without sound that speech may have: a stop's closure behind a gate. What follows is silence."""


@final
class GrowingScores:
    """Log-likelihoods of one utterance, as its samples come: those of `Model.scores`, to rounding, but for frames
    without sound: of these it is not known whether they are the last.

    Args:
        model: a packed model.
        known: statistics of the speaker.

    Raises:
        ValueError: a network needs the whole utterance (`whole_only` names it).
    """

    def __init__(self, model: Model, known: Statistics) -> None:
        self._model, self._shift = model, round(model.frame_seconds * model.sample_rate)
        self._networks: list[Streamed] = []
        for hearing, (mean, std) in zip(model.hearings, known.of_network, strict=True):
            streamed = hearing.model.module.streamed(torch.from_numpy(mean), torch.from_numpy(std))
            if streamed is None:
                raise ValueError(f"{_name_of(hearing.model.module)} needs the whole utterance")
            self._networks.append(streamed)
        self._telling = [[Telling(step) for step in known.steps(n)] for n in range(len(self._networks))]
        self._silent, self._sounding = 0, np.zeros(0, bool)  # frames without sound till now; those without a score
        self._held = np.zeros(0, np.float32)  # samples from the first frame on that is not whole
        self._ready = [np.zeros((0, hearing.model.module.columns), np.float32) for hearing in model.hearings]

    @property
    def delay(self) -> float:
        """Most seconds of audio that come, from the beginning of a sound on, before the sound is in the scores."""
        config, rate = self._model.hearings[0].features.frames, self._model.sample_rate
        overlap = config.frame_length(rate) - self._shift
        frames = max(
            network.delay + sum(one.delay for one in telling)
            for network, telling in zip(self._networks, self._telling, strict=True)
        )
        return (frames * self._shift + overlap) / rate

    def push(self, samples: Float32, *, together: bool = False) -> Float32:
        """Return unscaled log-likelihoods (B, S) that these samples (N,), after all that came before, decide.

        Args:
            together: as for `Streamed.push`.
        """
        self._held = np.concatenate([self._held, samples])
        features = self._model.features(self._held)
        self._held = self._held[len(features) * self._shift :]
        for number, hearing in enumerate(self._model.hearings):
            heard = features.of_network[number]
            for telling in self._telling[number]:
                heard = telling.push(heard)
            scores = self._networks[number].push(torch.from_numpy(heard), together=together)
            part = scaled(scores, hearing.model.prior)
            if len(self._networks) > 1:
                part *= hearing.weight
            self._ready[number] = np.concatenate([self._ready[number], part])
        rows = min(map(len, self._ready))
        found: Float32 = np.sum([some[:rows] for some in self._ready], axis=0, dtype=np.float32)
        self._ready = [some[rows:] for some in self._ready]
        self._note(self._model.hearings[0].sounding(features.of_network[0]))
        every = self._model.hearings[0].model.module.subsampling
        self._model.silence(found, ~self._sounding[: rows * every : every])
        self._sounding = self._sounding[rows * every :]
        return found

    def _note(self, sounding: Bools) -> None:
        """Take which of the next frames have sound; a gap counts as sound."""
        heard = []
        for one in sounding.tolist():
            self._silent = 0 if one else self._silent + 1
            heard.append(self._silent <= _GAP)
        self._sounding = np.concatenate([self._sounding, np.array(heard, bool)])


def in_chunks(model: Model, frames: int | None) -> Model:
    """Return the model with its networks evaluated in chunks of `frames` frames (fewer are faster, more are better);
    None: unchanged.

    Raises:
        UserError: a network was not trained for that.
    """
    if frames is None:
        return model
    hearings = []
    for hearing in model.hearings:
        network = replace(hearing.model, module=hearing.model.module.in_chunks(frames))
        hearings.append(replace(hearing, model=network))
    return replace(model, hearings=tuple(hearings))


def whole_only(model: Model) -> list[str]:
    """Return the names of a model's networks that need the whole utterance, each kind once."""
    needed = []
    for hearing in model.hearings:
        mean, std = (torch.from_numpy(some) for some in hearing.beside_transforms(hearing.usual))
        if hearing.model.module.streamed(mean, std) is None:
            needed.append(_name_of(hearing.model.module))
    return sorted(set(needed))


def _name_of(network: torch.nn.Module) -> str:
    return type(network).__name__.lower()
