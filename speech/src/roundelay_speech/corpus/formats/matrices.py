"""Features computed elsewhere, in Kaldi's archives: checked, and put into a feature store as they are.

Statistics for normalisation come from `cmvn.scp` where there is one (a speaker in several data directories has the
sum), and are computed per speaker where there is none.

Nothing in an archive tells the meaning of its numbers. Log energies of overlapping bands rise and fall together;
cepstra, fMLLR and bottleneck features are made so that they do not. So features whose neighbours correlate are taken
for a filterbank.

Legend: T frames of all utterances together, F features.
"""

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.checksums import write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write
from roundelay.core.progress import Progress, tracked
from roundelay_speech.data.arrays import Float32, Float64, npy_header
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted, listing
from roundelay_speech.features.store import (
    FEATURES,
    INDEX,
    SPEAKER_STATISTICS,
    STORE_VERSION,
    FeatureStore,
    SpeakerStats,
    SpeakerSums,
    StoredPart,
    file_state,
    whole_store,
    write_speakers,
)
from roundelay_speech.kaldi_io.locations import ArchiveError, parse_location
from roundelay_speech.kaldi_io.objects import read_matrix

# Correlation of neighbours above which features are a filterbank; log mel of AN4: 0.96, its cepstra: -0.01.
_TOGETHER = 0.5


@dataclass(frozen=True)
class GivenFeatures:
    """The places in archives of utterances' features, and of speakers' statistics, if there are any."""

    root: Path  # relative locations are in this folder
    features: Mapping[str, str]  # utterance -> location (see kaldi_io/locations)
    statistics: Mapping[str, Sequence[str]] | None  # speaker -> locations, to be added up
    frame_shift_ms: float
    with_audio: bool = False  # there is audio as well

    def __or__(self, other: "GivenFeatures") -> "GivenFeatures":
        """Combine the places of features of two data directories."""
        if self.frame_shift_ms != other.frame_shift_ms:
            raise UserError(
                f"The data directories have frames of {self.frame_shift_ms:g} ms and of {other.frame_shift_ms:g} ms; "
                "a corpus has one frame shift."
            )
        if self.with_audio != other.with_audio:
            raise UserError("Some of the data directories have wav.scp and some have not; give all or none.")
        if (self.statistics is None) != (other.statistics is None):
            raise UserError("Some of the data directories have cmvn.scp and some have not; give all or none.")
        both: dict[str, Sequence[str]] | None = None
        if self.statistics is not None and other.statistics is not None:
            both = dict(self.statistics)
            for speaker, places in other.statistics.items():
                # The same matrix named twice is one speaker's, not half of it.
                both[speaker] = tuple(dict.fromkeys((*both.get(speaker, ()), *places)))
        return GivenFeatures(self.root, {**self.features, **other.features}, both, self.frame_shift_ms, self.with_audio)


def check_features(
    places: Mapping[str, str], root: Path, progress: Progress
) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Check matrices of features by reading each once.

    Returns:
        The shapes of sound matrices by utterance, and reasons why the others cannot be used.
    """
    shapes: dict[str, tuple[int, int]] = {}
    reasons: dict[str, str] = {}
    for name, where in tracked(progress, "checking features", places.items()):
        try:
            matrix = read_matrix(where, root)
            if (reason := _unusable(matrix)) is None:
                shapes[name] = (len(matrix), matrix.shape[1])
            else:
                reasons[name] = f"{where}: {reason}"
        except ArchiveError as error:
            reasons[name] = str(error).rstrip(".")
    if shapes:
        width = Counter(columns for _, columns in shapes.values()).most_common(1)[0][0]
        for name in [name for name, (_, columns) in shapes.items() if columns != width]:
            reasons[name] = f"{places[name]}: {shapes.pop(name)[1]} features a frame, most have {width}"
    return shapes, reasons


def _unusable(matrix: npt.NDArray[np.floating]) -> str | None:
    if matrix.size == 0:
        return "has no frames"
    with np.errstate(over="ignore"):
        finite = np.isfinite(matrix.astype(np.float32)).all(axis=1)
    return None if finite.all() else f"frame {int(finite.argmin())} holds NaN or infinity"


def store_matrices(
    utterances: Sequence[Utterance], folder: Path, given: GivenFeatures, progress: Progress, sampling_rate: int
) -> FeatureStore:
    """Copy the features of all utterances into `folder`, in their order, unless they are there already.

    Args:
        utterances: utterances of all splits, whose matrices `check_features` found sound.
        folder: folder of the store.
        given: places of the matrices.
        progress: advances with every utterance.
        sampling_rate: sampling rate of the corpus, Hz.

    Raises:
        UserError: a matrix has become unreadable or has another number of columns, a speaker has no statistics or
            impossible ones, the disk is full. Earlier files in the folder stay.
    """
    fingerprint = _fingerprint(utterances, given)
    if (done := whole_store(folder, fingerprint)) is not None:
        return done[0]
    copied = _copy(utterances, folder, given, progress)
    speakers = copied.speakers
    write_speakers(folder / SPEAKER_STATISTICS, speakers)
    part = StoredPart("given", copied.width, filterbank=copied.correlation > _TOGETHER)
    index = {
        "version": STORE_VERSION,
        "fingerprint": fingerprint,
        "sampling_rate": sampling_rate,
        "config": {"kind": "given", "frame_shift_ms": given.frame_shift_ms},
        "parts": [dataclasses.asdict(part)],
        "frame_shift": given.frame_shift_ms / 1000,
        # Usual windows are two and a half shifts long; times of frames are the windows' centres.
        "frame_length": 2.5 * given.frame_shift_ms / 1000,
        "utterances": [u.id for u in utterances],
        "frames": copied.frames,
        "speakers": speakers.indices(utterances),
        "left_out": [],
    }
    write_checked(folder / INDEX, index, [FEATURES, SPEAKER_STATISTICS], one_line=True)
    return FeatureStore.open(folder)


@dataclass(frozen=True)
class _Copied:
    """The array of features that was copied: its size, the speakers' statistics, and the correlation of neighbours."""

    frames: list[int]  # by utterance
    width: int
    speakers: SpeakerStats
    correlation: float


