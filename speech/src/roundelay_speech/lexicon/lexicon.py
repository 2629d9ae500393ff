"""Words and how they are said.

A lexicon file is CMU's: a word, blanks, its phones; more ways to say a word as `WORD(2)`; `;;;` begins a comment line
and `#` a comment.

All ways to say a row of words, every pronunciation with a silence or none at the ends and between words, are a graph
without cycles, whose arcs are phones. Nodes are numbered so that arcs lead to higher numbers; node 0 is the beginning.
"""

import dataclasses
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from roundelay.core.errors import UserError
from roundelay.core.files import read_text, write_text
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut, counted, listing, named
from roundelay_speech.lexicon.marks import is_mark

MissingWordPolicy = Literal["error", "skip", "map", "guess"]
LexiconCase = Literal["keep", "upper", "lower"]

Pronunciation = tuple[str, ...]

POSITIONS = WORD_BEGIN, WORD_END, INSIDE, SINGLE = "_B", "_E", "_I", "_S"
"""Marks of phones by their place in the word: first of several, last of several, in between, the only one."""

_VARIANT = re.compile(r"(.+)\((\d+)\)")
_COMMENT = re.compile(r"(^|\s)#.*")
STRESSED = re.compile(r"^(AA|AE|AH|AO|AW|AY|EH|ER|EY|IH|IY|OW|OY|UH|UW)[012]$")
_CASED: Mapping[LexiconCase, Callable[[str], str]] = {"keep": str, "upper": str.upper, "lower": str.lower}
# Names that a decoding graph uses for itself.
_RESERVED = re.compile("<eps>|<s>|</s>")
_PROBABILITY = re.compile(r"\d*\.\d+(e-\d+)?")


@dataclass(frozen=True)
class MissingWord:
    """A word of the transcripts that the lexicon does not have."""

    word: str
    count: int
    first: str  # the utterance where it occurs first


@dataclass(frozen=True)
class Lexicon:
    """A lexicon: all pronunciations of all words; a pronunciation is a tuple of one or more phones.

    `inventory` names phones that exist even if no word has them.
    """

    pronunciations: Mapping[str, tuple[Pronunciation, ...]]
    silence: str = "SIL"
    inventory: frozenset[str] = frozenset()

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words, sorted."""
        return tuple(sorted(self.pronunciations))

    @cached_property
    def phones(self) -> tuple[str, ...]:
        """The phones: silence first, then the others sorted. The id of a phone is its position + 1; 0 is epsilon."""
        spoken = {phone for variants in self.pronunciations.values() for phones in variants for phone in phones}
        return (self.silence, *sorted((spoken | self.inventory) - {self.silence}))

    @cached_property
    def phone_ids(self) -> Mapping[str, int]:
        """Id of each phone, from 1."""
        return {phone: position + 1 for position, phone in enumerate(self.phones)}

    def __contains__(self, word: object) -> bool:
        return word in self.pronunciations

    def by_position(self) -> "Lexicon":
        """Return the lexicon in phones marked by their position in the word: AH_B, AH_I, AH_E, or AH_S for a word of
        one phone.

        Every phone but silence has all four forms, whether a word has them or not.

        Raises:
            UserError: the phones have such marks already.
        """
        if are_by_position(self.phones):
            raise UserError(
                f"The phones of the lexicon tell their place in the word already ({', '.join(self.phones[1:5])}, ...): "
                "leave align.position_dependent off."
            )
        inventory = frozenset(f"{p}{mark}" for p in self.phones if p != self.silence for mark in POSITIONS)
        words = {word: tuple(map(self._marked, variants)) for word, variants in self.pronunciations.items()}
        return dataclasses.replace(self, pronunciations=words, inventory=inventory)

    def _marked(self, phones: Pronunciation) -> Pronunciation:
        marks = [SINGLE] if len(phones) == 1 else [WORD_BEGIN, *[INSIDE] * (len(phones) - 2), WORD_END]
        return tuple(p if p == self.silence else p + mark for p, mark in zip(phones, marks, strict=True))

    def in_phones(self, phones: Sequence[str]) -> "Lexicon":
        """Return the lexicon in the kind of `phones`: itself, or, if those are by position and its own are not, its
        form by position, with all of `phones` if they include its own."""
        if are_by_position(phones) and not are_by_position(self.phones):
            marked = self.by_position()
            if set(marked.phones) <= set(phones):
                return dataclasses.replace(marked, inventory=frozenset(phones) - {self.silence})
        return self

    def missing_words(self, utterances: Iterable[Utterance]) -> list[MissingWord]:
        """Return all words of the transcripts that have no pronunciation, the most frequent first."""
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for utterance in utterances:
            for word in utterance.words:
                if word not in self.pronunciations:
                    counts[word] += 1
                    first.setdefault(word, utterance.id)
        return [
            MissingWord(word, count, first[word])
            for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ]

    def to_text(self) -> str:
        """Return the lexicon in CMU's format, words sorted."""
        lines = []
        for word in self.words:
            for number, phones in enumerate(self.pronunciations[word], 1):
                lines.append(f"{word if number == 1 else f'{word}({number})'} {' '.join(phones)}\n")
        return "".join(lines)


