"""Global mapping rules (GLM): different spellings of the same word are unified before words are counted.

The format is NIST1, as in the filters of the Hub5 evaluations:

    ;; a comment
    * name = "words.glm"
    * format = 'NIST1'
    * case_sensitive = 'F'
    UM       => %hesitation         / [ ] __ [ ]     ;; in place of a word: between blanks
    [GONNA]  => [GOING TO]          / [ ] __ [ ]     ;; square brackets or double quotes keep blanks
    HE'S     => { HE IS / HE HAS }  / [ ] __ [ ]     ;; any of these will be right
    ;; INPUT_DEPENDENT_APPLICATION = "ref"           ;; from here on: for references only
    [%hesitation] => [(%hesitation)] / [ ] __ [ ]

A rule replaces a string of characters where its contexts stand left and right of the slot `__`; both are looked for in
the text as it was. Rules work in one pass from left to right: at each place the first rule of the file that fits is
used, and its result is not looked at again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from roundelay.core.errors import UserError
from roundelay_speech.scoring.alignment.counts import Texts
from roundelay_speech.scoring.formats.io import content_lines, read_lines

Purpose = Literal["ref", "hyp"]

_SECTION = re.compile(r'\s*;;\s*INPUT_DEPENDENT_APPLICATION\s*=\s*"([^"]*)"', re.IGNORECASE)
_HEADER = re.compile(r"""\s*\*\s*(\w+)\s*=?\s*(?:"([^"]*)"|'([^']*)')""")
_FLAGS = {"T": True, "TRUE": True, "F": False, "FALSE": False}
_ATTACHED_HYPHEN = re.compile(r"(?<=[^\s(])-(?=[^\s)])")  # between two characters of a word, not of a fragment


@dataclass(frozen=True)
class GlmRule:
    """A rule: `before` becomes `after` between `left` and `right`."""

    before: str
    after: str
    left: str = ""
    right: str = ""


_Numbered = tuple[int, GlmRule]
"""A rule and its place in the file."""


@dataclass(frozen=True)
class MappingRules:
    """The rules of a file that apply to references, or to hypotheses."""

    rules: tuple[GlmRule, ...]
    case_sensitive: bool = False
    _words: dict[str, list[_Numbered]] = field(init=False, repr=False, compare=False)  # by their first word
    _others: dict[str, list[_Numbered]] = field(init=False, repr=False, compare=False)  # by their first character

    def __post_init__(self) -> None:
        # Files have thousands of rules, nearly all for whole words: those are found by the word, not tried in turn.
        words: dict[str, list[_Numbered]] = {}
        others: dict[str, list[_Numbered]] = {}
        for order, rule in enumerate(self.rules):
            folded = GlmRule(self._fold(rule.before), rule.after, self._fold(rule.left), self._fold(rule.right))
            first = folded.before.split(" ", 1)[0]
            if folded.left.endswith(" ") and first and (" " in folded.before or folded.right.startswith(" ")):
                words.setdefault(first, []).append((order, folded))
            else:
                others.setdefault(folded.before[0], []).append((order, folded))
        object.__setattr__(self, "_words", words)
        object.__setattr__(self, "_others", others)

    def _fold(self, text: str) -> str:
        """Return a text in upper case, character by character so that places stay the same; unchanged if case
        matters."""
        if self.case_sensitive:
            return text
        return "".join(upper if len(upper := character.upper()) == 1 else character for character in text)

    def rewrite(self, text: str) -> str:
        """Rewrite a text by the rules in one pass, blanks included."""
        folded, out, place = self._fold(text), [], 0
        while place < len(text):
            rule = self._fitting(folded, place)
            out.append(text[place] if rule is None else rule.after)
            place += 1 if rule is None else len(rule.before)
        return "".join(out)

    def _fitting(self, text: str, place: int) -> GlmRule | None:
        """Return the first rule of the file that fits at a place of the text."""
        candidates: list[Sequence[_Numbered]] = [self._others.get(text[place], ())]
        if place and text[place - 1] == " ":
            candidates.append(self._words.get(text[place:].split(" ", 1)[0], ()))
        found = []
        for some in candidates:
            for order, rule in some:
                if (
                    text.startswith(rule.before, place)
                    and text.endswith(rule.left, 0, place)
                    and text.startswith(rule.right, place + len(rule.before))
                ):
                    found.append((order, rule))
                    break
        return min(found, key=lambda item: item[0])[1] if found else None

    def apply(self, words: Sequence[str], *, split_hyphens: bool = False) -> list[str]:
        """Return the words of a transcript after the rules; in upper case unless case matters.

        Args:
            split_hyphens: True if `well-known` becomes two words afterwards (fragments keep their hyphen).
        """
        # Brackets of optional words stand apart while rules are applied, so that `(UM)` is UM between blanks.
        spaced = " ".join(words).replace("(", "( ").replace(")", " )")
        text = self.rewrite(f" {spaced} ")
        if split_hyphens:
            text = _ATTACHED_HYPHEN.sub(" ", text)
        text = re.sub(r"\(\s+", "(", re.sub(r"\s+\)", ")", text))
        return (text if self.case_sensitive else text.upper()).split()

    def apply_to_all(self, texts: Texts, *, split_hyphens: bool = False) -> dict[str, list[str]]:
        """Return the texts of all utterances after the rules, each by `apply`."""
        return {name: self.apply(words, split_hyphens=split_hyphens) for name, words in texts.items()}


