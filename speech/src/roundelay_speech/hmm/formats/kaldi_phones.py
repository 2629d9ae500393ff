"""Kaldi's phones matched to those of the lexicon, by name.

A name is taken as it is, then without Kaldi's position in the word (_B, _I, _E, _S).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import read_text
from roundelay_speech.data.problems import listing
from roundelay_speech.hmm.topology import SILENCE

POSITION = re.compile(r"(.+)_[BIES]")
_NO_PHONE = re.compile(r"<eps>|#\d+|#.*")


@dataclass(frozen=True)
class PhoneMap:
    """Kaldi's phones and the lexicon's."""

    ours: Mapping[int, int]  # Kaldi's id -> ours; only phones that the lexicon has
    names: Mapping[int, str]  # Kaldi's id -> its name
    # by our id, from 1: Kaldi's phones that are this phone. Of silence the plain one alone, where there is one:
    # silences in a position of a word are rare, and trees seldom hold a pdf of their own for them.
    members: tuple[tuple[int, ...], ...]


def read_symbols(path: Path) -> dict[str, int]:
    """Read a `phones.txt`: a name and a number on every line.

    Raises:
        UserError: missing, or a line is something else; names file and line.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(path, "Kaldi's phones.txt is needed").split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or not fields[1].isdecimal() or len(fields[1]) > 9:
            raise UserError(f"{path}:{number}: not `PHONE NUMBER` but `{line.strip()[:80]}`.")
        if fields[0] in found or int(fields[1]) in found.values():
            raise UserError(f"{path}:{number}: {fields[0]} or its number is there already.")
        found[fields[0]] = int(fields[1])
    if not found:
        raise UserError(f"{path}: no phones in it.")
    return found


def match_phones(symbols: Mapping[str, int], phones: Sequence[str], where: str) -> PhoneMap:
    """Match the phones of `phones.txt` to those of the lexicon (in the order of our ids, silence first).

    Raises:
        UserError: a phone of the lexicon is not among Kaldi's; all are listed.
    """
    ids = {name: place for place, name in enumerate(phones, 1)}
    ours: dict[int, int] = {}
    names: dict[int, str] = {}
    for name, number in symbols.items():
        if _NO_PHONE.fullmatch(name):
            continue
        names[number] = name
        base = POSITION.fullmatch(name)
        found = ids.get(name) or (ids.get(base[1]) if base else None)
        if found is not None and number:
            ours[number] = found
    members: list[tuple[int, ...]] = []
    for name, place in ids.items():
        own = tuple(number for number, phone in sorted(ours.items()) if phone == place)
        members.append((symbols[name],) if place == SILENCE and symbols.get(name) in own else own)
    if absent := [name for name, own in zip(phones, members, strict=True) if not own]:
        raise UserError(
            f"{where}: {len(absent)} phones of the lexicon are not among Kaldi's, with or without a position (_B, _I, "
            f"_E, _S). Name the silence as Kaldi does, and take the lexicon the alignment was made with:\n"
            f"{listing(absent)}"
        )
    return PhoneMap(ours, names, tuple(members))