def are_by_position(phones: Sequence[str]) -> bool:
    """Return True if `phones`, silence first, are the four forms by position of each phone (see
    `Lexicon.by_position`)."""
    spoken = set(phones[1:])
    return bool(spoken) and spoken == {base_phone(phone) + mark for phone in spoken for mark in POSITIONS}


def base_phone(phone: str) -> str:
    """Return a phone without the mark of its position: AH for AH_B."""
    return phone[:-2] if phone.endswith(POSITIONS) else phone


def case_of(words: Iterable[str]) -> LexiconCase:
    """Return the case of all words: "keep" if they differ or have none. Marks such as `<unk>` do not count."""
    plain = [word for word in words if word[:1].isalpha()]
    upper, lower = (all(word == change(word) for word in plain) for change in (str.upper, str.lower))
    return "keep" if upper == lower else "upper" if upper else "lower"


def read_lexicon(
    path: Path, silence: str = "SIL", *, strip_stress: bool = False, case: LexiconCase = "keep"
) -> Lexicon:
    """Read a lexicon in CMU's format, plain or packed with gzip.

    `strip_stress` makes `AH` of the CMU vowels `AH0`, `AH1`, `AH2`; `case` changes that of the words (not of the
    phones) to that of the transcripts. A pronunciation given twice counts once.

    Raises:
        UserError: a missing or damaged file, a word without phones, a name reserved for decoding graphs, no words;
            every faulty line is listed with file:line.
    """
    text = read_text(path, "a pronunciation lexicon is needed (CMU format: WORD PHONE PHONE ...)")
    return parse_lexicon(text, str(path), silence, strip_stress=strip_stress, case=case)


def parse_lexicon(
    text: str, where: str, silence: str = "SIL", *, strip_stress: bool = False, case: LexiconCase = "keep"
) -> Lexicon:
    """Read a lexicon from text, as `read_lexicon` does; `where` names the text in messages."""
    found: dict[str, dict[Pronunciation, None]] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(";;;"):
            continue
        if "\0" in line:
            problems.append(f"{where}:{number}: a zero byte; this is no text")
            continue
        fields = _COMMENT.sub("", line).split()
        if not fields:
            continue
        variant = _VARIANT.fullmatch(fields[0])
        word = _CASED[case](variant[1] if variant else fields[0])
        phones = tuple(STRESSED.sub(r"\1", phone) if strip_stress else phone for phone in fields[1:])
        if variant and _VARIANT.fullmatch(variant[1]):
            problems.append(f"{where}:{number}: {fields[0]} has two numbers of a variant")
        if not phones:
            problems.append(f"{where}:{number}: {word} has no phones")
        elif _PROBABILITY.fullmatch(phones[0]):
            problems.append(
                f"{where}:{number}: {word} has the number {phones[0]} where a phone should be; instead of Kaldi's "
                "lexiconp.txt, which has probabilities, take lexicon.txt"
            )
        problems += [
            f"{where}:{number}: {name} is reserved for decoding graphs; delete or rename it"
            for name in (word, *phones)
            if _RESERVED.fullmatch(name)
        ]
        found.setdefault(word, {})[phones] = None
    if not found:
        problems.append(f"{where}: no words in it")
    if problems:
        raise UserError(f"{where}: {counted(len(problems), 'fault')} in the lexicon:\n{listing(problems)}")
    return Lexicon({word: tuple(variants) for word, variants in found.items()}, silence)


def write_lexicon(path: Path, lexicon: Lexicon) -> None:
    """Write a lexicon in CMU's format, atomically."""
    write_text(path, lexicon.to_text())