def read_glm(path: Path, purpose: Purpose) -> MappingRules:
    """Read the rules that apply to references, or to hypotheses.

    `;; INPUT_DEPENDENT_APPLICATION = "ref"` begins rules for references only; `hyp` for hypotheses, `ref|hyp` or `.*`
    for both. Kinds of files count by their content: stm as ref, ctm as hyp, trn and txt as both.

    Raises:
        UserError: the file is missing or not UTF-8; a line is no rule, has an empty left side or a context without its
            slot; a header is invalid, or its format is not NIST1; a kind does not exist. Names file and line.
    """
    applies, case_sensitive = True, False
    rules: list[GlmRule] = []
    content = dict(content_lines(path))
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}:{number}"
        if match := _SECTION.match(line):
            applies = _applies(match[1], purpose, where)
        elif number in content:
            if line.lstrip().startswith("*"):
                case_sensitive = _header(line, case_sensitive, where)
            else:
                rule = _rule(line, where)
                rules += [rule] if applies else []
    return MappingRules(tuple(rules), case_sensitive)


def _applies(expression: str, purpose: Purpose, where: str) -> bool:
    kinds = {"ref": ("ref", "stm"), "hyp": ("hyp", "ctm")}[purpose]
    # Not compiled: an expression of the file could run for ever on a chosen text. These are lists of kinds.
    wanted = re.split(r"[|,\s()^$]+", expression.lower())
    known = {"", "ref", "hyp", "stm", "ctm", "trn", "txt", "rttm", ".*"}
    if strange := [name for name in wanted if name not in known]:
        raise UserError(f"{where}: INPUT_DEPENDENT_APPLICATION names {strange[0]!r}; write ref, hyp, or both with `|`.")
    return any(name in (*kinds, ".*", "trn", "txt") for name in wanted)


def _header(line: str, case_sensitive: bool, where: str) -> bool:
    """Check a header line; return True if case matters, as far as is known after this line."""
    match = _HEADER.match(line)
    if match is None:
        raise UserError(f"{where}: expected a header like `* case_sensitive = 'F'`, found {line!r}.")
    name, value = match[1].lower(), match[2] if match[2] is not None else match[3]
    if name == "format" and value.upper() != "NIST1":
        raise UserError(f"{where}: rules of format {value!r} are not known here; only NIST1 is.")
    if name == "copy_no_hit" and not _flag(value, where):
        raise UserError(f"{where}: copy_no_hit = {value!r} would delete every word without a rule. Write 'T'.")
    return _flag(value, where) if name == "case_sensitive" else case_sensitive


def _flag(value: str, where: str) -> bool:
    if value.upper() not in _FLAGS:
        raise UserError(f"{where}: {value!r} must be 'T' or 'F'.")
    return _FLAGS[value.upper()]


def _rule(line: str, where: str) -> GlmRule:
    line = line.split(";;", 1)[0]
    before, arrow, rest = line.partition("=>")
    if not arrow:
        raise UserError(f"{where}: expected `before => after / [left] __ [right]`, found {line.strip()!r}.")
    after, context = _split_context(rest)
    left = right = ""
    if context is not None:
        slot = re.search("_+", context)
        if slot is None:
            raise UserError(f"{where}: the context {context.strip()!r} has no slot `__` between left and right.")
        left, right = _unquoted(context[: slot.start()]), _unquoted(context[slot.end() :])
    rule = GlmRule(_unquoted(before), _unquoted(after), left, right)
    if not rule.before:
        raise UserError(f"{where}: there is nothing before `=>`, and nothing is everywhere.")
    return rule


def _split_context(text: str) -> tuple[str, str | None]:
    """Split a side of a rule into its words, and the text after the last slash outside all brackets."""
    depth, at = 0, None
    for place, character in enumerate(text):
        depth += (character in "[{") - (character in "]}" and depth > 0)
        if character == "/" and depth == 0:
            at = place
    return (text, None) if at is None else (text[:at], text[at + 1 :])


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and (text[0], text[-1]) in (("[", "]"), ('"', '"')):
        return text[1:-1]
    return text
