"""Transcripts with marks, as NIST's files have them: alternatives, optional words, fragments, attributes.

    { he is / he has / @ }   any of these is right; @ is no word at all, inside braces and outside
    (uh)                     may be left out: counts as correct when it is missing
    wo-   -ing               a fragment: correct against any word that begins, or ends, like it, whichever side it is on
    word;noun;loud   word*   attributes of the word, which are not compared; `\\;` is a semicolon of the word itself

A transcript becomes a network whose paths are the readings; without marks the network is a chain.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NOTHING = "@"  # no word: the empty alternative
DEPTH = 20  # of brackets in brackets; real files have two


class MarkError(ValueError):
    """Marks do not fit together; the message says which."""


class Arc(NamedTuple):
    """An arc of a network, from `start` to the node that lists it, with a word; None is no word, or an `@` if it is
    optional."""

    start: int
    word: str | None
    optional: bool

    @property
    def free(self) -> bool:
        """True if the arc may be passed without an error against nothing on the other side."""
        return self.optional or self.word is None


@dataclass(frozen=True)
class WordNetwork:
    """A network of words: nodes 0 to n - 1 in topological order; its readings are the paths from node 0 to the last
    node."""

    into: tuple[tuple[Arc, ...], ...]  # by node, alternatives in the order they were written

    @property
    def chain(self) -> list[str] | None:
        """The words, if there is one reading without marks; else None."""
        words = []
        for node, arcs in enumerate(self.into[1:]):
            if len(arcs) != 1 or arcs[0].start != node or arcs[0].word is None or arcs[0].optional:
                return None
            words.append(arcs[0].word)
        return words


def plain_network(words: Iterable[str]) -> WordNetwork:
    """Return the network that is a chain of words, of any characters."""
    return WordNetwork(((), *((Arc(node, word, False),) for node, word in enumerate(words))))


def marked_network(words: Sequence[str]) -> WordNetwork:
    """Return the network of a transcript in which marks mean the same as in NIST's files.

    Raises:
        MarkError: brackets do not fit together, or are nested too deep.
    """
    builder = _Builder([*_tokens(words)])
    builder.sequence(0, "", False, 0)
    return WordNetwork(tuple(tuple(arcs) for arcs in builder.into))


def fragments_match(ref: str, hyp: str) -> bool:
    """Return True if two words that differ match because one of them is a fragment of the other.

    A fragment in the reference decides alone, as in sclite: `wo-` is not right against `w-`.
    """
    return is_fragment_of(ref, hyp) if is_fragment(ref) else is_fragment_of(hyp, ref)


def is_fragment(word: str) -> bool:
    """Return True if the word begins or ends with a hyphen, and is more than that."""
    return len(word) > 1 and "-" in (word[0], word[-1])


def is_fragment_of(fragment: str, word: str) -> bool:
    """Return True if `wo-` begins like the word, or `-ing` ends like it. With a hyphen at both ends, the first
    counts."""
    if not is_fragment(fragment):
        return False
    return word.endswith(fragment[1:]) if fragment[0] == "-" else word.startswith(fragment[:-1])


_ATTRIBUTES = re.compile(r"(?<!\\);.*", re.DOTALL)  # from the first semicolon that is not escaped


def without_attributes(word: str) -> str:
    """Return the part of a word that is compared: `A;S` for `A\\;S;NOUN`, and `WORD` for `WORD*`. A semicolon alone is
    a word."""
    bare = _ATTRIBUTES.sub("", word).replace("\\", "") or word[:1]
    return bare[:-1] if len(bare) > 1 and bare.endswith("*") else bare


def _tokens(words: Iterable[str]) -> Iterator[str]:
    """Yield words without their attributes and the marks `{ } / ( )`, each alone. A slash outside braces is part of its
    word."""
    depth = 0
    for word in words:
        start = 0
        for place, character in enumerate(word):
            if character in "{}()" or (character == "/" and depth):
                yield from _piece(word, start, place)
                yield character
                start = place + 1
                depth += (character == "{") - (character == "}" and depth > 0)
        yield from _piece(word, start, len(word))


def _piece(word: str, start: int, end: int) -> Iterator[str]:
    """Yield the word between two marks, if there is one: in `(uh);noun`, the text behind the bracket belongs to the
    word before."""
    if start < end and not (word[start] == ";" and word[:start].endswith(")")):
        yield without_attributes(word[start:end])


class _Builder:
    """Reader of a transcript's tokens that builds the lattice of all that may be said."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.place = 0
        self.into: list[list[Arc]] = [[]]

    def sequence(self, node: int, closing: str, optional: bool, depth: int) -> int:
        """Read words until a token of `closing` (left unread) or, if that is empty, to the end; return the last
        node."""
        if depth > DEPTH:
            raise MarkError(f"brackets are nested more than {DEPTH} deep")
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            if token in closing:
                return node
            if token in ("}", ")"):
                raise MarkError(f"a {token!r} closes nothing")
            self.place += 1
            if token == "{":
                node = self.alternatives(node, optional, depth)
            elif token == "(":
                node = self.sequence(node, ")", True, depth + 1)
                self.place += 1
            elif token == NOTHING:
                node = self.step(node, None, True)
            else:
                node = self.step(node, token, optional)
        if closing:
            raise MarkError(f"a {'{' if '}' in closing else '('!r} is not closed")
        return node

    def alternatives(self, node: int, optional: bool, depth: int) -> int:
        ends = []
        while True:
            ends.append(self.sequence(node, "}/", optional, depth + 1))
            self.place += 1
            if self.tokens[self.place - 1] == "}":
                break
        self.into.append([Arc(end, None, False) for end in ends])
        return len(self.into) - 1

    def step(self, node: int, word: str | None, optional: bool) -> int:
        self.into.append([Arc(node, word, optional)])
        return len(self.into) - 1
