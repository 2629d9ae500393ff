"""Transcripts with marks, as NIST's files have them: alternatives, optional words, fragments.

    { he is / he has / @ }   any of these is right; @ is no word at all
    (uh)                     may be left out: counts as correct when it is missing
    wo-   -ing               a fragment: correct against any word that begins, or ends, like it

A transcript becomes a network whose paths are the readings; without marks the network is a chain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NOTHING = "@"  # the empty alternative
DEPTH = 20  # of brackets in brackets; real files have two


class MarkError(ValueError):
    """Marks that do not fit together; the message says which."""


class Arc(NamedTuple):
    """From `start` to the node that lists it, saying `word`; None says nothing."""

    start: int
    word: str | None
    optional: bool

    @property
    def free(self) -> bool:
        """Whether it may be passed without an error when the other side says nothing."""
        return self.optional or self.word is None


@dataclass(frozen=True)
class Network:
    """Nodes 0 to n - 1 in topological order; the readings are the paths from node 0 to the last node."""

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


def plain_network(words: Iterable[str]) -> Network:
    """The chain of these words, whatever characters they are made of."""
    return Network(((), *((Arc(node, word, False),) for node, word in enumerate(words))))


def marked_network(words: Sequence[str]) -> Network:
    """The network of a transcript in which marks mean what NIST's files mean by them.

    Raises:
        MarkError: brackets that do not fit together, an alternative outside braces, brackets nested too deep.
    """
    builder = _Builder([*_tokens(words)])
    builder.sequence(0, "", False, 0)
    return Network(tuple(tuple(arcs) for arcs in builder.into))


def is_fragment_of(fragment: str, word: str) -> bool:
    """Whether `wo-` begins like the word, or `-ing` ends like it."""
    if len(fragment) < 2:
        return False
    return (fragment[-1] == "-" and word.startswith(fragment[:-1])) or (
        fragment[0] == "-" and word.endswith(fragment[1:])
    )


def _tokens(words: Iterable[str]) -> Iterator[str]:
    """Words and the marks `{ } / ( )`, each alone. A slash outside braces is part of its word."""
    depth = 0
    for word in words:
        start = 0
        for place, character in enumerate(word):
            if character in "{}()" or (character == "/" and depth):
                if start < place:
                    yield word[start:place]
                yield character
                start = place + 1
                depth += (character == "{") - (character == "}" and depth > 0)
        if start < len(word):
            yield word[start:]


class _Builder:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.place = 0
        self.into: list[list[Arc]] = [[]]

    def sequence(self, node: int, closing: str, optional: bool, depth: int) -> int:
        """Read until a token of `closing` (left unread) or, where that is empty, to the end; the last node."""
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
            elif token == NOTHING and depth:
                node = self.step(node, None, False)
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
