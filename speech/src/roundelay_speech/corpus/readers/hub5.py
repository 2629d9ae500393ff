"""Hub5-2000, the English evaluation set of 2000 (audio LDC2002S09, transcripts LDC2002T43): 20 calls of the Switchboard
kind, between strangers, and 20 of the CallHome kind, between friends and relatives.

    .../sw_4390.sph, .../en_4156.sph    both sides of a call; the first two letters tell the kind
    .../hub5e00.english.000405.stm      CALL SIDE SPEAKER START END <LABELS> WORDS: segments and reference
    .../en20000405_hub5.glm             which spellings count as the same word

In the reference `{ A / B }` are ways to hear the same, of which the first is taken here, and words in round brackets
may be missing. A word error rate comparable with published ones needs the reference and the rules themselves: both
files are copied into the prepared corpus.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundelay.core.progress import Progress
from roundelay_speech.corpus.readers.calls import SIDES, Segment, Told, read_lines, times
from roundelay_speech.corpus.readers.transcript_rules import words_of

KINDS: Mapping[str, re.Pattern[str]] = {
    "hub5_audio": re.compile(r"(sw|en)_\d{4}\.sph"),
    "hub5_reference": re.compile(r"hub5e00\.english\.\d+\.stm"),
    "hub5_rules": re.compile(r"en\d+_hub5\.glm"),
}
SUBSETS: Mapping[str, str] = {"sw": "swb", "en": "callhm"}
"""Parts of the set that are scored separately, by the beginning of a call's name."""
IGNORED = "ignore_time_segment_in_scoring"
_FIELDS = 6


def read_hub5(reference: Path, progress: Progress) -> Told:
    """Read the segments of the reference transcripts."""
    told = Told()
    progress.start("reading the Hub5-2000 reference")
    for number, line in read_lines(reference):
        where, fields = f"{reference}:{number}", line.split()
        span = times(fields[3], fields[4]) if len(fields) >= _FIELDS else None
        call, side = (fields[0].lower(), fields[1].upper()) if span else ("", "")
        if span is None or side not in SIDES or call[:2] not in SUBSETS or not fields[5].startswith("<"):
            told.problems.append(f"{where}: not `CALL SIDE SPEAKER START END <LABELS> WORDS` but `{line[:60]}`")
            continue
        if fields[_FIELDS:] and fields[_FIELDS].lower() == IGNORED:
            told.pass_over("not scored")
            continue
        text = " ".join(_optional_parts_gone(_first_alternatives(fields[_FIELDS:])))
        gender = {"M": "m", "F": "f"}.get(_sex(fields[5]))
        told.add(Segment(call, side, *span, tuple(words_of(text)), where, call, gender, SUBSETS[call[:2]]))
    progress.advance(0, told.note())
    progress.finish()
    return told


def _first_alternatives(words: Sequence[str]) -> list[str]:
    """Return the first alternative of `{ A / B / @ }` that is not `@`, which stands for nothing."""
    found: list[str] = []
    alternatives: list[list[str]] | None = None
    for word in words:
        if word == "{":
            alternatives = [[]]
        elif alternatives is not None and word == "/":
            alternatives.append([])
        elif alternatives is not None and word == "}":
            found += next((a for a in alternatives if a and a != ["@"]), [])
            alternatives = None
        elif alternatives is not None:
            alternatives[-1].append(word)
        else:
            found.append(word)
    return found + [word for a in (alternatives or []) for word in a]


def _optional_parts_gone(words: Sequence[str]) -> list[str]:
    """Return the words without optional broken ones, `(TH-)`, which need not be recognised."""
    return [word for word in words if not re.fullmatch(r"\(+(-.*|.*-)\)+", word)]


def _sex(labels: str) -> str:
    """Return the gender in labels such as `<O,en,F,en-F>`, M or F; "" if they have none."""
    return next((label for label in labels.strip("<>").split(",") if label in ("M", "F")), "")
