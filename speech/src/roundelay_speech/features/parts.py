"""Parts of the features of an utterance: filterbanks of its audio, and matrices from elsewhere.

Legend: F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from roundelay.core.errors import UserError
from roundelay_speech.audio.reading import AudioError, audio_path, read_audio
from roundelay_speech.data.manifest import Utterance, is_one_word, repeated
from roundelay_speech.features.external import ExternalError, Matrices
from roundelay_speech.features.fbank import FbankConfig, fbank
from roundelay_speech.features.store import (
    Float32,
    StoredPart,
)


@dataclass(frozen=True)
class Filterbank:
    """Log mel energies of the audio."""

    kind: Literal["fbank"] = "fbank"
    name: str = "fbank"
    fbank: FbankConfig = FbankConfig()
    deltas: int = 2  # orders of deltas that networks see beside it: 0, 1 or 2
    # `speaker`, by the mean and standard deviation over the speaker's frames, or `none`.
    normalise: Literal["speaker", "none"] = "speaker"
    spliced: bool = True  # with its neighbours, where a network splices frames; else the frame alone


@dataclass(frozen=True)
class External:
    """Matrices from elsewhere, by utterance; see `external` for the kinds of source, `Filterbank` for the rest."""

    kind: Literal["external"] = "external"
    name: str = "external"
    source: Path = Path()
    # frames that a row stands for: 1; 10 as Kaldi's online i-vectors have; 0, one row for all of an utterance, its own
    # or its speaker's.
    every: int = 1
    deltas: int = 0
    normalise: Literal["speaker", "none"] = "none"
    spliced: bool = True
    # identity of the models that made them, if they have one: a network knows features by others for others.
    made_by: str = ""


@dataclass(frozen=True)
class FeatureConfig:
    """Parts that are stored side by side."""

    parts: tuple[Filterbank | External, ...] = (Filterbank(),)  # in the order of their columns
    tolerance: int = 0  # frames that the parts of an utterance may differ by; the shortest decides

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        problems = [f"{name}: the name is there twice" for name in repeated(names)]
        problems += [f"{name!r}: no name" for name in names if not is_one_word(name) or "/" in name]
        problems += [f"{p.name}: deltas is {p.deltas}: 0, 1 or 2" for p in self.parts if not 0 <= p.deltas <= 2]
        problems += [
            f"{p.name}: every is {p.every}: 0 or more" for p in self.parts if isinstance(p, External) and p.every < 0
        ]
        if len({(p.fbank.frame_length_ms, p.fbank.frame_shift_ms) for p in self.filterbanks}) > 1:
            problems.append("all filterbanks must have the same frames")
        if not self.parts or self.tolerance < 0:
            problems.append("give at least one part, and a tolerance of 0 or more frames")
        if problems:
            raise UserError(f"Features: {'; '.join(problems)}.")

    @property
    def filterbanks(self) -> list[Filterbank]:
        """Parts that are computed from the audio."""
        return [part for part in self.parts if isinstance(part, Filterbank)]

    @property
    def externals(self) -> list[External]:
        """Parts that are read from files."""
        return [part for part in self.parts if isinstance(part, External)]

    @property
    def frames(self) -> FbankConfig:
        """Framing of the utterances: that of the filterbanks."""
        return self.filterbanks[0].fbank if self.filterbanks else FbankConfig()

    @property
    def folder(self) -> str:
        """Name of the store's folder in a corpus."""
        return "-".join(f"{p.name}{p.fbank.num_bins}" if isinstance(p, Filterbank) else p.name for p in self.parts)


def only_fbank(config: FbankConfig) -> FeatureConfig:
    """Return one filterbank."""
    return FeatureConfig((Filterbank(fbank=config),))


@dataclass(frozen=True, eq=False)
class Sources:
    """Everything a worker needs for every utterance."""

    audio_folder: Path
    config: FeatureConfig
    matrices: Mapping[str, Matrices]
    rate: int | None = None  # Hz, that audio is resampled to; None: that of its file

    @classmethod
    def of(cls, audio_folder: Path, config: FeatureConfig, rate: int | None = None) -> "Sources":
        return cls(audio_folder, config, {part.name: Matrices.open(part.source) for part in config.externals}, rate)


def features_of(utterance: Utterance, sources: Sources) -> Float32:
    """Return the features of one utterance, (its frames, F).

    Raises:
        AudioError: its audio cannot be used, is shorter than a frame, or its features are NaN or infinite.
        ExternalError: a part is missing or has another number of frames.
    """
    config = sources.config
    where = f"{utterance.id}: {audio_path(utterance, sources.audio_folder)}"
    found: dict[str, Float32] = {}
    if config.filterbanks:
        rate = sources.rate or utterance.sampling_rate
        wave = torch.from_numpy(read_audio(utterance, sources.audio_folder, rate))
        for part in config.filterbanks:
            features: Float32 = fbank(wave, rate, part.fbank, utterance.warp).numpy()
            if not len(features):
                raise AudioError(
                    f"{where}: {1000 * len(wave) / rate:.0f} ms are shorter than one frame of "
                    f"{part.fbank.frame_length_ms:g} ms"
                )
            if not np.isfinite(features).all():
                frame = int(np.isfinite(features).all(axis=1).argmin())
                raise AudioError(
                    f"{where}: the features of frame {frame} are NaN or infinite; its samples are out of all bounds"
                )
            found[part.name] = features
    lengths = {name: len(features) for name, features in found.items()}
    for external in config.externals:
        found[external.name] = _given(sources, external, utterance)
        if external.every == 1:
            lengths[external.name] = len(found[external.name])
    if not lengths:
        raise ExternalError(f"{utterance.id}: no part says how many frames there are")
    if max(lengths.values()) - min(lengths.values()) > config.tolerance:
        raise ExternalError(
            f"{utterance.id}: its parts differ in frames: {', '.join(f'{n} {v}' for n, v in lengths.items())}"
        )
    frames = min(lengths.values())
    parts = [
        found[p.name][:frames]
        if isinstance(p, Filterbank) or p.every == 1
        else _stretched(found[p.name], frames, p, utterance.id, config.tolerance)
        for p in config.parts
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _given(sources: Sources, part: External, utterance: Utterance) -> Float32:
    """Return the rows of an utterance; a single one for all of its frames may be its speaker's."""
    return sources.matrices[part.name].get(utterance.id, utterance.speaker if part.every == 0 else None)


def _stretched(rows: Float32, frames: int, part: External, name: str, tolerance: int) -> Float32:
    """Repeat each row for `every` frames (0: the only row for all)."""
    if part.every == 0:
        if len(rows) != 1:
            raise ExternalError(f"{name}: {part.name} has {len(rows)} rows, where one vector is expected (every: 0)")
        return np.repeat(rows, frames, axis=0)
    if len(rows) * part.every + tolerance < frames or (len(rows) - 1) * part.every - tolerance >= frames:
        raise ExternalError(
            f"{name}: {part.name} has {len(rows)} rows of {part.every} frames, for {frames} frames in all"
        )
    return rows[np.minimum(np.arange(frames) // part.every, len(rows) - 1)]


def stored_parts(sources: Sources, utterance: Utterance) -> tuple[StoredPart, ...]:
    """Return the columns of a store; how wide matrices from elsewhere are, an utterance tells."""
    return tuple(
        StoredPart(p.name, p.fbank.num_bins, p.deltas, p.normalise, p.spliced)
        if isinstance(p, Filterbank)
        else StoredPart(p.name, _given(sources, p, utterance).shape[1], p.deltas, p.normalise, p.spliced, False)
        for p in sources.config.parts
    )
