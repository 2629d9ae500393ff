"""Feature matrices that somebody else computed: fMLLR, i-vectors, whatever has an utterance's name.

They are looked up by utterance, vectors of a whole utterance also by its speaker: in a Kaldi script file (`feats.scp`)
or archive, an `.npz` file with an array for each, or a folder of ID.npy. Nothing is unpickled.

Legend: T frames of an utterance, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import BROKEN
from roundelay_speech.kaldi_io.archive import read_archive, read_matrix
from roundelay_speech.kaldi_io.locations import ArchiveError, parse_location, read_scp

Float32 = npt.NDArray[np.float32]


class ExternalError(UserError):
    """One utterance has no matrix, or an unusable one."""


@dataclass(frozen=True, eq=False)
class Matrices:
    """Locations of the matrices of a corpus; small enough to be sent to worker processes, but for archives."""

    source: Path
    places: Mapping[str, str]  # of a script file; empty for other kinds
    held: Mapping[str, Float32]  # of an archive, which has no index

    @classmethod
    def open(cls, source: Path) -> "Matrices":
        """Look at a source.

        Raises:
            UserError: there is none of that name, or of a kind that can be read.
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
        """Return the matrix (T, F) of an utterance, or where it has none that of its speaker; a vector (F,) becomes (1,
        F).

        Raises:
            ExternalError: there is none, it is broken, or it holds NaN or infinity.
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