def resolve_missing_words(
    utterances: Sequence[Utterance], lexicon: Lexicon, policy: MissingWordPolicy = "error", map_to: str | None = None
) -> tuple[list[Utterance], list[LeftOut]]:
    """Make transcripts fit the lexicon, for training and alignment.

    `skip` leaves out utterances with missing words, and so does `guess`, since guesses are in the lexicon by then (see
    g2p); `map` replaces each missing word by `map_to`, itself a word of the lexicon. Never score against the result: a
    word that the recogniser cannot know still counts as its error.

    Returns:
        The utterances that are left, and those left out with the reason.

    Raises:
        UserError: under `error`, some words are missing: all of them, with counts and where each occurs first; under
            `map`, no or an unknown `map_to`.
    """
    if policy == "map" and (map_to is None or map_to not in lexicon):
        raise UserError(
            f"--map-to {map_to}: not a word of the lexicon, so missing words cannot be mapped to it. Name one that is, "
            "or add a line for an unknown word to the lexicon."
            if map_to
            else "--on-missing-words map needs --map-to WORD, the word of the lexicon that stands for missing ones."
        )
    missing = lexicon.missing_words(utterances)
    if not missing:
        return list(utterances), []
    if policy == "error":
        raise missing_words_error(missing, lexicon)
    if policy == "map":
        return [_mapped(u, lexicon, map_to or "") for u in utterances], []
    absent = {m.word for m in missing}
    kept = [u for u in utterances if absent.isdisjoint(u.words)]
    left_out = [
        LeftOut(u.id, f"{u.id}: not in the lexicon: {named([w for w in dict.fromkeys(u.words) if w in absent], 5)}")
        for u in utterances
        if not absent.isdisjoint(u.words)
    ]
    return kept, left_out


def _mapped(utterance: Utterance, lexicon: Lexicon, map_to: str) -> Utterance:
    return dataclasses.replace(utterance, text=" ".join(w if w in lexicon else map_to for w in utterance.words))


def folded(word: str) -> str:
    """Return a form that is the same for words that differ only by case, or by the code of characters with accents: `é`
    is one code or two, and looks the same."""
    return unicodedata.normalize("NFC", word.casefold())


class NearWords:
    """A search for a lexicon's words by other spellings, which differ only by case, by the code of characters with
    accents (`folded`), or by punctuation at the ends."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._folded: dict[str, str] = {}
        for word in lexicon.pronunciations:
            self._folded.setdefault(folded(word), word)
        self._case = case_of(lexicon.pronunciations)

    def get(self, word: str) -> str | None:
        """Return the lexicon's word that is spelled nearly as `word`; None if it has none."""
        plain = word.replace("\u2019", "'")  # the apostrophe of typesetters
        for form in (plain, bare(plain, "'"), bare(plain)):
            if (found := self._folded.get(folded(form))) is not None:
                return found
        return None

    def in_other_case(self, word: str) -> str | None:
        """Return the lexicon's word that differs from `word` at most by case; None if it has none."""
        return self._folded.get(folded(word))

    def in_case(self, word: str) -> str:
        """Return a word in the case of the lexicon's words, if they all have the same."""
        return _CASED[self._case](word)


def bare(word: str, but: str = "") -> str:
    """Return the word without punctuation and symbols at its ends; characters of `but` stay."""
    first, last = 0, len(word)
    while first < last and _is_mark(word[first], but):
        first += 1
    while first < last and _is_mark(word[last - 1], but):
        last -= 1
    return word[first:last]


def _is_mark(character: str, but: str) -> bool:
    return character not in but and unicodedata.category(character)[0] in "PSC"


def missing_words_error(missing: Sequence[MissingWord], lexicon: Lexicon) -> UserError:
    """Return the error that lists all missing words, by which the user can extend the lexicon."""
    near = NearWords(lexicon)
    marks = [m for m in missing if is_mark(m.word)]
    others = {m.word: near.get(m.word) for m in missing if not is_mark(m.word)}
    missing = [m for m in missing if m.word in others]
    close = [m for m in missing if others[m.word] is not None]
    absent = [m for m in missing if others[m.word] is None]
    parts = [
        f"{counted(len(missing) + len(marks), 'word')} of the transcripts not in the lexicon. Add them to it, or train "
        "and align without their utterances (`--on-missing-words skip`), with another word in their place "
        "(`--on-missing-words map --map-to WORD`) or with guessed pronunciations (`--on-missing-words guess`); when "
        "scoring, words of no training transcript stay errors either way:"
    ]
    if absent:
        parts.append(listing([f"{m.word} ({m.count} x, first in {m.first})" for m in absent], shown=len(absent)))
        if marked := sum(bare(m.word) != m.word for m in absent):
            parts.append(f"{marked} of these have punctuation at their ends, which `--clean-transcripts` removes.")
    if marks:
        parts.append(f"{len(marks)} of them are marks of noises, which `--clean-transcripts` takes out:")
        parts.append(listing([f"{m.word} ({m.count} x, first in {m.first})" for m in marks]))
    if close:
        lines = [f"{m.word} ({m.count} x, first in {m.first}; the lexicon has {others[m.word]})" for m in close]
        parts.append(
            f"{len(close)} of them the lexicon has in another case, without punctuation, or in other characters that "
            "look the same; `--clean-transcripts` writes them as the lexicon does:"
        )
        parts.append(listing(lines))
    return UserError("\n".join(parts))


