"""Confused phones, by hand."""

from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.scoring.score import score
from roundelay_speech.scoring.summary import confused_phones

WORDS = {"TO": "T UW", "DAY": "D EY", "TODAY": "T UW D EY", "TWO": "T UW", "DAD": "D AE D", "BAD": "B AE D", "A": "AH"}
LEXICON = Lexicon({word: (tuple(phones.split()),) for word, phones in WORDS.items()})


def phones(ref: str, hyp: str) -> dict[tuple[str | None, str | None], int]:
    return dict(confused_phones(score({"u": ref.split()}, {"u": hyp.split()}), LEXICON))


def test_one_phone_of_a_word() -> None:
    assert phones("A DAD A", "A BAD A") == {("D", "B"): 1}


def test_other_words_of_the_same_phones_confuse_nothing() -> None:
    assert phones("TODAY A", "TO DAY A") == {}
    assert phones("TO A", "TWO A") == {}


def test_words_that_are_lost_or_invented_are_phones_that_are() -> None:
    assert phones("DAD A", "DAD") == {("AH", None): 1}
    assert phones("DAD", "DAD TO") == {(None, "T"): 1, (None, "UW"): 1}


def test_words_without_pronunciation_are_left_out_with_what_stands_beside_them() -> None:
    assert phones("XYZ DAD A DAD", "A BAD A BAD") == {("D", "B"): 1}


def test_position_makes_no_other_phone() -> None:
    lexicon = Lexicon({"A": (("AH_S",),), "O": (("OW_S",),)})
    found = confused_phones(score({"u": ["A"]}, {"u": ["O"]}), lexicon)
    assert dict(found) == {("AH", "OW"): 1}
