"""Conventions of transcripts of telephone conversations, and the words that are made of them.

Switchboard-1 (Mississippi State, 1998), Fisher (2004, 2005) and Hub5-2000 each have marks of their own for laughter,
broken words, unsure stretches and letters. Here all three become the same words, lower case. The table is `RULES`; each
rule is applied to one word, in order, again and again until none fits; a word that becomes nothing is dropped.

Not in the table, for it needs the dictionary: Switchboard writes IBM and NASA alike. A word of two or more capitals is
spelled out, one word a letter, if the dictionary says it as the names of its letters or does not have it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from roundelay_speech.lexicon.lexicon import Lexicon, Pronunciation


@dataclass(frozen=True)
class Rule:
    """A rule of transcripts: a pattern for a whole word, its replacement (one word or several), and the reason."""

    pattern: re.Pattern[str]
    replacement: str
    reason: str
    example: tuple[str, str]


def _rule(pattern: str, replacement: str, reason: str, before: str, after: str) -> Rule:
    return Rule(re.compile(pattern), replacement, reason, (before, after))


RULES: tuple[Rule, ...] = (
    _rule(r"<.*>", "", "a mark about speech, such as an aside to somebody in the room", "<b_aside>", ""),
    _rule(r"\[laughter-(.+)\]", r"\1", "said while laughing: the word counts", "[laughter-yes]", "yes"),
    _rule(r"\[[^]/]+/(.+)\]", r"\1", "said / meant: the word that was meant", "[splace/space]", "space"),
    _rule(r"\[[^][]*\]", "", "silence, noise, laughter, breath, cough: no words", "[vocalized-noise]", ""),
    _rule(r"\{(.+)\}", r"\1", "a coinage is a word", "{yuppiedom}", "yuppiedom"),
    _rule(r"(.+)_\d+", r"\1", "a number tells ways to say a word apart, which the dictionary does", "them_1", "them"),
    _rule(r"([^][]+)\[[^][]+\]-", r"\1-", "broken off: what was heard, and a hyphen", "th[ink]-", "th-"),
    _rule(r"-\[[^][]+\]([^][]+)", r"-\1", "beginning not heard: a hyphen, and what was", "-[th]at", "-at"),
    _rule(r"-?\[[^][]+\]-?", "", "nothing of the word was heard", "-[w]-", ""),
    _rule(r"\(\(?(.*?)\)?\)", r"\1", "brackets of a scorer: may be left out, but was said", "(and)", "and"),
    _rule(r"((?:[a-z]\.[_ ]?)+)('?s)?", "letters", "letters have points: one word each", "t._v.", "t v"),
    _rule(r"([a-z](?:_[a-z])+)('?s)?", "letters", "letters with lines between them", "c_d", "c d"),
    _rule(r"%hesitation|u+h+|eh|er", "uh", "one spelling for what the voice does while thinking", "er", "uh"),
    _rule(r"u+m+|e+m", "um", "the same with closed lips", "umm", "um"),
    _rule(r"mhm+|mm-?hmm?|u[hm]-?hu?mm?|um-?hmm?|mhmm", "um-hum", "one spelling for a hummed yes", "mm-hmm", "um-hum"),
    _rule(r"uhhuh|a-huh|uh-?hunh", "uh-huh", "one spelling for an open yes", "uhhuh", "uh-huh"),
    _rule(r"uh-uh|huhuh|hunh-?uh|unh-?unh", "huh-uh", "one spelling for a grunted no", "uh-uh", "huh-uh"),
    _rule(r"hmm+|hum", "hm", "one spelling for a thoughtful sound", "hmm", "hm"),
    _rule(r"mmm+", "mm", "the same", "mmm", "mm"),
    _rule(r"--?|[.,?!;:\"]+", "", "punctuation alone is no word", "--", ""),
    _rule(r"(.*[a-z'-])[,?!;:\".]+", r"\1", "punctuation behind a word", "well,", "well"),
)
_LETTERS = re.compile(r"[a-z]")
_SUFFIX = re.compile(r"'?s$")
_CAPITALS = re.compile(r"([A-Z]{2,})('?s)?")


def words_of(text: str, dictionary: Lexicon | None = None) -> list[str]:
    """Return the words of a transcript by the rules; `dictionary`, as published, decides which capitals are spelled."""
    return [made for word in text.split() for made in _made_of(word, dictionary)]


def _made_of(word: str, dictionary: Lexicon | None) -> Sequence[str]:
    if dictionary is not None and (match := _CAPITALS.fullmatch(_unwrapped(word))):
        return _capitals(match[1], match[2] or "", dictionary)
    return _by_rules(word.lower())


@lru_cache(maxsize=1 << 16)
def _by_rules(word: str) -> tuple[str, ...]:
    seen = set()
    while word and word not in seen:
        seen.add(word)
        for rule in RULES:
            if match := rule.pattern.fullmatch(word):
                if rule.replacement == "letters":
                    return _spelled(match[1], match[2] or "")
                made = match.expand(rule.replacement)
                if made != word:
                    word = made
                    break
        else:
            break
    return (word,) if word else ()


def _unwrapped(word: str) -> str:
    """Return a word without surrounding marks that do not change it."""
    match = re.fullmatch(r"\[laughter-(.+)\]|\{(.+)\}|(.+)_\d+", word)
    return next((inside for inside in match.groups() if inside), word) if match else word


def _spelled(letters: str, suffix: str) -> tuple[str, ...]:
    found = _LETTERS.findall(letters)
    return (*found[:-1], found[-1] + ("'s" if suffix else ""))


def _capitals(letters: str, suffix: str, dictionary: Lexicon) -> Sequence[str]:
    word = letters + suffix
    variants = dictionary.pronunciations.get(word) or dictionary.pronunciations.get(word.lower(), ())
    if variants and not any(rest_of_spelling(letters, phones, dictionary) is not None for phones in variants):
        return _by_rules(word.lower())
    return _spelled(letters.lower(), suffix)


def rest_of_spelling(letters: str, phones: Pronunciation, dictionary: Lexicon) -> Pronunciation | None:
    """Return the rest of a pronunciation after the names of `letters`; None unless it begins with those.

    At most two phones may be left, those of a plural or genitive.
    """
    for rest in _spellings(letters, phones, dictionary):
        if len(rest) <= 2:
            return rest
    return None


def _spellings(letters: str, phones: Pronunciation, dictionary: Lexicon) -> Iterator[Pronunciation]:
    if not letters:
        yield phones
        return
    for name in letter_names(letters[0], dictionary):
        if phones[: len(name)] == name:
            yield from _spellings(letters[1:], phones[len(name) :], dictionary)


def letter_names(letter: str, dictionary: Lexicon) -> tuple[Pronunciation, ...]:
    """Return the pronunciations of a letter's name in the dictionary, in any of its spellings."""
    forms = (letter.upper(), letter.lower(), f"{letter.upper()}.", f"{letter.lower()}.")
    return tuple(p for form in forms for p in dictionary.pronunciations.get(form, ()))