EDGES, BETWEEN = 0.8, 0.2
"""Probability of a silence at either end of an utterance, and between two of its words, as assumed by flat-start LF-MMI
(Hadian et al. 2018)."""
OPENING, CLOSING = "<s>", "</s>"


@dataclass(frozen=True)
class SaidArc:
    """An arc of `Said`: a phone, the node to which it leads, and its probability."""

    phone: str
    target: int
    probability: float  # of all arcs that leave a node, and of ending there, the sum is 1


@dataclass(frozen=True)
class Said:
    """All pronunciations of a sequence of words, as an automaton of phones."""

    arcs: tuple[tuple[SaidArc, ...], ...]  # that leave each node
    ends: tuple[float, ...]  # probability of ending in each node

    def shortest(self) -> int:
        """Return the number of phones of the shortest way."""
        least: list[float] = [0.0, *[math.inf] * (len(self.arcs) - 1)]
        for node, arcs in enumerate(self.arcs):
            for arc in arcs:
                least[arc.target] = min(least[arc.target], least[node] + 1)
        return int(min(size for size, end in zip(least, self.ends, strict=True) if end > 0))


def ways_to_say(words: Sequence[str], lexicon: Lexicon) -> Said | None:
    """Return all pronunciations of a sequence of words, those of a word with equal probability; None if a word has
    none."""
    if any(word not in lexicon for word in words):
        return None
    arcs: list[list[SaidArc]] = []
    ends: list[float] = []

    def node() -> int:
        arcs.append([])
        ends.append(0.0)
        return len(arcs) - 1

    here, paused = node(), node()
    for number, word in enumerate(words):
        silence = EDGES if number == 0 else BETWEEN
        arcs[here].append(SaidArc(lexicon.silence, paused, silence))
        variants = lexicon.pronunciations[word]
        inner = [[node() for _ in said[1:]] for said in variants]
        after, after_paused = node(), node()
        for said, nodes in zip(variants, inner, strict=True):
            way = [*nodes, after]
            share = 1.0 / len(variants)
            arcs[here].append(SaidArc(said[0], way[0], (1.0 - silence) * share))
            arcs[paused].append(SaidArc(said[0], way[0], share))
            for place, phone in enumerate(said[1:]):
                arcs[way[place]].append(SaidArc(phone, way[place + 1], 1.0))
        here, paused = after, after_paused
    silence = EDGES if words else 1.0
    arcs[here].append(SaidArc(lexicon.silence, paused, silence))
    ends[here], ends[paused] = 1.0 - silence, 1.0
    return Said(tuple(map(tuple, arcs)), tuple(ends))


def expected_ngrams(said: Said, order: int) -> Counter[tuple[str, ...]]:
    """Return the expected number of occurrences of every n-gram of phones.

    An n-gram is a history of up to `order` - 1 phones, with `OPENING` first where it begins an utterance, and then a
    phone or `CLOSING`.
    """
    found: Counter[tuple[str, ...]] = Counter()
    reached: list[defaultdict[tuple[str, ...], float]] = [defaultdict(float) for _ in said.arcs]
    reached[0][(OPENING,)] = 1.0
    keep = order - 1
    for node, arcs in enumerate(said.arcs):
        for history, mass in reached[node].items():
            shown = history[len(history) - min(keep, len(history)) :]
            for arc in arcs:
                part = mass * arc.probability
                found[(*shown, arc.phone)] += part  # type: ignore[assignment]
                longer = (*shown, arc.phone)
                reached[arc.target][longer[max(0, len(longer) - keep) :]] += part
            if said.ends[node] > 0:
                found[(*shown, CLOSING)] += mass * said.ends[node]  # type: ignore[assignment]
    return found
