"""Fisher English (2003): calls between strangers; audio LDC2004S13 and LDC2005S13, transcripts LDC2004T19, LDC2005T19.

    .../fe_03_00001.sph             both sides, mostly compressed SPHERE
    .../fe_03_00001.txt             `START END A: words`, times in s; `#` begins a comment
    .../fe_03_p1_calldata.tbl       CALL_ID,...,APIN,ASX.DL,...,BPIN,BSX.DL,...: sex and dialect of both speakers

`(( ))` is around words the transcriber was not sure of: such utterances are not trained on.
"""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from roundelay.core.progress import Progress
from roundelay_speech.corpus.readers.calls import Segment, Told, read_lines, times
from roundelay_speech.corpus.readers.transcript_rules import words_of

KINDS: Mapping[str, re.Pattern[str]] = {
    "fisher_audio": re.compile(r"fe_03_\d{5}\.sph"),
    "fisher_text": re.compile(r"fe_03_\d{5}\.txt"),
    "fisher_table": re.compile(r"fe_03_p[12]_calldata\.tbl"),
}
SUBSET = "fisher"
_LINE = re.compile(r"(\S+)\s+(\S+)\s+([AB])\s*:\s*(.*)")


def read_fisher(texts: Mapping[str, Path], tables: Mapping[str, Path], progress: Progress) -> Told:
    """Read the segments of all transcripts of Fisher."""
    told = Told()
    genders = _genders(tables, told.problems)
    progress.start("reading Fisher transcripts", len(texts))
    for name in sorted(texts):
        call = name.removesuffix(".txt")
        for number, line in read_lines(texts[name]):
            where = f"{texts[name]}:{number}"
            match = _LINE.fullmatch(line)
            span = times(match[1], match[2]) if match else None
            if match is None or span is None:
                told.problems.append(f"{where}: not `START END A: words` but `{line[:60]}`")
            elif "((" in match[4]:
                told.pass_over("unsure transcript")
            else:
                words = tuple(words_of(match[4]))
                told.add(Segment(call, match[3], *span, words, where, call, genders.get((call, match[3])), SUBSET))
        progress.advance()
    progress.advance(0, told.note())
    progress.finish()
    return told


def _genders(tables: Mapping[str, Path], problems: list[str]) -> dict[tuple[str, str], str]:
    """Return the gender, m or f, by (call, side), as far as the tables have it."""
    found: dict[tuple[str, str], str] = {}
    for path in tables.values():
        with open(path, encoding="latin-1", newline="") as file:
            rows = csv.DictReader(file)
            if not {"CALL_ID", "ASX.DL", "BSX.DL"} <= set(rows.fieldnames or ()):
                problems.append(f"{path}:1: no columns CALL_ID, ASX.DL and BSX.DL")
                continue
            for row in rows:
                for side in "AB":
                    if (sex := (row[f"{side}SX.DL"] or "")[:1]) in ("m", "f"):
                        found[f"fe_03_{row['CALL_ID']}", side] = sex
    return found
