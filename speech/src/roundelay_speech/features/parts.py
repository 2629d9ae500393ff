"""Parts of the features of an utterance: filterbanks of its audio, and matrices from elsewhere.

Matrices computed elsewhere (fMLLR, i-vectors, or others with an utterance's name) are looked up by utterance,
vectors of a whole utterance also by its speaker: in a Kaldi script file (`feats.scp`) or archive, an `.npz` file with
an array for each, or a folder of ID.npy. Nothing is unpickled.

Legend: T frames of an utterance, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from roundelay.core.errors import UserError
from roundelay_speech.audio.reading import AudioError, audio_path, read_audio
from roundelay_speech.data.arrays import BROKEN, Float32
from roundelay_speech.data.manifest import Utterance, is_one_word, repeated
from roundelay_speech.features.fbank import FbankConfig, fbank
from roundelay_speech.features.store import StoredPart
from roundelay_speech.kaldi_io.locations import ArchiveError, parse_location, read_scp
from roundelay_speech.kaldi_io.objects import read_archive, read_matrix


class ExternalError(UserError):
    """An utterance has no matrix, or an unusable one."""


@dataclass(frozen=True, eq=False)
class Matrices:
    """The places of the matrices of a corpus; small enough to be sent to worker processes, except archives."""

    source: Path
    places: Mapping[str, str]  # of a script file; empty for other kinds
    held: Mapping[str, Float32]  # of an archive, which has no index

    @classmethod
    def open(cls, source: Path) -> "Matrices":
        """Open a source of matrices: an archive or a folder.

        Raises:
            UserError: the source is missing, or of an unknown kind.
        """
        if source.is_dir():
            return cls(source, {}, {})
        if source.suffix == ".scp":
            return cls(source, read_scp(source), {})
        if source.suffix == ".npz":
            if not source.is_file():
                raise UserError(f"{source}: no such file.")
            return cls(source, {}, {})
        if source.suffix in (".ark", ".gz"):
            held = {name: np.asarray(matrix, np.float32) for name, matrix in read_archive(source, "rows")}
            return cls(source, {}, held)
        raise UserError(f"{source}: not a .scp, .ark, .npz file nor a folder of .npy files.")

    def get(self, utterance: str, speaker: str | None = None) -> Float32:
        """Return the matrix (T, F) of an utterance, or else that of its speaker; a vector (F,) becomes (1, F).

        Raises:
            ExternalError: the matrix is missing or broken, or holds NaN or infinity.
        """
        try:
            found = self._found(utterance)
            if found is None and speaker is not None:
                found = self._found(speaker)
        except ArchiveError as error:
            raise ExternalError(f"{utterance}: {error}") from None
        if found is None:
            or_speaker = "" if speaker is None else f", nor is its speaker {speaker}"
            raise ExternalError(f"{utterance}: not in {self.source}{or_speaker}")
        if found.ndim not in (1, 2) or found.dtype.kind not in "fiu" or not found.size:
            raise ExternalError(f"{utterance}: {self.source}: {found.dtype} of shape {found.shape} is no matrix")
        matrix = np.atleast_2d(found).astype(np.float32)
        if not np.isfinite(matrix).all():
            row = int(np.isfinite(matrix).all(axis=1).argmin())
            raise ExternalError(f"{utterance}: {self.source}: row {row} holds NaN or infinity")
        return matrix

    def _found(self, utterance: str) -> npt.NDArray[np.generic] | None:
        """Return an utterance's matrix from the source, or None if the source lacks it."""
        if self.source.suffix == ".scp":
            place = self.places.get(utterance)
            if place is None:
                return None
            # As Kaldi: relative to where the command is given; else beside the script file.
            beside = not parse_location(place).path.exists()
            return read_matrix(place, self.source.parent if beside else Path(), "rows")
        if self.held or self.source.suffix in (".ark", ".gz"):
            return self.held.get(utterance)
        try:
            if self.source.suffix == ".npz":
                with np.load(self.source, allow_pickle=False) as arrays:
                    held: npt.NDArray[np.generic] | None = arrays.get(utterance)
                    return held
            path = self.source / f"{utterance}.npy"
            return np.load(path, allow_pickle=False) if path.is_file() else None
        except BROKEN as error:
            raise ExternalError(f"{utterance}: {self.source}: cannot be read ({error})") from None


@dataclass(frozen=True)
class Filterbank:
    """A part of features: log mel energies of the audio."""

    kind: Literal["fbank"] = "fbank"
    name: str = "fbank"
    fbank: FbankConfig = FbankConfig()
    deltas: int = 2  # orders of deltas that networks see beside it: 0, 1 or 2
    # `speaker`, by the mean and standard deviation over the speaker's frames, or `none`.
    normalise: Literal["speaker", "none"] = "speaker"
    spliced: bool = True  # with its neighbours, where a network splices frames; else the frame alone


@dataclass(frozen=True)
class External:
    """A part of features: matrices from elsewhere, by utterance; see `external` for the kinds of source, `Filterbank`
    for the rest."""

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
    """The configuration of features: parts that are stored side by side."""

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
        """The parts that are computed from the audio."""
        return [part for part in self.parts if isinstance(part, Filterbank)]

    @property
    def externals(self) -> list[External]:
        """The parts that are read from files."""
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
    """Return features that are one filterbank."""
    return FeatureConfig((Filterbank(fbank=config),))


@dataclass(frozen=True, eq=False)
class Sources:
    """Everything that a worker needs to make features of utterances."""

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
        AudioError: the audio cannot be used, is shorter than a frame, or gives NaN or infinity.
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
    """Return the rows of a part for an utterance; a single row for all frames may be its speaker's."""
    return sources.matrices[part.name].get(utterance.id, utterance.speaker if part.every == 0 else None)


def _stretched(rows: Float32, frames: int, part: External, name: str, tolerance: int) -> Float32:
    """Repeat each row for `every` frames of the part (0: the only row for all frames)."""
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
    """Return the parts of a store with their columns; an utterance shows the width of matrices from elsewhere."""
    return tuple(
        StoredPart(p.name, p.fbank.num_bins, p.deltas, p.normalise, p.spliced)
        if isinstance(p, Filterbank)
        else StoredPart(p.name, _given(sources, p, utterance).shape[1], p.deltas, p.normalise, p.spliced, False)
        for p in sources.config.parts
    )
