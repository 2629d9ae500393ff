"""NIST SPHERE audio: what its header says, and a way to have it as WAV where it is compressed.

A file begins with two lines, `NIST_1A` and the length of the header in bytes (usually 1024); then lines
`NAME -TYPE VALUE` (-i whole number, -r real number, -sN text of N bytes) up to `end_head`. The samples behind it are
plain (pcm, ulaw, alaw), which libsndfile reads, or compressed (`ulaw,embedded-shorten-v2.00`), which only `sph2pipe`
turns into WAV.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import AudioError, audio_length
from roundelay_speech.data.problems import counted, listing

CONVERTER = "sph2pipe"
_MAGIC = b"NIST_1A\n"
_LARGEST_HEADER = 1 << 20
_PLAIN = frozenset({"pcm", "ulaw", "mu-law", "alaw"})


@dataclass(frozen=True)
class SphereHeader:
    """Fields declared in the header of a SPHERE file."""

    path: Path
    header_bytes: int
    channels: int
    sampling_rate: int  # Hz
    samples: int  # of each channel
    sample_bytes: int
    coding: str  # pcm, ulaw, ..., perhaps with a compression behind a comma

    @property
    def compressed(self) -> bool:
        return self.coding not in _PLAIN


def read_header(path: Path) -> SphereHeader:
    """Read and check the header; of plain samples also that all that are declared are there.

    Raises:
        AudioError: the file is missing, not SPHERE, faulty or cut short; names the file and the byte.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(16)
            if head[:8] != _MAGIC:
                raise AudioError(f"{path}: not a SPHERE file (it does not begin with NIST_1A)")
            size = head[8:].strip()
            if not size.isdigit() or not 16 < int(size) <= _LARGEST_HEADER:
                raise AudioError(f"{path}: at byte 8 there is {head[8:]!r}, not the length of the header")
            text = head + file.read(int(size) - 16)
            total = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise AudioError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(text) < int(size):
        raise AudioError(f"{path}: cut short in its header, after {len(text)} of {int(size)} bytes; get the file again")
    fields = _fields(path, text)
    numbers = {name: _whole(path, fields, name) for name in ("channel_count", "sample_rate", "sample_count")}
    coding = fields.get("sample_coding", (0, "pcm"))[1].lower()
    width = _whole(path, fields, "sample_n_bytes") if "sample_n_bytes" in fields else 2
    header = SphereHeader(
        path, int(size), numbers["channel_count"], numbers["sample_rate"], numbers["sample_count"], width, coding
    )
    wanted = header.samples * header.channels * header.sample_bytes
    if not header.compressed and total - header.header_bytes < wanted:
        raise AudioError(
            f"{path}: cut short: {total - header.header_bytes} of the {wanted} bytes of samples its header declares "
            "are there; get the file again"
        )
    return header


def _fields(path: Path, text: bytes) -> dict[str, tuple[int, str]]:
    """Return name -> the byte its line begins at, its value."""
    found: dict[str, tuple[int, str]] = {}
    place = 16
    for line in text[16:].split(b"\n"):
        stripped = line.strip()
        if stripped == b"end_head":
            return found
        if stripped and not stripped.startswith(b";"):
            parts = stripped.split(None, 2)
            if len(parts) < 3 or not parts[1].startswith(b"-"):
                raise AudioError(f"{path}: at byte {place} there is {stripped[:40]!r}, not `NAME -TYPE VALUE`")
            found[parts[0].decode("latin-1")] = place, parts[2].decode("latin-1").strip()
        place += len(line) + 1
    raise AudioError(f"{path}: its header of {len(text)} bytes has no end_head")


def _whole(path: Path, fields: dict[str, tuple[int, str]], name: str) -> int:
    if name not in fields:
        raise AudioError(f"{path}: its header has no {name}")
    place, value = fields[name]
    if not re.fullmatch(r"[0-9]{1,15}", value) or int(value) == 0:
        raise AudioError(f"{path}: at byte {place}, {name} is {value[:40]!r}, not a whole number above 0")
    return int(value)


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
    pending: list[SphereHeader] = []
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
                pending.append(header)
    if not pending:
        return found, bad
    converter = shutil.which(CONVERTER)
    if converter is None:
        raise UserError(
            f"{counted(len(pending), 'recording')} in compressed SPHERE format ({pending[0].coding}), which needs the "
            f"program {CONVERTER} (of the LDC, or of Kaldi's tools): install it so that it is on PATH. The first are:\n"
            f"{listing([str(header.path) for header in pending])}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    progress.start(f"converting with {CONVERTER}", len(pending))
    for header in pending:
        if problem := _convert(converter, header, found[header.path]):
            bad.append(problem)
            del found[header.path]
        progress.advance()
    progress.finish()
    return found, bad


def _convert(converter: str, header: SphereHeader, target: Path) -> str | None:
    """Write `target`, whole or not at all; what went wrong, or None."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        command = [converter, "-f", "wav", "-p", str(header.path), str(temporary)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            return f"{header.path}: {CONVERTER} gives up ({done.stderr.strip()[:200] or f'status {done.returncode}'})"
        if not _is_whole(temporary, header):
            return f"{header.path}: {CONVERTER} does not find the {header.samples} samples that its header declares"
        os.replace(temporary, target)
    except OSError as error:
        return f"{header.path}: {CONVERTER} cannot be run ({error.strerror or error})"
    finally:
        temporary.unlink(missing_ok=True)
    return None


def _is_whole(path: Path, header: SphereHeader) -> bool:
    try:
        return audio_length(path) == (header.sampling_rate, header.samples)
    except AudioError:
        return False
