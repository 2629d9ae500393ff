#!/usr/bin/env python
"""Books as text for a language model: a sentence a line, upper case, words as LibriSpeech writes them, gzipped.

    python recipes/mini_librispeech/books.py FOLDER... --unlike CORPUS --out books.txt.gz

FOLDER: files *.txt and *.md, looked for in subfolders too. CORPUS: a prepared one. A book that shares rows of eight
words with transcripts of its other splits than train is left out, and named: it is the one that they were read from. So
is a book that an earlier folder had. Sentences with digits are left out: how they are read is not in the book.
"""

import argparse
import gzip
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

ROW = 8  # words
SHARED = 2  # rows of words in common with a transcript, from which a book counts as read from
AGAIN = 0.2  # share of sentences that earlier books had, from which a book counts as one of them
SPARSE = 8  # one long sentence in about so many is remembered of a book
_GUTENBERG = re.compile(r"\*\*\* ?(START|END) OF TH[^*]*\*\*\*", re.IGNORECASE)
_HEADING = r"^#.*$|^(?:CHAPTER|BOOK|PART|VOLUME)\b.{0,60}$"
_MARKUP = re.compile(rf"<[^>\n]*>|\[[^\]\n]{{0,40}}\]|{_HEADING}|[_*`|~^]+", re.MULTILINE)
_SHORT = {"MR": "MISTER", "MRS": "MISSUS", "DR": "DOCTOR", "ST": "SAINT", "MESSRS": "MESSIEURS"}
_SHORTENED = re.compile(r"\b(" + "|".join(_SHORT) + r")\b\.?")
_END = re.compile(r"[.!?;:]+|\n\s*\n")
_QUOTES = str.maketrans({"\u2019": "'", "\u2018": " '", "\u02bc": "'", "&": " AND ", "\u00e6": "ae", "\u0153": "oe"})
_ACCENTS = re.compile("[\u0300-\u036f]+")
_NO_WORD = re.compile(r"[^A-Z0-9']+")
_EDGES = re.compile(r"(?<![A-Z])'(?!TIS\b|TWAS\b|TWERE\b|TWOULD\b|TWILL\b|EM\b)|'(?![A-Z])")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a book, in upper case, without marks but apostrophes."""
    parts = _GUTENBERG.split(text)
    if len(parts) >= 5:
        text = parts[2]
    plain = _MARKUP.sub(" ", text.replace("\r", "")).translate(_QUOTES)
    upper = _ACCENTS.sub("", unicodedata.normalize("NFKD", plain)).upper()
    for sentence in _END.split(_SHORTENED.sub(lambda found: _SHORT[found[1]], upper)):
        if any(map(str.isdigit, sentence)):
            continue
        if words := _EDGES.sub("", _NO_WORD.sub(" ", sentence)).split():
            yield " ".join(words)


def rows(words: list[str]) -> Iterable[tuple[str, ...]]:
    """All rows of `ROW` words that follow each other."""
    return zip(*(words[i:] for i in range(ROW)), strict=False)


def transcripts(corpus: Path) -> set[tuple[str, ...]]:
    """Rows of words of all splits of a prepared corpus but train."""
    found: set[tuple[str, ...]] = set()
    for split in sorted(corpus.glob("*.jsonl")):
        if split.stem != "train":
            for line in split.read_text(encoding="utf-8").splitlines():
                found.update(rows(json.loads(line)["text"].split()))
    if not found:
        sys.exit(f"{corpus}: no transcripts of dev and test. Prepare it first.")
    return found


def main() -> None:
    """Write the text, and say on standard error which books were left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--unlike", required=True, type=Path, metavar="CORPUS")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--words", type=float, default=float("inf"), help="stop after so many, 30e6 for example")
    options = parser.parse_args()
    heard, seen, books, total = transcripts(options.unlike), set[int](), 0, 0
    files = [path for folder in options.folders for path in sorted(folder.rglob("*")) if path.suffix in {".txt", ".md"}]
    with gzip.open(options.out, "wt", encoding="ascii", compresslevel=3) as out:
        for path in files:
            found = list(sentences(path.read_text(encoding="utf-8", errors="replace")))
            words = " ".join(found).split()
            if len(shared := heard.intersection(rows(words))) >= SHARED:
                print(f"{path}: left out, {len(shared)} rows of words in common with dev or test", file=sys.stderr)
                continue
            own = {hash(sentence) for sentence in found if sentence.count(" ") >= ROW and len(sentence) % SPARSE == 0}
            if len(own & seen) > AGAIN * len(own):
                print(f"{path}: left out, had before", file=sys.stderr)
                continue
            seen |= own
            books += 1
            for sentence in found:
                if total < options.words:
                    out.write(f"{sentence}\n")
                    total += sentence.count(" ") + 1
            if total >= options.words:
                break
    print(f"{books} books, {total:,} words", file=sys.stderr)


if __name__ == "__main__":
    main()
