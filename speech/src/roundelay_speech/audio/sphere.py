"""NIST SPHERE audio: recordings in it as files that can be read, a WAV of those that are compressed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.audio.headers import SphereHeader, read_sphere
from roundelay_speech.audio.reading import AudioError, audio_length
from roundelay_speech.data.problems import Unusable, counted, listing

CONVERTER = "sph2pipe"


def read_header(path: Path) -> SphereHeader:
    """Read and check the header; of plain samples also that all that are declared are there.

    Raises:
        AudioError: the file is missing, not SPHERE, faulty or cut short; names the file and the byte.
    """
    try:
        with open(path, "rb") as file:
            return read_sphere(file)
    except Unusable as error:
        raise AudioError(f"{path}: {error}") from None
    except OSError as error:
        raise AudioError(f"{path}: cannot be read ({error.strerror or error})") from None


def readable(paths: Sequence[Path], folder: Path, progress: Progress) -> tuple[dict[Path, Path], list[str]]:
    """Return the readable file of each recording: its own, or a WAV in `folder` where it is compressed.

    Files converted before are kept.

    Returns:
        Recording -> file, without those that cannot be used; and what is wrong with these.

    Raises:
        UserError: some are compressed and there is no converter.
    """
    found: dict[Path, Path] = {}
    bad: list[str] = []
    pending: list[tuple[Path, SphereHeader]] = []
    for path in paths:
        try:
            header = read_header(path)
        except AudioError as error:
            bad.append(str(error))
            continue
        found[path] = path
        if header.compressed:
            found[path] = folder / f"{path.stem}.wav"
            if not _is_whole(found[path], header):
                pending.append((path, header))
    if not pending:
        return found, bad
    converter = shutil.which(CONVERTER)
    if converter is None:
        raise UserError(
            f"{counted(len(pending), 'recording')} in compressed SPHERE format ({pending[0][1].coding}), which needs "
            f"the program {CONVERTER} (of the LDC, or of Kaldi's tools): install it so that it is on PATH. The first "
            f"are:\n{listing([str(path) for path, _ in pending])}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    progress.start(f"converting with {CONVERTER}", len(pending))
    for path, header in pending:
        if problem := _convert(converter, path, header, found[path]):
            bad.append(problem)
            del found[path]
        progress.advance()
    progress.finish()
    return found, bad


def _convert(converter: str, path: Path, header: SphereHeader, target: Path) -> str | None:
    """Write `target`, whole or not at all; what went wrong, or None."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        command = [converter, "-f", "wav", "-p", str(path), str(temporary)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            return f"{path}: {CONVERTER} gives up ({done.stderr.strip()[:200] or f'status {done.returncode}'})"
        if not _is_whole(temporary, header):
            return f"{path}: {CONVERTER} does not find the {header.samples} samples that its header declares"
        os.replace(temporary, target)
    except OSError as error:
        return f"{path}: {CONVERTER} cannot be run ({error.strerror or error})"
    finally:
        temporary.unlink(missing_ok=True)
    return None


def _is_whole(path: Path, header: SphereHeader) -> bool:
    try:
        return audio_length(path) == (header.sampling_rate, header.samples)
    except AudioError:
        return False