def lexicon_of(dictionary: Lexicon) -> Lexicon:
    """Return the words of a dictionary under the names that `words_of` gives them, marks without words left out.

    Letters with a suffix (`TVs`, said `t v's`) get the suffix that the dictionary has after the letters.
    """
    found: dict[str, dict[Pronunciation, None]] = {}
    for word, variants in dictionary.pronunciations.items():
        made = words_of(word, dictionary)
        for phones in variants:
            if len(made) == 1:
                found.setdefault(made[0], {})[phones] = None
            elif made and (said := _last_letter(made, phones, dictionary)):
                found.setdefault(made[-1], {})[said] = None
    return Lexicon({word: tuple(said) for word, said in found.items()}, dictionary.silence)


def _last_letter(made: Sequence[str], phones: Pronunciation, dictionary: Lexicon) -> Pronunciation | None:
    letters = [_SUFFIX.sub("", word) or word for word in made]
    rest = rest_of_spelling("".join(letters), phones, dictionary)
    if rest is None:
        return None
    name = next(n for n in letter_names(letters[-1], dictionary) if phones[: len(phones) - len(rest)][-len(n) :] == n)
    return (*name, *rest)


def table() -> str:
    """Return the rules as the rows of a Markdown table, for the documentation."""
    rows = [(rule.example[0], rule.example[1] or "(nothing)", rule.reason) for rule in RULES]
    return "\n".join(f"| `{before}` | {after} | {reason} |" for before, after, reason in rows)
