"""Transcripts in the words of a dictionary: in its spelling, without punctuation and without marks of noises.

Every change has a kind, so that changes can be listed by kind. A mark (see marks) is taken out, unless the dictionary
lists it, with phones of its own: then it is a word like others.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from roundelay_speech.lexicon.lexicon import Lexicon, NearWords, bare, folded
from roundelay_speech.lexicon.marks import MARKS

Kind = Literal[
    "noise",
    "unclear",
    "guessed",
    "inside",
    "broken",
    "stop",
    "letters",
    "symbol",
    "punctuation",
    "apostrophe",
    "characters",
    "case",
]
CHANGE_KINDS: Mapping[Kind, str] = {
    "noise": "marks of noises and pauses, removed: silence has their sound",
    "unclear": "speech that was not understood: its utterance is left out",
    "guessed": "words in double brackets, kept",
    "inside": "words inside other marks or brackets, kept",
    "broken": "unsaid parts of broken words, removed",
    "stop": "full stops removed, where the dictionary has the word with one and without",
    "letters": "abbreviations spelled as their letters",
    "symbol": "symbols removed, which may have been said",
    "punctuation": "punctuation removed",
    "apostrophe": "apostrophes of typesetters",
    "characters": "accents written otherwise that look the same",
    "case": "upper and lower case",
}
"""Kinds of changes in words, the most telling first."""

_UNCLEAR = re.compile(
    r"\b(unk|unknown|oov|unintell\w*|inaudib\w*|unclear|indistinct|incomprehensib\w*|not understood|xxx+)\b|\?",
    re.IGNORECASE,
)
_UNCLEAR_WORD = re.compile(r"xxx+|<?unk>?", re.IGNORECASE)
_EVENT = re.compile(
    r"\b(noises?|laugh|cough|breath|inhal|exhal|sigh|sniff|sneez|throat|lips?\b|smack|click|music|applause|silence|"
    r"pause|door|phone|ring|beep|background|speak|talk|sound|hum)",
    re.IGNORECASE,
)
_OF_SENTENCES = re.compile(  # words that sentences in brackets have, and names of noises seldom
    r"\b(an?|the|i|you|s?he|it|we|they|his|her|my|our|their|this|that|of|to|in|on|at|for|from|with|by|and|or|but|not|no|"
    r"is|was|are|were|been?|ha[vds]e?|do|did|said|says|as|if|so|who|which|what)\b",
    re.IGNORECASE,
)
_SYMBOLS = "%&@#+=$\u20ac\u00a3\u00a5\u00b0\u00a7"
_DOTTED = re.compile(r"(?:[^\W\d_]\.){2,}|(?:[^\W\d_]\.)+[^\W\d_]")


@dataclass(frozen=True)
class Change:
    """A change of a transcript: a word or mark, and its replacement: one word, several, or nothing."""

    kind: Kind
    before: str
    after: str


@dataclass
class Cleaned:
    """A cleaned transcript: its words, and the changes made."""

    words: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    @property
    def unclear(self) -> bool:
        """True if some of the utterance's speech was not understood by the transcriber."""
        return any(change.kind == "unclear" for change in self.changes)


