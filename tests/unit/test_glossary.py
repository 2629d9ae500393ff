"""Words: the terms of docs/architecture.md are the code's, and words of our own that have gone do not come back.

Names, comments and docstrings of the package are read; the text of messages is not.
"""

import io
import re
import token
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "roundelay"
SPEECH, LABORATORY = ROOT / "speech" / "src" / "roundelay_speech", ROOT / "lab" / "src" / "roundelay_lab"
PAGE = ROOT / "docs" / "architecture.md"

GONE = {
    "ferr(?:y|ies|ied)": "exchange client",
    "passages?": "channel",
    "desks?": "session",
    "quays?": "outbox",
    "cargo(?:es)?": "codec, payload",
    "(?<!in )flights?": "row lease",  # a request in flight is the trade's
    "crossings?": "exchange",
    "letters?": "contribution",
    "crews?": "local runtime",
    "conductors?": "coordinator",
    "keepers?": "row host",
    "lend(?:s|ing)?|lent": "wait for the leader",
    "school": "training",
    "voices?": "ensemble member",
    "doors?": "router, listener",
    "mesh(?:es)? of links": "peer links",
    "books?": "leases, state",
    "bury|buried": "reap",
    "culprits?": "problem",
    "newcomers?": "replacement",
    "performers?": "external driver",
}
"""Words of our own that were once used, and the words of the trade in their place."""

MEANT = {
    ("letters?", "speech/lexicon/marks.py"): "letters do not say how a noise sounds",
    ("letters?", "speech/lexicon/cleaning.py"): "abbreviations are spelled",
    ("letters?", "speech/corpus/words.py"): "letters do not say how a noise sounds",
    ("doors?", "speech/lexicon/marks.py"): "a door that slams",
    ("letters?", "speech/lexicon/g2p.py"): "letters of the alphabet",
    ("letters?", "speech/lexicon/letter_phone.py"): "letters of the alphabet",
    ("letters?", "speech/corpus/readers/transcript_rules.py"): "words are spelled in transcripts",
    ("letters?", "speech/corpus/readers/hub5.py"): "words are spelled in transcripts",
    ("letters?", "speech/corpus/demo/make.py"): "words are spelled in the demo",
    ("letters?", "speech/kaldi_io/objects.py"): "Kaldi's tokens begin with a letter",
    ("letters?", "reports/numbers.py"): "1.2M has a letter",
    ("letters?", "terminal.py"): "letters of scripts",
    ("voices?", "speech/corpus/demo/make.py"): "speech synthesis",
    ("voices?", "speech/corpus/demo/voice.py"): "speech synthesis",
    ("voices?", "speech/corpus/readers/calls.py"): "the voice of a caller",
    ("voices?", "speech/decode/evidence.py"): "speech synthesis",
    ("books?", "speech/corpus/readers/librispeech.py"): "audio books",
    ("books?", "speech/decode/lm/arpa_file.py"): "a book as one line of text",
    ("books?", "speech/hmm/flat_start.py"): "The HTK Book",
    ("books?", "speech/hmm/gmm.py"): "The HTK Book",
    ("crossings?", "speech/audio/speed.py"): "zero crossings of a wave",
}
"""Places in which a word means what it means in English, or in the trade: (word, file) -> why."""


@cache
def words_of(path: Path) -> str:
    """Names, comments and docstrings of a file; CamelCase and snake_case are taken apart."""
    kept = [path.stem]
    before = token.NEWLINE
    for piece in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        begins = before in (token.NEWLINE, token.INDENT, token.DEDENT)
        if piece.type in (token.NAME, token.COMMENT) or (piece.type == token.STRING and begins):
            kept.append(piece.string)
        if piece.type not in (token.NL, token.COMMENT):
            before = piece.type
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", " ".join(kept))
    return re.sub(r"[\s_*#]+", " ", apart)


def files() -> dict[str, Path]:
    places = (("", PACKAGE), ("speech/", SPEECH), ("lab/", LABORATORY))
    return {f"{before}{path.relative_to(root)}": path for before, root in places for path in sorted(root.rglob("*.py"))}


def glossary() -> dict[str, str]:
    """Term -> sentence."""
    _, _, words = PAGE.read_text(encoding="utf-8").partition("\n## Words\n")
    entries = re.findall(r"^- \*\*([^*]+)\*\*: (.+(?:\n  .+)*)", words, re.MULTILINE)
    assert len(dict(entries)) == len(entries), "a term stands twice"
    assert len(entries) == len(re.findall(r"^- ", words, re.MULTILINE)), "an entry is not `- **term**: sentence.`"
    return dict(entries)


def used(word: str, text: str) -> bool:
    return bool(re.search(rf"(?<![a-z])(?:{word})(?![a-z])", text, re.IGNORECASE))


def test_every_term_is_one_of_the_code() -> None:
    texts = [words_of(path) for path in files().values()]
    assert not [term for term in glossary() if not any(used(f"{term}s?", text) for text in texts)]


def test_a_term_has_one_sentence() -> None:
    long = [term for term, said in glossary().items() if not re.fullmatch(r"[^.]+(?:\.\d[^.]*)?\.", said)]
    assert not long


def test_no_term_is_a_word_that_has_gone() -> None:
    assert not [term for term in glossary() for word in GONE if used(word, term)]


def test_words_that_have_gone_stay_away() -> None:
    back = re.compile("|".join(f"(?<![a-z])(?:{word})(?![a-z])" for word in GONE), re.IGNORECASE)
    texts = {name: words_of(path) for name, path in files().items()}
    texts = {name: text for name, text in texts.items() if back.search(text)}
    found = {(word, name): GONE[word] for name, text in texts.items() for word in GONE if used(word, text)}
    assert found.keys() == MEANT.keys(), "these words are to be others, or their exceptions are not needed"


def test_words_are_found_in_names_comments_and_docstrings_and_not_in_messages(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text('"""A quay."""\nclass RowFerry:\n    _desk = "voice"  # of a crew\n', encoding="utf-8")
    assert [word for word in GONE if used(word, words_of(source))] == [
        "ferr(?:y|ies|ied)",
        "desks?",
        "quays?",
        "crews?",
    ]


@pytest.mark.parametrize(("page", "said"), [("architecture.md", "deadlock"), ("architecture.md", "exactly once")])
def test_the_page_argues_in_words_that_readers_look_for(page: str, said: str) -> None:
    assert said in (PAGE.parent / page).read_text(encoding="utf-8")
