"""Transcripts that a packed model is scored against: their case and punctuation may not be those of its words."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roundelay_speech.corpus.words import written_so
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.packed import transcripts
from roundelay_speech.packed.evaluate import Evaluating, _scored
from roundelay_speech.packed.speech_data import SpeechData
from roundelay_speech.packed.transcripts import in_words_of

WORDS = Lexicon({"YES": (("Y",),), "NO": (("N",),)})
MODEL: Any = SimpleNamespace(lexicon=WORDS)
SAID = Utterance("a", "a", "a.wav", 0.0, 1.0, 0, 8000, 8000, "s", "yes, No. -- YES")
HEARD: Any = {"a": SimpleNamespace(words=("YES", "NO", "YES"), timed=(), adapted=True)}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "known_words", lambda model: model.lexicon)


@pytest.mark.parametrize(
    ("options", "errors", "known"),
    [
        (Evaluating(), 3, (3, 0, 2)),
        (Evaluating(ignore_case=True), 3, (3, 0, 2)),
        (Evaluating(clean_transcripts=True), 0, (0, 0, 0)),
    ],
)
def test_transcripts_with_punctuation(options: Evaluating, errors: int, known: tuple[int, int, int]) -> None:
    data, clean = SpeechData(Path(), {"test": [SAID]}), None
    if options.clean_transcripts:
        data, changed = in_words_of(MODEL, data)
        clean = changed["test"]
    found = _scored(MODEL, ("test", data.splits["test"]), HEARD, options, clean)
    assert found.summary is not None
    assert found.summary.score.errors.total == errors
    assert (found.unknown, found.other_case, found.punctuated) == known
    assert sum(found.unknown_words.values()) == found.unknown


def test_what_was_done_to_transcripts_is_said() -> None:
    left = replace(SAID, id="b", text="<cough>")
    data, changed = in_words_of(MODEL, SpeechData(Path(), {"test": [SAID, left], "new": [replace(SAID, text="")]}))
    assert [u.text for u in data.splits["test"]] == ["YES NO YES"]
    assert [u.text for u in data.splits["new"]] == [""]
    clean = changed["test"]
    found = _scored(MODEL, ("test", data.splits["test"]), HEARD, Evaluating(), clean)
    assert found.changes == {"noise": 1, "punctuation": 3}
    assert [one.reason for one in found.left_out] == ["b: nothing but noises (<cough>)"]
    assert "1 x marks of noises and pauses, 3 x punctuation removed" in written_so(found.changes)
