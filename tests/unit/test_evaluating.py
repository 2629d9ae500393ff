"""Transcripts that a packed model is scored against: their case and punctuation may not be those of its words."""

from types import SimpleNamespace
from typing import Any

import pytest

from roundelay.packed.evaluate import Evaluating, _scored
from roundelay.speech.data.manifest import Utterance
from roundelay.speech.lexicon.lexicon import Lexicon

MODEL: Any = SimpleNamespace(lexicon=Lexicon({"YES": (("Y",),), "NO": (("N",),)}))
SAID = Utterance("a", "a", "a.wav", 0.0, 1.0, 0, 8000, 8000, "s", "yes, No. -- YES")
HEARD: Any = {"a": SimpleNamespace(words=("YES", "NO", "YES"))}


@pytest.mark.parametrize(
    ("options", "errors", "known"),
    [
        (Evaluating(), 3, (3, 0, 2)),
        (Evaluating(ignore_case=True), 3, (3, 0, 2)),
        (Evaluating(clean_transcripts=True), 0, (0, 0, 0)),
    ],
)
def test_transcripts_with_punctuation(options: Evaluating, errors: int, known: tuple[int, int, int]) -> None:
    found = _scored(MODEL, "test", [SAID], HEARD, options)
    assert found.summary is not None
    assert found.summary.score.errors.total == errors
    assert (found.unknown, found.other_case, found.punctuated) == known
