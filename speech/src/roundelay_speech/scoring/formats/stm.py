"""STM files: the reference in segments with times, `file channel speaker begin end [<labels>] words`; and which
recognised words belong to which segment.

Times are in seconds from the beginning of the file. The format is that of NIST's sclite; `;;` begins a comment.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay_speech.data.problems import named
from roundelay_speech.scoring.alignment.counts import known_as
from roundelay_speech.scoring.alignment.marks import MarkError, marked_network
from roundelay_speech.scoring.formats.ctm import Channel, TimedWord
from roundelay_speech.scoring.formats.io import content_lines, seconds

IGNORED = "ignore_time_segment_in_scoring"
"""Text in place of the words of a segment that is not scored. Old files write it without underscores."""
GAP_SPEAKER = "inter_segment_gap"
"""The speaker of segments without words that only collect insertions between the others."""
EVERYTHING = "o"  # the label that all segments have, by custom, before those of subsets

_TICK = 1e-6  # s: midpoints are compared in millionths, so that 1.9 + 0.2 / 2 is 2


@dataclass(frozen=True)
class StmSegment:
    """One stretch of one channel: its speaker, words and labels."""

    file: str
    channel: str
    speaker: str
    start: float  # s
    end: float  # s
    words: tuple[str, ...]  # with the marks of `marks`
    labels: tuple[str, ...] = ()

    @property
    def ignored(self) -> bool:
        """True if nothing in the segment is scored."""
        return len(self.words) == 1 and self.words[0].lower().replace("_", "") == IGNORED.replace("_", "")

    @property
    def subset(self) -> str | None:
        """The first label that not every segment has by custom."""
        return next((label for label in self.labels if label.lower() != EVERYTHING), None)


def read_stm(path: Path) -> list[StmSegment]:
    """Read an STM file, in its order.

    Raises:
        UserError: the file is missing or not UTF-8; a line has fewer than 5 fields; times are invalid, or an end is
            before the begin; labels are not closed; marks do not fit together. Names file and line.
    """
    return [_segment(f"{path}:{number}", line) for number, line in content_lines(path)]


def _segment(where: str, line: str) -> StmSegment:
    fields = line.split(maxsplit=5)
    if len(fields) < 5:
        raise UserError(f"{where}: expected `file channel speaker begin end [<labels>] words`, found {line!r}.")
    start, end = seconds(fields[3], "begin", where), seconds(fields[4], "end", where)
    if end < start:
        raise UserError(f"{where}: the segment ends at {end} s, before it begins at {start} s.")
    text, labels = fields[5] if len(fields) == 6 else "", ""
    if text.startswith("<"):
        labels, closed, text = text[1:].partition(">")
        if not closed:
            raise UserError(f"{where}: the labels `<{labels}` are not closed with `>`.")
    segment = StmSegment(
        fields[0],
        fields[1],
        fields[2],
        start,
        end,
        tuple(text.split()),
        tuple(label.strip() for label in labels.split(",") if label.strip()),
    )
    try:
        marked_network(segment.words)
    except MarkError as error:
        raise UserError(f"{where}: {error} in `{' '.join(segment.words)}`.") from error
    return segment


def write_stm(path: Path, segments: Iterable[StmSegment]) -> None:
    """Write the segments, sorted by file, channel and begin as sclite wants them.

    Raises:
        UserError: a name or word has a blank in it, a label a blank, comma or `>`, or times are invalid; names the
            segment.
    """
    ordered = sorted(segments, key=lambda s: (s.file, s.channel, s.start, s.end))
    for segment in ordered:
        _check(path, segment)
    write_text(path, "".join(_line(segment) for segment in ordered))


def _line(s: StmSegment) -> str:
    labels = [f"<{','.join(s.labels)}>"] if s.labels else []
    return " ".join([s.file, s.channel, s.speaker, f"{s.start:.3f}", f"{s.end:.3f}", *labels, *s.words]) + "\n"


def _check(path: Path, s: StmSegment) -> None:
    where = f"{path}: {s.file} {s.channel} {s.speaker} at {s.start} s"
    for text in (s.file, s.channel, s.speaker, *s.words):
        if text.split() != [text] or s.file.startswith(";;"):
            raise UserError(f"{where}: {text!r} must be one word, without blanks.")
    for label in s.labels:
        if label.split() != [label] or any(character in label for character in ",<>"):
            raise UserError(f"{where}: the label {label!r} must be one word, without commas and angles.")
    if not s.labels and s.words and s.words[0].startswith("<"):
        raise UserError(f"{where}: the first word {s.words[0]!r} would be read as labels. Give the segment a label.")
    if not (math.isfinite(s.start) and math.isfinite(s.end) and 0 <= s.start <= s.end):
        raise UserError(f"{where}: it ends at {s.end} s; begin and end must be 0 or more, in this order.")


@dataclass(frozen=True)
class Cut:
    """References and hypotheses by segment, under one name each, for `score` to compare."""

    refs: dict[str, list[str]]
    hyps: dict[str, list[str]]
    segments: dict[str, StmSegment]


def cut_at_segments(
    segments: Sequence[StmSegment], words: Mapping[Channel, Sequence[TimedWord]], *, silent: bool = False
) -> Cut:
    """Assign every recognised word to a segment of its file and channel, as sclite does.

    A word belongs to the first segment, in order of their begins, that ends after the word's midpoint; one after all
    segments belongs to the last. So a word in the gap before a segment is an insertion there. Words that fall to an
    ignored segment, those in the gap before it included, are dropped. Files and channels are compared without regard to
    case.

    Args:
        silent: True if a channel with segments to score may have no word at all; else that is an error.

    Raises:
        UserError: there are words on a channel without segments, or none on a channel with segments (unless `silent`).
    """
    channels: dict[Channel, list[StmSegment]] = {}
    for segment in segments:
        channels.setdefault((segment.file, segment.channel), []).append(segment)
    known = known_as(words, channels)
    by_channel: dict[Channel, list[TimedWord]] = {}
    for spelled, some in words.items():
        by_channel.setdefault(known[spelled], []).extend(some)
    _complain_of_channels(channels, by_channel, silent)
    cut = Cut({}, {}, {})
    for (file, channel), here in channels.items():
        here.sort(key=lambda s: s.start)  # stable: equal begins stay in the file's order
        shares: list[list[str]] = [[] for _ in here]
        place = 0
        for word in sorted(by_channel.get((file, channel), ()), key=lambda word: word.midpoint):
            while place < len(here) - 1 and here[place].end <= word.midpoint + _TICK / 2:
                place += 1
            shares[place] += word.word.split()  # alternatives are several
        for number, (segment, share) in enumerate(zip(here, shares, strict=True), 1):
            if not segment.ignored:
                name = f"{segment.speaker}-{file}-{channel}-{number:04d}"
                cut.refs[name], cut.hyps[name], cut.segments[name] = list(segment.words), share, segment
    return cut


def _complain_of_channels(
    channels: Mapping[Channel, Sequence[StmSegment]], words: Mapping[Channel, Sequence[TimedWord]], silent: bool
) -> None:
    strange = [" ".join(channel) for channel in words if channel not in channels]
    if strange:
        raise UserError(
            f"Words were recognised in files and channels without a segment in the reference: {named(strange)}. "
            "Give the reference of the decoded recordings; file and channel must be spelled alike (case aside)."
        )
    spoken = [channel for channel, here in channels.items() if any(s.words and not s.ignored for s in here)]
    lost = [" ".join(channel) for channel in spoken if not words.get(channel)]
    if lost and not silent:
        raise UserError(
            f"{len(lost)} of {len(spoken)} channels with speech have no recognised word: {named(lost)}. "
            "Decode them, or ask for missing hypotheses to count as empty (every word deleted)."
        )
