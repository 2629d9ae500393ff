"""A speaker's statistics are told from little speech better by how speakers differ than by either of the two."""

from dataclasses import replace

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.features.store import SpeakerStats, SpeakerSums, StoredPart
from roundelay_speech.packed.hearing import ENOUGH_FOR_DEVIATIONS, ENOUGH_FRAMES, Hearing
from roundelay_speech.packed.model import load_model
from roundelay_speech.packed.spread import Directions, SpeakerSpread, loudness

BANDS, SPEAKERS, EACH = 6, 60, 8
PARTS = (StoredPart("fbank", BANDS, 2), StoredPart("raw", 1, 0, "none", filterbank=False))
TILT = np.linspace(-1, 1, BANDS)


def corpus(speakers: int, seed: str) -> tuple[SpeakerStats, list[int], SpeakerStats]:
    """Utterances of 50 frames, of speakers who differ in tilt and in the width of all bands; and one is as loud as the
    other by chance. Utterances themselves differ in every band."""
    rng = stream(0, seed)
    whole, some, of = SpeakerSums(), SpeakerSums(), []
    for speaker in range(speakers):
        tilt, width, loud = rng.normal(0, 2), np.exp(rng.normal(0, 0.3)), rng.normal(0, 5)
        for number in range(EACH):
            mean = 3 + loud + tilt * TILT + rng.normal(0, 0.5, BANDS)
            frames = np.column_stack([mean + width * rng.normal(0, 1, (50, BANDS)), np.full(50, 7)])
            whole.add(f"{speaker:03}", frames.astype(np.float32))
            some.add(f"{speaker:03}-{number}", frames.astype(np.float32))
            of.append(speaker)
    return some.finish(PARTS), of, whole.finish(PARTS)


@pytest.fixture(scope="module")
def spread() -> SpeakerSpread:
    some, of, whole = corpus(SPEAKERS, "training")
    return SpeakerSpread.of_rows(SpeakerSpread.fitted(some, of, whole, PARTS).rows())


def test_new_speakers_are_told_better_than_by_their_utterance_or_by_nothing(spread: SpeakerSpread) -> None:
    some, of, whole = corpus(40, "new")
    one_mean, all_mean = (found.mean.astype(np.float64) for found in (some, whole))
    for directions, of_one, of_all in (
        (spread.means, one_mean - loudness(one_mean, PARTS), all_mean - loudness(all_mean, PARTS)),
        (spread.deviations, np.log(some.std), np.log(whole.std)),
    ):
        expected = np.array([directions.expected(one, 50) for one in of_one])
        apart = [np.square(found - of_all[of]).mean() for found in (expected, of_one, 0 * of_one)]
        assert apart[0] < 0.8 * min(apart[1:])


def test_it_is_the_best_linear_estimate() -> None:
    """If no more directions tell speakers apart than are kept."""
    rng = stream(0, "best")
    some, root = rng.normal(size=(BANDS, 3)), rng.normal(size=(BANDS, 20))
    between, within, seen = some @ some.T, root @ root.T, rng.normal(size=BANDS)
    for frames in (1, 30, 1000):
        best = between @ np.linalg.solve(between + within / frames, seen)
        assert Directions.of(between, within).expected(seen, frames) == pytest.approx(best, rel=0.1, abs=0.05)


def test_loudness_and_what_is_not_normalised_tell_nothing(spread: SpeakerSpread) -> None:
    seen = np.append(np.full(BANDS, 4.0), 0.0)
    assert loudness(seen, PARTS) == pytest.approx(seen)
    assert loudness(np.append(TILT, 9.0), PARTS) == pytest.approx(0)
    found = spread.means.expected(np.append(TILT, 0.0), 50)
    assert found[:BANDS] == pytest.approx(TILT, abs=0.25)
    assert found[BANDS] == pytest.approx(0)
    assert spread.means.expected(np.append(TILT, 0.0), 0) == pytest.approx(0)


def test_little_speech_is_normalised_by_the_speaker_to_expect() -> None:
    """Means of enough speech are its own, deviations of four times as much; a louder recording has a louder mean."""
    rng = stream(0, "some")
    roots = rng.normal(0, 0.2, (4, 40, 60))
    both = [Directions.of(one @ one.T, another @ another.T) for one, another in (roots[:2], roots[2:])]
    hearing: Hearing = replace(load_model("an4").hearings[0], spread=SpeakerSpread(*both))
    usual = hearing.usual
    for frames in (100, ENOUGH_FRAMES, ENOUGH_FOR_DEVIATIONS):
        heard = (usual[0] + rng.normal(0, 1, 40) + 2 * rng.normal(size=(frames, 40))).astype(np.float32)
        (mean, std), _ = hearing.statistics([heard], exact=False)
        own, _ = hearing.statistics([heard], exact=True)
        assert np.array_equal(mean, own[0]) == (frames >= ENOUGH_FRAMES)
        assert np.array_equal(std, own[1]) == (frames >= ENOUGH_FOR_DEVIATIONS)
        (louder, same), _ = hearing.statistics([heard + np.float32(3)], exact=False)
        assert louder == pytest.approx(mean + 3, abs=1e-3)
        assert same == pytest.approx(std, rel=1e-3)


def test_rows_that_are_no_spread_are_refused(spread: SpeakerSpread) -> None:
    rows = spread.rows()
    assert SpeakerSpread.of_rows(rows).rows() == rows
    below = replace(spread, means=replace(spread.means, gains=-spread.means.gains)).rows()
    for wrong in (rows[:-1], rows[:2], ("",), (rows[0] + "x", *rows[1:]), (*rows[:-1], "nan " * 7), below):
        with pytest.raises(UserError, match=r"spread: .* Pack the model again"):
            SpeakerSpread.of_rows(wrong)
