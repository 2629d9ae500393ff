"""Transcripts against the words said: word error rates of recordings whose words are known."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay_speech.corpus.words import by_kind, written_so
from roundelay_speech.data.problems import named
from roundelay_speech.lexicon.cleaning import Change, Cleaner
from roundelay_speech.scoring.formats.io import content_lines
from roundelay_speech.scoring.formats.trn import read_trn
from roundelay_speech.scoring.score import score
from roundelay_speech.scoring.summary import Summary, summarise

_NO_REFERENCES = {
    **dict.fromkeys((".stm", ".ctm"), "`roundelay score --stm REF --ctm HYP` scores words with times"),
    **dict.fromkeys((".json", ".jsonl", ".srt", ".vtt", ".textgrid"), "write its words as lines of `NAME words`"),
}
_LIKE_AN_ID = re.compile(r".*[\d_/].*")
_SORTED = 4  # lines whose first words are in alphabetical order: those are names, not the beginnings of sentences
_FAR = 4  # times as many words on one side, and this many more at least, are hardly of one recording
_MANY = 20


def references(
    path: Path, names: Collection[str], clean: Cleaner | None = None, changes: Counter[Change] | None = None
) -> dict[str, list[str]]:
    """Read the words that were said, by name of the transcript, in capitals.

    A .trn file has `words (name)`, where a speaker may stand before the name; any other file `name words`, as Kaldi's
    `text`. For a single recording the file may hold its words alone.

    Args:
        names: names of the transcripts.
        clean: rewrites the words in those of a model.
        changes: counts the changes by `clean`.

    Raises:
        UserError: the file cannot be read, has a name twice, or lacks a transcript.
    """
    found = _said(path, names)
    result, lacking = {}, []
    for name in names:
        key = name if name in found else _with_speaker(path, name, found)
        if key is None:
            lacking.append(name)
        else:
            words = found[key]
            if clean is not None:
                made = clean(" ".join(words))
                words = made.words
                if changes is not None:
                    changes.update(made.changes)
            result[name] = _compared(words)
    if lacking:
        hint = " One with @ is a channel; `--channel` chooses one." if any("@" in name for name in lacking) else ""
        raise UserError(
            f"{path}: nothing is said there of {named(lacking, 5)}, only of {named([*found], 3)}. Name its lines as "
            f"the recordings.{hint}"
        )
    return result


def _compared(words: Sequence[str]) -> list[str]:
    """Return words as they are compared: in upper case, with composed accents."""
    return [unicodedata.normalize("NFC", word.upper()) for word in words]


def check_reference(path: Path, recordings: Collection[str]) -> None:
    """Check the file of references before anything is recognised.

    Raises:
        UserError: as `references`; or it has no line for any of the recordings.
    """
    found = _said(path, recordings)
    if not any(name in found or _has_channels(name, found) or _with_speaker(path, name, found) for name in recordings):
        references(path, recordings)


def _said(path: Path, names: Collection[str]) -> dict[str, list[str]]:
    """Read the words in a file, by the names in it."""
    if (instead := _NO_REFERENCES.get(path.suffix.lower())) is not None:
        raise UserError(f"--ref {path}: trn, or lines of `NAME words` are read here; {instead}.")
    if path.suffix == ".trn":
        return read_trn(path)
    found: dict[str, list[str]] = {}
    lines = list(content_lines(path, "it is to say what was said"))
    if not lines:
        raise UserError(f"--ref {path}: no words in it.")
    twice = ""
    for number, line in lines:
        name, *words = line.split()
        if name in found:
            twice = twice or f"{path}:{number}: {name} comes twice. Keep one of its lines."
        found[name] = words
    only = next(iter(names)) if len(names) == 1 else None
    if only is not None and not (only in found or _has_channels(only, found) or _with_speaker(path, only, found)):
        if _are_names([*found]):
            raise UserError(
                f"--ref {path}: its lines begin with names ({named([*found], 3)}), and the recording is called {only}. "
                f"Name the line of its words {only}."
            )
        return {only: [word for _, line in lines for word in line.split()]}
    if twice:
        raise UserError(twice)
    return found


def _are_names(firsts: Sequence[str]) -> bool:
    """Return True if the first words of lines look like names of recordings: with digits or underscores in them, or in
    order."""
    alike = sum(bool(_LIKE_AN_ID.fullmatch(first)) for first in firsts)
    return 2 * alike > len(firsts) or (len(firsts) >= _SORTED and list(firsts) == sorted(firsts))


def _has_channels(name: str, found: Collection[str]) -> bool:
    return any(other.startswith(f"{name}@") for other in found)


def _with_speaker(path: Path, name: str, found: Mapping[str, object]) -> str | None:
    """Return the name under which `found` has a transcript, with a speaker or a folder in front; None if it has
    none."""
    last = name.rpartition("/")[2]
    keys = [key for key in found if key == last or key.endswith((f"-{last}", f"_{last}"))]
    if len(keys) > 1:
        raise UserError(f"{path}: {keys[0]} and {keys[1]} may both be {name}. Name the lines as the recordings.")
    return keys[0] if keys else None


def scored(path: Path, texts: Mapping[str, str], clean: Cleaner | None = None) -> tuple[Summary, list[str]]:
    """Count the word errors of transcripts, by name, in any case; return them, and remarks on changes in the reference,
    and on sides that can hardly be of the same speech.

    Raises:
        UserError: as `references`.
    """
    changes = Counter[Change]()
    wanted = references(path, texts, clean, changes)
    heard = {name: _compared(text.split()) for name, text in texts.items()}
    far = [name for name in wanted if _are_far(len(wanted[name]), len(heard[name]))]
    remarks = [f"{path}: {written_so(by_kind(changes))}"] if changes else []
    if far:
        one = far[0]
        remarks.append(
            f"{path} has {len(wanted[one])} words for {one}, where {len(heard[one])} were recognised: are they of the "
            "same speech?"
        )
    return summarise(score(wanted, heard)), remarks


def _are_far(one: int, other: int) -> bool:
    fewer, more = sorted((one, other))
    return more > _FAR * fewer and more - fewer >= _MANY
