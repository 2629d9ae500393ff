"""Folds of a corpus: everybody is left out once, and nothing of them, nor a copy, is where a model could hear it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay_speech.corpus.folds import DEV, TEST, fold, speaker_parts
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.prepared import TRAIN, Corpus

RATE = 8000
FOLDER = Path("data/whole")
WOMEN = {"ann": 30, "eva": 20, "ida": 10}
MEN = {"abe": 5, "bob": 50, "cal": 40, "dan": 40, "ed": 30, "gus": 30, "hal": 10}


def utterance(name: str, speaker: str, seconds: float, **more: object) -> Utterance:
    fields = {"gender": "f" if speaker in WOMEN else "m", "path": f"wav/{name}.wav", **more}
    samples = round(seconds * RATE)
    return replace(Utterance(name, name, "", 0.0, seconds, 0, RATE, samples, speaker, "YES"), **fields)  # type: ignore[arg-type]


def corpus(**splits: Sequence[Utterance]) -> Corpus:
    known = {"YES": (("Y", "EH", "S"),)}
    return Corpus(FOLDER, "folded", {name: list(some) for name, some in splits.items()}, Lexicon(known), RATE)


@pytest.fixture
def whole() -> Corpus:
    """Ten speakers of train and test, copies of all of train, one of dev."""
    people = {**WOMEN, **MEN}
    said = [utterance(f"{name}-{i}", name, seconds / 2) for name, seconds in people.items() for i in range(2)]
    train, test = [u for u in said if u.speaker not in ("ann", "hal")], [u for u in said if u.speaker in ("ann", "hal")]
    copies = [replace(u, id=f"sp0.9-{u.id}", speaker=f"sp0.9-{u.speaker}", speed=0.9) for u in train]
    copies += [replace(u, id=f"vtln1.1-{u.id}", speaker=f"vtln1.1-{u.speaker}", warp=1.1) for u in train]
    return corpus(train=[*train, *copies], dev=[utterance("zoe-0", "zoe", 3.0)], test=test)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_each_speaker_is_left_out_once_and_heard_in_all_other_folds(whole: Corpus, count: int) -> None:
    parts = speaker_parts(whole, count)
    assert sorted(name for part in parts for name in part) == sorted([*WOMEN, *MEN])
    for number, part in enumerate(parts):
        made = fold(whole, parts, number, Path("exp/fold"))
        assert {u.speaker for u in made.splits[TEST]} == set(part)
        assert not any(u.copied for u in made.splits[TEST])
        heard = {u.speaker.removeprefix("sp0.9-").removeprefix("vtln1.1-") for u in made.splits[TRAIN]}
        assert heard == {*WOMEN, *MEN} - set(part)
        assert [u.id for u in made.splits[DEV]] == ["zoe-0"]


def test_parts_have_as_many_women_and_men_as_can_be_and_like_seconds(whole: Corpus) -> None:
    parts = speaker_parts(whole, 3)
    for kind, numbers in ((WOMEN, {1}), (MEN, {2, 3})):
        assert {sum(name in kind for name in part) for part in parts} == numbers
    seconds = [sum({**WOMEN, **MEN}[name] for name in part) for part in parts]
    assert max(seconds) - min(seconds) <= max(MEN.values())
    assert parts == speaker_parts(whole, 3)


def test_without_dev_the_next_part_takes_its_place(whole: Corpus) -> None:
    alone = corpus(train=whole.splits["train"], test=whole.splits["test"])
    parts = speaker_parts(alone, 3)
    for number in range(3):
        made = fold(alone, parts, number, Path("exp/fold"))
        assert {u.speaker for u in made.splits[DEV]} == set(parts[(number + 1) % 3])
        speakers = [{u.speaker.split("-")[-1] for u in made.splits[name]} for name in (TRAIN, DEV, TEST)]
        assert sum(map(len, speakers)) == len(set().union(*speakers))
    with pytest.raises(UserError, match="3 is the least, for data/whole has no split dev"):
        speaker_parts(alone, 2)


def test_words_that_only_held_out_speech_had_are_known_where_they_are_trained_on(whole: Corpus) -> None:
    there = {**whole.splits, "test": [replace(u, text="NO") for u in whole.splits["test"]]}
    found = replace(whole, splits=there, held_out_words={"NO": (("N", "OW"),)})
    parts = [("ann", "hal"), tuple(sorted({*WOMEN, *MEN} - {"ann", "hal"}))]
    without, with_them = (fold(found, parts, number, Path("exp/fold")) for number in (0, 1))
    assert ("NO" in without.lexicon, "NO" in without.held_out_words) == (False, True)
    assert ("NO" in with_them.lexicon, "NO" in with_them.held_out_words) == (True, False)


def test_audio_is_found_from_the_folder_of_the_fold(
    whole: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = fold(whole, speaker_parts(whole, 2), 0, Path("exp/folds/fold-1"))
    assert (made.folder / made.splits[DEV][0].path).resolve() == (FOLDER / "wav/zoe-0.wav").resolve()


def test_too_few_speakers(whole: Corpus) -> None:
    with pytest.raises(UserError, match="has 10 speakers outside dev"):
        speaker_parts(whole, 11)
    with pytest.raises(UserError, match="--folds 1: 2 is the least"):
        speaker_parts(whole, 1)