def _copy(utterances: Sequence[Utterance], folder: Path, given: GivenFeatures, progress: Progress) -> _Copied:
    """Copy the matrices into the array of the store; an old index is removed once the new array is on disk."""
    progress.start("copying features", len(utterances))
    frames: list[int] = []
    width = 0
    sums = SpeakerSums()
    neighbours = _Neighbours()
    try:
        with atomic_write(folder / FEATURES) as file:
            for utterance in utterances:
                where = given.features[utterance.id]
                matrix: Float32 = read_matrix(where, given.root).astype(np.float32)
                width = width or matrix.shape[1]
                if (reason := _unusable(matrix)) is not None or matrix.shape[1] != width:
                    raise UserError(f"{utterance.id}: {where}: {reason or 'has changed'}. Run the same command again.")
                if not frames:
                    file.write(npy_header(0, width))
                file.write(matrix.tobytes())
                frames.append(len(matrix))
                double = matrix.astype(np.float64)  # sums as `compute-cmvn-stats` has them
                sums.add_sums(utterance.speaker, len(double), double.sum(0), np.square(double).sum(0))
                neighbours.add(matrix)
                progress.advance()
            speakers = sums.finish() if given.statistics is None else _statistics(utterances, given, width)
            file.seek(0)
            file.write(npy_header(sum(frames), width))
            # As for features computed here: the old index goes once the new array is safe, the new one comes last.
            file.flush()
            os.fsync(file.fileno())
            (folder / INDEX).unlink(missing_ok=True)
    finally:
        progress.finish()
    return _Copied(frames, width, speakers, neighbours.correlation())


def _fingerprint(utterances: Sequence[Utterance], given: GivenFeatures) -> str:
    """Return an identity that changes with the utterances, the archives and the parts taken from them."""
    digest = hashlib.blake2b(json.dumps([STORE_VERSION, given.frame_shift_ms]).encode(), digest_size=16)
    files: dict[Path, tuple[int, int]] = {}

    def add(names: Sequence[str], where: str) -> None:
        place = parse_location(where, given.root)
        if place.path not in files:
            files[place.path] = file_state(place.path)
        digest.update(json.dumps([*names, where, *files[place.path]]).encode())

    for u in utterances:
        digest.update(json.dumps(dataclasses.asdict(u), default=str).encode())
        add([u.id, u.speaker], given.features[u.id])
    for speaker in sorted({u.speaker for u in utterances}):
        for where in (given.statistics or {}).get(speaker, ()):
            add([speaker], where)
    return digest.hexdigest()


class _Neighbours:
    """A sum over frames for the correlation of adjacent features, in double precision."""

    def __init__(self) -> None:
        self.frames = 0
        self.sums: list[Float64] = []  # of x_i, of x_i^2, (F,) each, and of x_i x_{i+1}, (F - 1,)

    def add(self, features: Float32) -> None:
        x = features.astype(np.float64)
        new = [x.sum(0), np.square(x).sum(0), (x[:, 1:] * x[:, :-1]).sum(0)]
        self.frames += len(x)
        self.sums = [a + b for a, b in zip(self.sums, new, strict=True)] if self.sums else new

    def correlation(self) -> float:
        """Return the mean correlation of adjacent features; 0 for a single feature, and for constant ones."""
        mean, square, product = (total / self.frames for total in self.sums)
        variance = np.maximum(square - np.square(mean), 0.0)
        covariance = product - mean[1:] * mean[:-1]
        scale = np.sqrt(variance[1:] * variance[:-1])
        return float(np.mean(covariance / np.maximum(scale, 1e-12))) if len(scale) else 0.0


def _statistics(utterances: Sequence[Utterance], given: GivenFeatures, width: int) -> SpeakerStats:
    """Read speakers' statistics from `cmvn.scp`, 2 x (F + 1): sums and number of frames above sums of squares."""
    sums = SpeakerSums()
    problems: list[str] = []
    for speaker in sorted({u.speaker for u in utterances}):
        places = (given.statistics or {}).get(speaker, ())
        if not places:
            problems.append(f"{speaker}: not in cmvn.scp")
        for where in places:
            try:
                matrix = read_matrix(where, given.root).astype(np.float64)
            except ArchiveError as error:
                problems.append(f"{speaker}: {str(error).rstrip('.')}")
                continue
            # Within these bounds means and deviations are numbers in single precision.
            if matrix.shape != (2, width + 1) or not (np.abs(matrix) < 1e30).all() or matrix[0, -1] < 1e-3:
                shape = " x ".join(map(str, matrix.shape))
                problems.append(
                    f"{speaker}: {where}: {shape} numbers, not sums of {width} features and of their squares with "
                    "a number of frames"
                )
                continue
            sums.add_sums(speaker, float(matrix[0, -1]), matrix[0, :-1], matrix[1, :-1])
    if problems:
        raise UserError(
            f"{counted(len(problems), 'speaker')} without usable statistics. Mend cmvn.scp, or take it away and they "
            f"are computed:\n{listing(problems)}"
        )
    return sums.finish()
