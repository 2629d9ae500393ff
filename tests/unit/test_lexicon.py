"""Lexicon files, phone ids, and words that are missing."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.lexicon.lexicon import (
    Lexicon,
    MissingWord,
    case_of,
    parse_lexicon,
    read_lexicon,
    resolve_missing_words,
    write_lexicon,
)
from support.corpora import utterance
from support.said import refusal

LEXICON = Lexicon({"YES": (("Y", "EH", "S"),), "NO": (("N", "OW"),), "A": (("AH",), ("EY",)), "<UNK>": (("SPN",),)})
LETTERS = st.text("ABCDEFGH'-", min_size=1, max_size=4)


def saying(*texts: str) -> list[Utterance]:
    return [utterance(f"s-{i}", "x.wav", text=text) for i, text in enumerate(texts, 1)]


def test_cmu_format() -> None:
    text = """\
;;; a comment
# another
A   AH
A(2)\tEY
HELLO  HH AH0 L OW1 # greeting

HELLO(2) HH EH0 L OW1
HELLO HH AH0 L OW1
'TIS T IH Z
"""
    lexicon = parse_lexicon(text, "here")
    assert lexicon.pronunciations == {
        "A": (("AH",), ("EY",)),
        "HELLO": (("HH", "AH0", "L", "OW1"), ("HH", "EH0", "L", "OW1")),
        "'TIS": (("T", "IH", "Z"),),
    }
    lower = parse_lexicon(text, "here", case="lower")
    assert lower.words == ("'tis", "a", "hello")
    assert lower.pronunciations["a"] == (("AH",), ("EY",))
    assert parse_lexicon(text, "here", strip_stress=True).pronunciations["HELLO"][0] == ("HH", "AH", "L", "OW")


def test_stress_marks_are_those_of_cmu_vowels_only() -> None:
    lexicon = parse_lexicon("MA M A1\nAH AH3 AH2\n", "here", strip_stress=True)
    assert lexicon.pronunciations == {"MA": (("M", "A1"),), "AH": (("AH3", "AH"),)}


def test_silence_is_phone_one() -> None:
    assert LEXICON.phones == ("SIL", "AH", "EH", "EY", "N", "OW", "S", "SPN", "Y")
    assert LEXICON.phone_ids["SIL"] == 1
    assert LEXICON.phone_ids["Y"] == 9
    assert Lexicon({"UH": (("SIL",), ("AH",))}).phones == ("SIL", "AH")
    assert LEXICON.words == ("<UNK>", "A", "NO", "YES")
    assert "NO" in LEXICON
    assert "no" not in LEXICON


@given(st.dictionaries(LETTERS, st.lists(st.lists(LETTERS, min_size=1).map(tuple), min_size=1, unique=True).map(tuple)))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, words: dict[str, tuple[tuple[str, ...], ...]]) -> None:
    path = tmp_path_factory.getbasetemp() / "lexicon.txt"
    lexicon = Lexicon(words or {"A": (("AH",),)})
    write_lexicon(path, lexicon)
    assert read_lexicon(path) == lexicon


def test_everything_wrong_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("YES Y EH S\nNO\n<eps> N\nHASH #1x #1\nX X\nSTOP # S T AA P\n<s> SIL\nGO 0.5 G OW\n")
    found = [line.strip() for line in refusal(read_lexicon, path).splitlines()[1:]]
    assert found == [
        f"{path}:2: NO has no phones",
        f"{path}:3: <eps> is reserved for decoding graphs; delete or rename it",
        f"{path}:4: HASH has no phones",
        f"{path}:6: STOP has no phones",
        f"{path}:7: <s> is reserved for decoding graphs; delete or rename it",
        f"{path}:8: GO has the number 0.5 where a phone should be; instead of Kaldi's lexiconp.txt, which "
        "has probabilities, take lexicon.txt",
    ]


def test_no_lexicon(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file; a pronunciation lexicon is needed"):
        read_lexicon(tmp_path / "none")
    (tmp_path / "empty").write_text(";;; nothing\n")
    with pytest.raises(UserError, match="no words in it"):
        read_lexicon(tmp_path / "empty")
    (tmp_path / "latin").write_bytes("CAFÉ K AE F EY\n".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        read_lexicon(tmp_path / "latin")


def test_all_missing_words_are_counted() -> None:
    missing = LEXICON.missing_words(saying("YES MAYBE", "PERHAPS NO", "MAYBE MAYBE"))
    assert missing == [MissingWord("MAYBE", 3, "s-1"), MissingWord("PERHAPS", 1, "s-2")]


def test_error_policy_lists_them_all_and_hints_at_case() -> None:
    unknown = [f"WORD{i}" for i in range(30)]
    message = refusal(resolve_missing_words, saying("YES", " ".join(unknown), "no no"), LEXICON)
    assert message.startswith("31 words of the transcripts not in the lexicon")
    assert "1 of them the lexicon has in another case" in message
    assert "  no (2 x, first in s-3; the lexicon has NO)" in message
    assert all(f"  {word} (1 x, first in s-2)" in message for word in unknown)
    assert "`--on-missing-words skip`" in message
    assert "`--on-missing-words map --map-to WORD`" in message


def test_skip_policy_leaves_utterances_out() -> None:
    said = saying("YES", "YES MAYBE PERHAPS MAYBE", "NO")
    kept, left_out = resolve_missing_words(said, LEXICON, "skip")
    assert kept == [said[0], said[2]]
    assert [(one.id, one.reason) for one in left_out] == [("s-2", "s-2: not in the lexicon: MAYBE, PERHAPS")]
    assert resolve_missing_words(said[1:2], LEXICON, "skip")[0] == []


def test_map_policy_rewrites_transcripts() -> None:
    mapped, left_out = resolve_missing_words(saying("YES MAYBE NO"), LEXICON, "map", "<UNK>")
    assert [u.text for u in mapped] == ["YES <UNK> NO"]
    assert left_out == []
    with pytest.raises(UserError, match="--map-to MAYBE: not a word of the lexicon"):
        resolve_missing_words(saying("YES"), LEXICON, "map", "MAYBE")
    with pytest.raises(UserError, match="--on-missing-words map needs --map-to WORD"):
        resolve_missing_words(saying("YES"), LEXICON, "map")


def test_nothing_missing_is_no_change() -> None:
    said = saying("YES A NO")
    assert resolve_missing_words(said, LEXICON) == (said, [])


def test_packed(tmp_path: Path) -> None:
    path = tmp_path / "words.dict.gz"
    path.write_bytes(gzip.compress(b"YES Y EH S\n"))
    assert read_lexicon(path).pronunciations == {"YES": (("Y", "EH", "S"),)}
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="a damaged gzip file"):
        read_lexicon(path)


def test_the_case_of_words() -> None:
    assert case_of(["YES", "IT'S", "<unk>", "3"]) == "upper"
    assert case_of(["yes", "[NOISE]"]) == "lower"
    for words in (["Yes", "no"], ["3", "<unk>"], []):
        assert case_of(words) == "keep"
