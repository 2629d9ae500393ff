"""Files of scores that a decoding leaves: every file is read back to the same counts."""

import math
from pathlib import Path

import pytest

from roundelay.reports.words import utterances_of
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.scoring import summary
from roundelay_speech.scoring.alignment.counts import score
from roundelay_speech.scoring.alignment.groups import Group
from roundelay_speech.scoring.formats.ctm import TimedWord, write_ctm
from roundelay_speech.scoring.normalise import Rules, case_of_times, cases_of_run
from roundelay_speech.scoring.summary import place_of, summarise, summarise_subsets, word_errors, write_score

RATE = 8000
TEXTS = {"u1": "ONE TWO THREE", "u2": "FOUR FIVE", "u3": "SIX"}
HYPS = {"u1": ["ONE", "THREE"], "u2": ["FOUR", "FIVE", "NINE"], "u3": ["SIX"]}


def utterance(name: str, start: float) -> Utterance:
    return Utterance(name, "rec", "rec.wav", start, 2.0, 1, RATE, 2 * RATE, f"s{name[-1]}", TEXTS[name])


UTTERANCES = [utterance(name, 10.0 * place) for place, name in enumerate(TEXTS)]


def test_all_files_tell_the_same(tmp_path: Path) -> None:
    result = score({u.id: u.words for u in UTTERANCES}, HYPS)
    folder = tmp_path / "decode" / "test"
    write_score(folder, summarise(result), {}, UTTERANCES)
    timed = {name: [TimedWord(w, 0.5 * n, 0.25, 0.9) for n, w in enumerate(words)] for name, words in HYPS.items()}
    write_ctm(folder / "hyp.ctm", timed, {u.id: place_of(u) for u in UTTERANCES})
    (case,) = cases_of_run(tmp_path)
    assert case.score(Rules()).errors == result.errors
    assert case.groups["s1-u1"] == Group("s1")
    assert case_of_times(folder / "ref.stm", folder / "hyp.ctm").score(Rules()).errors == result.errors
    assert (folder / "ref.stm").read_text().startswith("rec 2 s1 0.000 2.000 <o> ONE TWO THREE\n")
    assert (folder / "wer.txt").read_text() == f"{summarise(result)}\n"
    assert "95 % interval" in (folder / "wer.txt").read_text()
    told = utterances_of(tmp_path, "test")  # as the report reads them
    assert {u.id: [hyp for _, hyp in u.pairs if hyp is not None] for u in told} == HYPS
    assert [(u.id, u.speaker, u.words) for u in told] == [("u1", "s1", 3), ("u2", "s2", 2), ("u3", "s3", 1)]
    assert sum(len(u.wrong) for u in told) == result.errors.total


def test_the_record_holds_the_interval() -> None:
    result = score({u.id: u.words for u in UTTERANCES}, HYPS)
    assert summarise_subsets(result, UTTERANCES) == {}
    record = word_errors(summarise(result), {"swb": summarise(result)}, 0.1)
    assert record.interval is not None
    low, high = record.interval
    assert low <= record.wer <= high
    assert record.subsets["swb"].ref == record.ref == 6


def test_parts_of_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    result = score({u.id: u.words for u in UTTERANCES}, HYPS)
    subsets: dict[str, str | None] = {"u1": "swb", "u2": "swb", "u3": "callhm"}
    monkeypatch.setattr(summary, "group_of_utterance", lambda u: Group(u.speaker, subsets[u.id]))
    assert {name: str(part.score.errors) for name, part in summarise_subsets(result, UTTERANCES).items()} == {
        "callhm": "%WER 0.00 [ 0 / 1, 0 ins, 0 del, 0 sub ]",
        "swb": "%WER 40.00 [ 2 / 5, 1 ins, 1 del, 0 sub ]",
    }
    subsets["u3"] = "swb"
    assert summarise_subsets(result, UTTERANCES) == {}, "one part that is all of it says nothing new"


def test_one_utterance_has_no_interval() -> None:
    alone = summarise(score({"u3": ["SIX"]}, {"u3": ["SIX"]}))
    assert alone.interval is None
    assert word_errors(alone, {}, math.pi).interval is None
    assert str(alone) == "%WER 0.00 [ 0 / 1, 0 ins, 0 del, 0 sub ]"
