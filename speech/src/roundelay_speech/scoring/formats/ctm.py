"""CTM files: words with their times, a line each: `file channel start duration word [confidence]`.

Times are in seconds from the beginning of the file. The format is that of NIST's sclite; `;;` begins a comment. Lines
`file channel * * <ALT_BEGIN>`, `<ALT>` and `<ALT_END>` stand around and between words any of which may be right.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay_speech.scoring.alignment.marks import NOTHING
from roundelay_speech.scoring.formats.io import content_lines, seconds

Channel = tuple[str, str]
"""(file, channel), for example ("sw_4390", "A")."""

DECIMALS = 3  # of the times that are written: a millisecond is finer than any frame


@dataclass(frozen=True)
class TimedWord:
    """A recognised word and when it was said; read from a file, also alternatives, as `{ A / B C }`."""

    word: str
    start: float  # s
    duration: float  # s
    confidence: float | None = None  # probability that the word is right, 0 to 1

    @property
    def midpoint(self) -> float:
        """Half-way between beginning and end, s; it decides to which segment a word belongs."""
        return self.start + self.duration / 2


@dataclass(frozen=True)
class UtterancePosition:
    """Position of an utterance: file, channel, and start (s)."""

    file: str
    channel: str = "1"
    start: float = 0.0


_MAY = {"<ALT_BEGIN>": "begin", "<ALT>": "go on", "<ALT_END>": "end"}  # the lines around alternatives


def write_ctm(
    path: Path, utterances: Mapping[str, Sequence[TimedWord]], places: Mapping[str, UtterancePosition] | None = None
) -> None:
    """Write the words of all utterances, sorted by file, channel and time as sclite wants them.

    Args:
        utterances: words by utterance id, times counted from the beginning of the utterance.
        places: position of each utterance. One that is not listed is a file of its own, named as the utterance, channel
            1.

    Raises:
        UserError: a name or word has a blank in it, or a time or confidence is invalid; names the utterance.
    """
    write_text(path, ctm_text(str(path), utterances, places))


def ctm_text(
    where: str, utterances: Mapping[str, Sequence[TimedWord]], places: Mapping[str, UtterancePosition] | None = None
) -> str:
    """Return the lines that `write_ctm` writes; `where` begins messages.

    Raises:
        UserError: as `write_ctm`.
    """
    found: list[tuple[Channel, TimedWord]] = []
    for utterance, words in utterances.items():
        place = (places or {}).get(utterance, UtterancePosition(utterance))
        for word in words:
            timed = TimedWord(word.word, place.start + word.start, word.duration, word.confidence)
            _check(where, utterance, place, timed)
            found.append(((place.file, place.channel), timed))
    found.sort(key=lambda item: (item[0], round(item[1].start, DECIMALS)))
    return "".join(f"{file} {channel} {_fields(word)}\n" for (file, channel), word in found)


def _fields(word: TimedWord) -> str:
    times = f"{word.start:.{DECIMALS}f} {word.duration:.{DECIMALS}f} {word.word}"
    return times if word.confidence is None else f"{times} {word.confidence:.4f}"


def _check(path: str, utterance: str, place: UtterancePosition, word: TimedWord) -> None:
    for text in (place.file, place.channel, word.word):
        if text.split() != [text] or text.startswith(";;"):
            raise UserError(f"{path}: {utterance}: {text!r} must be one word, without blanks.")
    if word.word.upper() in _MAY:
        raise UserError(f"{path}: {utterance}: the word {word.word!r} would be read as the mark of alternatives.")
    if not all(math.isfinite(time) and time >= 0 for time in (word.start, word.duration)):
        raise UserError(
            f"{path}: {utterance}: {word.word} lasts {word.duration} s from {word.start} s on; both must be 0 or more."
        )
    if word.confidence is not None and not 0 <= word.confidence <= 1:
        raise UserError(f"{path}: {utterance}: the confidence of {word.word} is {word.confidence}, not 0 to 1.")


def read_ctm(path: Path) -> dict[Channel, list[TimedWord]]:
    """Read a CTM file: words by (file, channel), in order of time.

    A confidence of `NA`, or none, is None. Alternatives become one `word` with the marks of `marks`, `{ A / B C / @ }`,
    and the time of that of their words whose midpoint is the latest, as sclite has it.

    Raises:
        UserError: the file is missing or not UTF-8; a line has other than 5 or 6 fields; a time or confidence is
            invalid; alternatives are not closed, or closed without a beginning. Names file and line.
    """
    words: dict[Channel, list[TimedWord]] = {}
    open_at: tuple[str, Channel] | None = None  # where alternatives have begun
    alternatives: list[list[TimedWord]] = []
    for number, line in content_lines(path, "`roundelay decode` writes hyp.ctm"):
        where, fields = f"{path}:{number}", line.split()
        if len(fields) not in (5, 6):
            raise UserError(f"{where}: expected `file channel start duration word [confidence]`, found {line!r}.")
        channel, mark = (fields[0], fields[1]), fields[4].upper()
        if open_at is not None and open_at[1] != channel:
            break
        if mark in _MAY:
            if (open_at is None) != (mark == "<ALT_BEGIN>"):
                raise UserError(f"{where}: {fields[4]} stands where no alternatives can {_MAY[mark]}.")
            if mark == "<ALT_END>":
                words.setdefault(channel, []).append(_one_of(alternatives, where))
            if mark == "<ALT>":
                alternatives.append([])
            else:
                open_at, alternatives = ((where, channel), [[]]) if mark == "<ALT_BEGIN>" else (None, [])
            continue
        start, duration = seconds(fields[2], "start", where), seconds(fields[3], "duration", where)
        word = TimedWord(fields[4], start, duration, _confidence(fields[5], where) if len(fields) == 6 else None)
        (words.setdefault(channel, []) if open_at is None else alternatives[-1]).append(word)
    if open_at is not None:
        raise UserError(f"{open_at[0]}: the alternatives that begin here are not closed with <ALT_END>.")
    for some in words.values():
        some.sort(key=lambda word: word.start)
    return words


def _one_of(alternatives: Sequence[Sequence[TimedWord]], where: str) -> TimedWord:
    if not any(alternatives):
        raise UserError(f"{where}: there is no word among these alternatives. Take their lines out.")
    text = " / ".join(" ".join(word.word for word in some) or NOTHING for some in alternatives)
    latest = max((word for some in alternatives for word in some), key=lambda word: word.midpoint)
    return dataclasses.replace(latest, word=f"{{ {text} }}", confidence=None)


def _confidence(text: str, where: str) -> float | None:
    if text.upper() == "NA":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: the confidence is {text!r}; it must be a number, or NA.")
    return value
