"""Units: words written in them and read again; merges against a plain implementation of the definition."""

from collections import Counter
from itertools import pairwise

import pytest

from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.units import Bpe, Characters, Phones
from roundelay_speech.units.base import BLANK, WORD_START, UnitSet
from roundelay_speech.units.bpe import learned
from support.toy_speech import LEXICON, sentences

TEXT = [" ".join(words) for words in sentences(stream(0, "units"), 40)]


def by_definition(counts: Counter[str], number: int) -> list[tuple[str, str]]:
    """All pairs counted anew for every merge."""
    words = {word: (WORD_START, *word) for word in counts}
    found: list[tuple[str, str]] = []
    while len(found) < number:
        pairs = Counter[tuple[str, str]]()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        best = sorted(pairs, key=lambda pair: (-pairs[pair], pair))
        if not best or pairs[best[0]] < 2:
            return found
        left, right = best[0]
        found.append(best[0])
        for word, pieces in words.items():
            row: list[str] = []
            for piece in pieces:
                if row and row[-1] == left and piece == right:
                    row[-1] = left + right
                else:
                    row.append(piece)
            words[word] = tuple(row)
    return found


def test_merges_are_those_of_the_definition() -> None:
    counts = Counter(word for text in TEXT for word in text.split())
    some, every = learned(counts, 12), by_definition(counts, 1000)
    assert len({"".join(pair) for pair in some}) == 12
    assert some == every[: len(some)]
    assert learned(counts, 1000) == every
    assert learned(Counter({"AAAA": 3}), 5) == [("A", "A"), ("AA", "AA"), (WORD_START, "AAAA")]


@pytest.mark.parametrize("kind", [Characters(), Bpe(size=15), Bpe(size=1000)], ids=["characters", "some", "all"])
def test_words_are_written_and_read_again(kind: Characters | Bpe) -> None:
    units = kind.units(LEXICON, TEXT)
    assert units.columns[0] == BLANK
    for text in TEXT:
        written = units.written(text.split(), LEXICON)
        assert written is not None
        assert set(written) <= set(units.names)
        assert units.words(written) == tuple(text.split())
    assert units.spell("TOTO") is not None
    assert units.spell("QUIZ") is None
    assert units.written(["GO", "QUIZ"], LEXICON) is None
    if kind == Bpe(size=1000):
        assert units.spell("STOP") == (f"{WORD_START}STOP",)
    if kind == Bpe(size=15):
        assert len(units.names) == 15


def test_phones_by_the_first_pronunciation_without_silence() -> None:
    units = Phones().units(LEXICON, TEXT)
    assert units.names == LEXICON.phones[1:]
    assert units.written(["TO", "GO"], LEXICON) == ("T", "UW", "G", "OW")
    assert units.written(["UNKNOWN"], LEXICON) is None
    noisy = Lexicon({"A": (("SIL", "AH"),)})
    assert Phones().units(noisy, []).written(["A"], noisy) == ("AH",)
    with pytest.raises(ValueError, match="no words"):
        units.words(["T"])


def test_kept_as_json() -> None:
    for kind in (Phones(), Characters(), Bpe(size=20)):
        units = kind.units(LEXICON, TEXT)
        assert build(UnitSet, plain(units)) == units


def test_the_mark_of_a_beginning_is_reserved() -> None:
    with pytest.raises(UserError, match="marks beginnings"):
        Characters().units(LEXICON, [f"A{WORD_START}B"])
    with pytest.raises(UserError, match=r"units\.size"):
        Bpe(size=1)