class Cleaner:
    """Rewrites transcripts in the words of a dictionary.

    A word the dictionary lacks becomes the one it has that differs by case or by punctuation at its ends alone; if
    there is none, it loses that punctuation. A full stop that the dictionary has with the word (`s.`, `mr.`) goes where
    the word is said the same way without it; at the end of the utterance also where it is not (`no.`), for there it is
    the sentence's. A clean transcript stays as it is.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._near = NearWords(lexicon)
        self._known: dict[tuple[str, bool], tuple[tuple[str, ...], Kind | None]] = {}

    def __call__(self, text: str) -> Cleaned:
        """Return the words of a transcript."""
        made = Cleaned()
        pieces = list(self._pieces(text, made))
        ends = [place for place, (piece, said) in enumerate(pieces) if said or bare(piece)]
        for place, (piece, said) in enumerate(pieces):
            if said:
                made.words.append(piece)
                continue
            words, kind = self._plain(piece, not ends or place == ends[-1])
            made.words += words
            if kind is not None:
                made.changes.append(Change(kind, piece, " ".join(words)))
        return made

    def _pieces(self, text: str, made: Cleaned) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of a text: words between marks, and marks that are words of the dictionary, with True. Note
        changes of marks in `made`."""
        place = 0
        for mark in MARKS.finditer(text):
            yield from ((word, False) for word in text[place : mark.start()].split())
            place = mark.end()
            whole = mark.group()
            if listed := self._listed(whole):
                yield listed, True
                continue
            kind, inside = self._of_mark(str(mark.lastgroup), mark[mark.lastindex or 0])
            if kind == "noise" and mark.lastgroup == "square" and _is_attached(text, mark.start(), mark.end()):
                kind = "broken"
            made.changes.append(Change(kind, " ".join(whole.split()), " ".join(inside)))
            yield from ((word, False) for word in inside)
        yield from ((word, False) for word in text[place:].split())

    def _listed(self, mark: str) -> str | None:
        """Return the mark as the dictionary lists it, in any case; None if it does not."""
        return mark if mark in self._lexicon else self._near.in_other_case(mark)

    def _of_mark(self, group: str, inside: str) -> tuple[Kind, list[str]]:
        """Return the kind of a mark, and the words in it that were said."""
        words = inside.split()
        if group == "variant":
            return "punctuation", []
        if group == "guessed":
            return ("guessed", words) if any(map(bare, words)) else ("unclear", [])
        if group == "said":
            return "inside", words
        if _UNCLEAR.search(inside.replace("_", " ")):
            return "unclear", []
        if group == "round" and len(words) > 1 and _OF_SENTENCES.search(inside) and not _EVENT.search(inside):
            return "inside", words
        return "noise" if any(map(bare, words)) else "punctuation", []

    def _plain(self, word: str, last: bool) -> tuple[tuple[str, ...], Kind | None]:
        """Return the replacement of a word without marks, and the kind of the change; None if it stays."""
        if (found := self._known.get((word, last))) is None:
            found = self._known[word, last] = self._made_of(word, last)
        return found

    def _made_of(self, word: str, last: bool) -> tuple[tuple[str, ...], Kind | None]:
        plain = word.replace("\u2019", "'")
        near = word if word in self._lexicon else self._near.get(word)
        if near is not None:
            if (short := self._without_stop(near, last)) is not None:
                return (short,), "stop"
            return (near,), None if near == word else _kind(word, plain, near)
        if _UNCLEAR_WORD.fullmatch(bare(word)):
            return (), "unclear"
        letters = self._letters(plain)
        if letters:
            return letters, "letters"
        made = self._near.in_case(bare(plain))
        return ((made,) if made else ()), None if made == word else _kind(word, plain, made)

    def _without_stop(self, listed: str, last: bool) -> str | None:
        """Return a word without its full stop, if the stop is the sentence's or does not change the pronunciation; else
        None."""
        if not listed.endswith("."):
            return None
        short = listed[:-1] if listed[:-1] in self._lexicon else self._near.in_other_case(listed[:-1])
        if short is None or not bare(short):
            return None
        said, said_short = (set(self._lexicon.pronunciations[one]) for one in (listed, short))
        return short if said <= said_short or (last and "." not in short) else None

    def _letters(self, word: str) -> tuple[str, ...]:
        """Return the letters of an abbreviation with stops, if the dictionary has them all; else nothing."""
        dotted = word.rstrip(",;:!?\"')").lstrip("\"'(")
        if not _DOTTED.fullmatch(dotted):
            return ()
        found = [self._near.get(letter) for letter in dotted.split(".") if letter]
        return tuple(one for one in found if one is not None) if all(found) else ()


def _kind(word: str, plain: str, made: str) -> Kind:
    """Return the kind of a change of spelling."""
    if made.casefold() == word.casefold():
        return "case"
    if folded(made) == folded(word):
        return "characters"
    if folded(made) == folded(plain):
        return "apostrophe"
    gone = plain.casefold().replace(made.casefold(), "", 1) if made else plain
    return "symbol" if any(character in _SYMBOLS for character in gone) else "punctuation"


def _is_attached(text: str, start: int, end: int) -> bool:
    """Return True if a stretch of a text is part of a word broken off with a hyphen: th[ink]-, -[th]at."""
    before, after = text[:start][-1:], text[end:][:1]
    return (before == "-" or after == "-") and not (before + after).isspace()
