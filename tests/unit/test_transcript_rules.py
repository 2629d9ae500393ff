"""Transcripts of conversations, and the words made of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay_speech.corpus.readers.transcript_rules import RULES, Rule, lexicon_of, table, words_of
from roundelay_speech.lexicon.lexicon import Lexicon

DICTIONARY = Lexicon(
    {
        "I": (("ay",),),
        "B": (("b", "iy"),),
        "m": (("eh", "m"),),
        "a": (("ax",), ("ey",)),
        "IBM": (("ay", "b", "iy", "eh", "m"),),
        "IBMs": (("ay", "b", "iy", "eh", "m", "z"),),
        "AM": (("ey", "eh", "m"),),
        "NASA": (("n", "ae", "s", "ax"),),
        "th[ink]-": (("th",),),
        "th[at]-": (("dh",),),
        "them": (("dh", "eh", "m"),),
        "them_1": (("eh", "m"),),
        "[silence]": (("sil",),),
        "uhhuh": (("ax", "hh", "ah"),),
    }
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example[0])
def test_examples_of_the_table(rule: Rule) -> None:
    before, after = rule.example
    assert rule.pattern.fullmatch(before)
    assert " ".join(words_of(before)) == after


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[silence]", ""),
        ("[laughter-[splace/space]] [laughter] oh", "space oh"),
        ("I th[ink]- -[th]at -[w]- {them_1}", "i th- -at them"),
        ("<b_aside> come here <e_aside> uh-huh", "come here uh-huh"),
        ("mhm mm-hm uh-hum um-hmm um-hum", "um-hum um-hum um-hum um-hum um-hum"),
        ("uh um uhh umm", "uh um uh um"),
        ("t._v.'s c_d's i. b. m.", "t v's c d's i b m"),
        ("o'clock can't twenty-one uh-oh 'cause", "o'clock can't twenty-one uh-oh 'cause"),
        ("(%HESITATION) (AND) ((WELL) OKAY,", "uh and well okay"),
        ("it -- [lipsmack] was , fine .", "it was fine"),
    ],
)
def test_transcripts(text: str, words: str) -> None:
    assert " ".join(words_of(text)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("IBM", "i b m"),
        ("[laughter-IBMs]", "i b m's"),
        ("NASA", "nasa"),
        ("CNN", "c n n"),  # unknown: the letters are the best guess
        ("AM", "a m"),
        ("I am Bob", "i am bob"),
    ],
)
def test_the_dictionary_decides_about_capitals(text: str, words: str) -> None:
    assert " ".join(words_of(text, DICTIONARY)) == words


def test_the_dictionary_under_the_same_names() -> None:
    lexicon = lexicon_of(DICTIONARY)
    assert lexicon.words == ("a", "b", "i", "m", "m's", "nasa", "th-", "them", "uh-huh")
    assert lexicon.pronunciations["m's"] == (("eh", "m", "z"),)
    assert lexicon.pronunciations["th-"] == (("th",), ("dh",))
    assert lexicon.pronunciations["them"] == (("dh", "eh", "m"), ("eh", "m"))


@given(st.text(alphabet="abs.'_-[]{}()/<>%1AB ", max_size=30))
def test_every_text_ends_in_words_that_stay_as_they_are(text: str) -> None:
    words = words_of(text, DICTIONARY)
    assert all(word and word == word.lower() and not word.isspace() for word in words)


def test_the_page_shows_the_table() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "corpora_named.md"
    assert table() in page.read_text()
