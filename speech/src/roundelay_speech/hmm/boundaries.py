"""Distance between the aligned and the true beginnings of phones, on speech whose synthesiser has reported them.

The synthesiser (espeak-ng, see corpus/demo) has phones of its own, more than the lexicon's and in other places where an
accent says a word otherwise. So both sequences of an utterance are matched by least edits, and the phones that mean the
same are compared.

Legend: T frames of one utterance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import parse_json, read_text
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.topology import SILENCE, phone_bounds
from roundelay_speech.lexicon.lexicon import are_by_position, base_phone
from roundelay_speech.prepared import Corpus

PHONE_TIMES = "phone_times.jsonl"  # beside a prepared corpus that was synthesised (see corpus/demo)
FRAME_SHIFT_S = 0.010
FIRST_BOUNDARY_S = 0.0075  # frame 0 is centred at 12.5 ms, and a boundary lies half a shift before its frame's centre

# Phones of the lexicon by the beginning of the synthesiser's; stress marks and variants of these are dropped.
SAME: Mapping[str, frozenset[str]] = {
    name: frozenset(phones.split())
    for name, phones in {
        "p": "P",
        "b": "B",
        "t": "T D",
        "t#": "T D",
        "d": "D",
        "k": "K",
        "g": "G",
        "tS": "CH",
        "dZ": "JH",
        "f": "F",
        "v": "V",
        "T": "TH",
        "D": "DH",
        "s": "S",
        "z": "Z",
        "S": "SH",
        "m": "M",
        "n": "N",
        "l": "L",
        "r": "R",
        "w": "W",
        "j": "Y",
        ";": "Y IY",
        "i": "IY",
        "i:": "IY",
        "I": "IH IY",
        "i@": "IY",
        "IR": "ER",
        "E": "EH",
        "eI": "EY",
        "a": "AE",
        "aI": "AY",
        "aU": "AW",
        "A@": "AA",
        "0": "AA AO",
        "O": "AA AO",
        "O:": "AO",
        "O@": "AO",
        "o@": "AO",
        "oU": "OW",
        "U": "UH UW",
        "u": "UW",
        "u:": "UW",
        "V": "AH",
        "VR": "ER",
        "3": "ER",
        "3:": "ER",
        "@": "AH ER",
        "@L": "AH",
        "@r": "ER",
    }.items()
}

Begins = list[tuple[str, float]]
"""Phones and when they begin, in seconds."""


@dataclass(frozen=True, eq=False)
class BoundaryErrors:
    """The errors of aligned beginnings of phones: aligned minus known, in seconds, for every phone that both have."""

    seconds: npt.NDArray[np.float64]  # (compared,)
    unmatched: int  # aligned phones that the synthesiser did not say, or not there

    @property
    def median_ms(self) -> float:
        """Median of the absolute errors, ms."""
        return 1000 * float(np.median(np.abs(self.seconds)))

    def within(self, seconds: float) -> float:
        """Return the share of errors of at most `seconds`."""
        return float((np.abs(self.seconds) <= seconds + 1e-9).mean())

    def __str__(self) -> str:
        """Return the errors in words."""
        return (
            f"phones begin {self.median_ms:.1f} ms from where they were synthesised (median of {len(self.seconds):,}); "
            f"{100 * self.within(0.02):.0f} % within 20 ms, {100 * self.within(0.05):.0f} % within 50 ms; "
            f"{self.unmatched:,} have no counterpart"
        )


def synthesised_boundaries(corpus: Corpus, alignment: Path) -> list[str]:
    """Return a line on boundary errors for each split of a synthesised corpus; none for speech with unknown times."""
    times = corpus.folder / PHONE_TIMES
    if not times.is_file():
        return []
    aligned, store = Alignment.load(alignment), corpus.features()
    return [
        f"{split}: {boundary_errors(aligned, store, times, [u.id for u in utterances])}"
        for split, utterances in corpus.splits.items()
    ]


def boundary_errors(
    alignment: Alignment, store: FeatureStore, times: Path, utterances: Sequence[str]
) -> BoundaryErrors:
    """Compare the aligned phones of `utterances` (those that are aligned) with the times in a file of the synthesiser.

    Raises:
        UserError: the file is missing or is not one of phone times; no phone could be compared.
    """
    wanted, errors, unmatched = set(utterances), [], 0
    for name, known in read_phone_times(times):
        if name not in wanted:
            continue
        first, frames = store.span(name)
        own = slice(first, first + frames)
        if not frames or alignment.pdf[first] < 0:
            continue
        found = phone_begins(alignment.phones[own], alignment.states[own], alignment.tying.phones)
        pairs = matched([phone for phone, _ in found], [phone for phone, _ in known])
        errors += [found[i][1] - known[j][1] for i, j in pairs]
        unmatched += len(found) - len(pairs)
    if not errors:
        raise UserError(f"{times}: nothing in it can be compared with {alignment.folder}.")
    return BoundaryErrors(np.array(errors), unmatched)


def read_phone_times(path: Path) -> Iterator[tuple[str, Begins]]:
    """Yield (utterance, its phones without pauses) from the lines of a file; names without marks of stress and
    variant."""
    for number, line in enumerate(read_text(path, "prepare the demo corpus").splitlines(), 1):
        try:
            value = parse_json(line)
            named = [(str(name), float(time)) for name, time in value["phones"]]
            yield str(value["id"]), [(_plain(name), time) for name, time in named if not name.startswith("_")]
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}:{number}: not the phone times of an utterance ({error!r}).") from None


def _plain(name: str) -> str:
    name = name.lstrip("',")
    return name if name in SAME else name.rstrip("0123456789#") or name


def phone_begins(phones: npt.NDArray[np.int16], states: npt.NDArray[np.int8], names: Sequence[str]) -> Begins:
    """Return the phones of one aligned utterance (T,) without silence, and when they begin."""
    if not len(phones):
        return []
    plain = [base_phone(name) for name in names] if are_by_position(names) else list(names)
    return [
        (plain[phones[t] - 1], FRAME_SHIFT_S * float(t) + FIRST_BOUNDARY_S)
        for t in phone_bounds(phones, states)[:-1]
        if phones[t] != SILENCE
    ]


def matched(aligned: Sequence[str], known: Sequence[str]) -> list[tuple[int, int]]:
    """Return places of phones that mean the same, by least edits between the two sequences."""
    same = [[a in SAME.get(k, frozenset([k])) for k in known] for a in aligned]
    rows = [list(range(len(known) + 1))]
    for i in range(len(aligned)):
        row = [i + 1]
        for j in range(len(known)):
            row.append(min(rows[i][j] + (not same[i][j]), rows[i][j + 1] + 1, row[j] + 1))
        rows.append(row)
    i, j, pairs = len(aligned), len(known), []
    while i and j:
        if rows[i][j] == rows[i - 1][j - 1] + (not same[i - 1][j - 1]):
            i, j = i - 1, j - 1
            if same[i][j]:
                pairs.append((i, j))
        elif rows[i][j] == rows[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]
