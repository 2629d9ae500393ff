"""Parts shared by the telephone corpora: finding files, and making utterances of timed transcripts of call sides."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import bad_audio, read_header, readable
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy, LeftOut, counted, listing

OVERSHOOT_SECONDS = 0.5
"""Seconds by which a transcript may exceed its recording; it is then cut."""
MISSING_SHARE = 0.05
"""Largest share of calls without audio; more means that a disc is missing, not a few calls of the release."""
SIDES = "AB"


@dataclass(frozen=True)
class Segment:
    """One stretch of one side of a call, and its words."""

    call: str  # the name of the recording, without .sph
    side: str  # A or B: channel 0 or 1
    start: float  # s
    end: float  # s
    words: tuple[str, ...]
    where: str  # file:line
    name: str  # of the call in ids
    gender: str | None = None
    subset: str | None = None

    @property
    def speaker(self) -> str:
        """Name of the speaker, who is a side of a call: one telephone and one voice for some minutes."""
        return f"{self.name}-{self.side}"

    @property
    def id(self) -> str:
        """Id of the utterance: speaker, and times in hundredths of a second."""
        return f"{self.speaker}_{round(self.start * 100):06d}-{round(self.end * 100):06d}"


@dataclass
class Told:
    """The segments of a corpus, and the number of those skipped, by reason: these are no faults."""

    segments: list[Segment] = field(default_factory=list)
    passed: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, segment: Segment) -> None:
        """Keep a segment that has words."""
        if segment.words:
            self.segments.append(segment)
        else:
            self.pass_over("no words")

    def pass_over(self, reason: str) -> None:
        self.passed[reason] = self.passed.get(reason, 0) + 1

    def note(self) -> str:
        """Return the text of the progress line."""
        passed = [f"{number} passed over ({reason})" for reason, number in self.passed.items()]
        return ", ".join([counted(len(self.segments), "utterance"), *passed])


def find_files(sources: Sequence[Path], kinds: Mapping[str, re.Pattern[str]]) -> dict[str, dict[str, Path]]:
    """Find files in and below the folders, by patterns for names in lower case: kind -> name -> the first path.

    The LDC's discs, its downloads and people's copies nest the same files differently; only their names are alike.

    Raises:
        UserError: one of the folders does not exist.
    """
    found: dict[str, dict[str, Path]] = {kind: {} for kind in kinds}
    for source in sources:
        if not source.is_dir():
            raise UserError(f"{source}: no such folder; `--source` and `--also` must name folders of the corpus.")
        visited = set()
        for folder, folders, files in os.walk(source, followlinks=True):
            real = os.path.realpath(folder)
            if real in visited:  # a link that leads upwards
                folders.clear()
                continue
            visited.add(real)
            folders.sort()
            for file in sorted(files):
                name = file.lower()
                for kind, pattern in kinds.items():
                    if pattern.fullmatch(name):
                        found[kind].setdefault(name, Path(folder, file))
    return found


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Read the lines of a file, numbered, without empty ones and comments (`#`, `;;`).

    Raises:
        UserError: the file cannot be read.
    """
    try:
        # Old files are not all UTF-8, but their words are ASCII.
        text = path.read_text(encoding="latin-1")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    return [(number, line) for number, line in lines if line and not line.startswith(("#", ";;"))]


def times(start: str, end: str) -> tuple[float, float] | None:
    """Parse two times in seconds; return None if they are no stretch of time."""
    try:
        first, last = float(start), float(end)
    except ValueError:
        return None
    return (first, last) if 0 <= first < last < 1e6 else None


def to_utterances(
    told: Told, audio: Mapping[str, Path], folder: Path, on_bad: BadPolicy, progress: Progress, corpus: str
) -> tuple[list[Utterance], list[LeftOut]]:
    """Make utterances of segments; return them sorted by id, and those left out with the reason.

    Args:
        audio: call -> its SPHERE file.
        folder: where compressed audio is put as WAV.

    Raises:
        UserError: faults in transcripts; many calls without audio; under `error`, audio that cannot be used; see also
            `sphere.readable`.
    """
    if told.problems:
        raise UserError(
            f"{corpus}: {counted(len(told.problems), 'fault')} in the transcripts:\n{listing(told.problems)}"
        )
    calls = list(dict.fromkeys(segment.call for segment in told.segments))
    silent = [call for call in calls if call not in audio]
    if len(silent) > MISSING_SHARE * len(calls):
        raise UserError(
            f"{corpus}: no audio of {len(silent)} of {counted(len(calls), 'call')}. Name the folders with the rest by "
            f"`--also DIR`. Looked for:\n{listing([f'{call}.sph' for call in silent])}"
        )
    left_out = [LeftOut(call, f"{call}: no {call}.sph, but a transcript") for call in silent]
    files, bad = readable([audio[call] for call in calls if call in audio], folder, progress)
    lengths: dict[str, tuple[int, int, int]] = {}
    for call in calls:
        if call in audio and audio[call] in files:
            header = read_header(audio[call])
            lengths[call] = header.sampling_rate, header.samples, header.channels
    utterances: list[Utterance] = []
    problems = [LeftOut(text.partition(":")[0], text) for text in bad]
    for segment in told.segments:
        if segment.call in lengths:
            recording = audio[segment.call]
            found = _utterance(segment, recording, files[recording], lengths[segment.call])
            if isinstance(found, Utterance):
                utterances.append(found)
            else:
                problems.append(found)
    if problems and on_bad == "error":
        raise bad_audio(problems, len(told.segments))
    return sorted(utterances, key=lambda u: u.id), [*left_out, *problems]


def _utterance(segment: Segment, recording: Path, file: Path, length: tuple[int, int, int]) -> Utterance | LeftOut:
    """Return the utterance of a segment, or the reason why its recording does not have it.

    Args:
        recording: the file in the corpus, for messages.
        file: a readable file, the recording itself or a copy.
        length: sampling rate, number of samples, number of channels.
    """
    rate, samples, channels = length
    first, last = round(segment.start * rate), round(segment.end * rate)
    channel = SIDES.index(segment.side)
    reason = None
    if channel >= channels:
        reason = f"{recording} has {counted(channels, 'channel')}"
    elif last > samples + OVERSHOOT_SECONDS * rate or first >= samples:
        reason = f"{recording} ends at {samples / rate:.2f} s"
    elif last <= first:
        reason = f"between {segment.start:g} and {segment.end:g} s there is not one sample"
    if reason is not None:
        return LeftOut(segment.id, f"{segment.id}: {segment.where}: {reason}")
    size = min(last, samples) - first
    return Utterance(
        id=segment.id,
        recording_id=segment.call,
        path=os.path.abspath(file),
        start=first / rate,
        duration=size / rate,
        channel=channel,
        sampling_rate=rate,
        num_samples=size,
        speaker=segment.speaker,
        text=" ".join(segment.words),
        gender=segment.gender,
        language=None,
        subset=segment.subset,
    )
