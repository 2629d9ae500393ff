"""Runs set against each other, by hand: spread, speedup, time to a loss, the price of a straggler."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.records import Decoded, Evaluation, WordErrors
from roundelay.reports.comparison import (
    Spread,
    baseline_of,
    beside_alone,
    common_target,
    compare_runs,
    kept_losses,
    kept_word_errors,
    seconds_to,
    spread,
    undisturbed_of,
)
from roundelay.reports.headline import headline
from roundelay.reports.panels import speedup, time_to_target
from roundelay.reports.runs import Run, load_run
from roundelay.reports.series import series_of, shortened
from roundelay.reports.table import means_table
from support.fake_runs import Fake, write_run

RECIPE = "training:\n  seed: {seed}\n  learners: %d\n  stragglers: %s\n"
UNTRAINED = 6.0


def run(
    folder: Path,
    label: str = "sgd",
    learners: int = 1,
    seed: int = 0,
    *,
    speed: float = 100.0,
    losses: tuple[float, ...] = (3.0, 2.0),
    rejected: tuple[int, ...] = (),
    slow: str = "",
    runtime: str = "procs",
) -> Run:
    """A run that is evaluated every 10 seconds, from before training on, with these held-out losses."""
    name = f"{label}-{learners}{'-' + slow[0] if slow else ''}-{runtime}-seed{seed}"
    recipe = RECIPE % (learners, f"['{slow}']" if slow else "[]")
    fake = Fake(
        name=name, label=label, learners=learners, seed=seed, runtime=runtime, epochs=len(losses), recipe=recipe
    )
    made = load_run(write_run(folder, fake))
    virtual = runtime == "sim"
    evaluations = [
        Evaluation(
            wall_s=5.0 if virtual else at,
            virtual_s=at if virtual and at else None,
            epoch=epoch,
            split="dev",
            frames=100 * (epoch + 1),
            cross_entropy=loss,
            accuracy=0.5,
            consensus_distance=0.1,
            accepted=epoch not in rejected,
        )
        for epoch, loss in enumerate((UNTRAINED, *losses), -1)
        if (at := 10.0 * (epoch + 1)) >= 0
    ]
    segments = [dataclasses.replace(s, frames_per_second=speed) for s in made.segments]
    return dataclasses.replace(made, evaluations=tuple(evaluations), segments=tuple(segments))


# Spread ---------------------------------------------------------------------------------------------------------------


def test_spread_is_that_of_a_sample() -> None:
    """1, 2, 6: mean 3; squares 4 + 1 + 9 = 14 over n - 1 = 2: sd sqrt 7."""
    found = spread([1.0, None, 2.0, 6.0])
    assert (found.n, found.mean) == (3, 3.0)
    assert found.sd == pytest.approx(math.sqrt(7))
    assert found.written(2, of=3) == "3.00 ± 2.65"
    assert found.written(2, of=4) == "3.00 ± 2.65 (n 3)"


def test_one_value_has_no_spread_and_none_has_no_figure() -> None:
    assert Spread((1.5,)).sd is None
    assert Spread((1.5,)).written(1, of=1) == "1.5"
    assert spread([None]).written(1, of=1) == "–"
    assert spread([math.nan]).written(1, of=1) == "1 not finite"
    assert spread([1.0, 3.0, math.inf]).written(1, of=3) == "2.0 ± 1.4, 1 not finite"


# Time to a loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (6.0, 0.0),  # untrained
        (4.5, 5.0),  # half way from 6 at 0 s to 3 at 10 s
        (3.0, 10.0),
        (2.25, 17.5),  # three quarters of the way from 3 at 10 s to 2 at 20 s
        (2.0, 20.0),
        (1.99, None),
        (None, None),
    ],
)
def test_time_is_linear_between_evaluations(tmp_path: Path, target: float | None, expected: float | None) -> None:
    for runtime in ("procs", "sim"):  # in virtual seconds too, of which none have passed before training
        assert seconds_to(run(tmp_path / runtime, runtime=runtime), target) == expected


def test_an_epoch_taken_back_counts_for_its_time_alone(tmp_path: Path) -> None:
    """3 at 10 s, worse at 20 s and taken back, 1 at 30 s: 2 is reached half way between 20 and 30 s."""
    made = run(tmp_path, losses=(3.0, 5.0, 1.0), rejected=(1,))
    assert kept_losses(made) == [(0.0, 6.0), (10.0, 3.0), (20.0, 3.0), (30.0, 1.0)]
    assert seconds_to(made, 2.0) == 25.0


def test_the_first_time_counts(tmp_path: Path) -> None:
    assert seconds_to(run(tmp_path, losses=(2.0, 4.0, 1.0)), 2.0) == 10.0


def test_after_a_loss_that_is_no_number_the_next_evaluation_counts(tmp_path: Path) -> None:
    assert seconds_to(run(tmp_path, losses=(math.nan, 2.0)), 2.5) == 20.0
    assert seconds_to(run(tmp_path / "b", losses=(math.inf, math.nan)), 2.5) is None


def decoded(one: Run, *rates: float, left: float, split: str = "test") -> Run:
    """The same run, its epochs decoded with these word error rates, and the model it has left with that."""
    known: dict[str, Any] = {"errors": {}, "acoustic_scale": 0.1, "real_time_factor": 0.1, "wall_s": 0.0}
    records = tuple(Decoded(split=split, wer=wer, epoch=epoch, **known) for epoch, wer in enumerate(rates))
    words = WordErrors(wer=left, ins=0, del_=0, sub=1, ref=100, utterances=10, acoustic_scale=0.1)
    results = dataclasses.replace(one.results, wer={split: words})
    return dataclasses.replace(one, results=results, epochs_decoded=records)


def test_word_errors_count_at_the_evaluations_of_their_models(tmp_path: Path) -> None:
    """Evaluations at 10, 20 and 30 s; the second epoch was taken back, so the model of the first stands for its time.
    The model that is left may be another than the last, a mean of several, and counts at the end."""
    one = decoded(run(tmp_path, losses=(3.0, 4.0, 2.0), rejected=(1,)), 30.0, 99.0, 20.0, left=15.0)
    points = kept_word_errors("test")
    assert points(one) == [(10.0, 30.0), (20.0, 30.0), (30.0, 20.0), (30.0, 15.0)]
    targets = (40.0, 30.0, 25.0, 15.0, 14.0)
    assert [seconds_to(one, wer, points) for wer in targets] == [10.0, 10.0, 25.0, 30.0, None]
    assert kept_word_errors("dev")(one) == []


def test_one_alone_sets_the_word_error_rate_that_seconds_are_counted_to(tmp_path: Path) -> None:
    """The worst of its seeds, rounded up to a thousandth of a percent; who ends above is never there."""
    alone = [decoded(run(tmp_path, seed=seed), 40.0, end, left=end) for seed, end in enumerate((10.0, 20.00009))]
    quick = [decoded(run(tmp_path, "ssgd", 2, seed), 20.0, 9.0, left=9.0) for seed in range(2)]
    worse = [decoded(run(tmp_path, "adpsgd", 2, seed), 30.0, 21.0, left=21.0) for seed in range(2)]
    series = [series_of(runs)[0] for runs in (alone, quick, worse)]
    found = beside_alone(series, points=kept_word_errors("test"))
    assert found is not None
    assert found.loss == pytest.approx(20.001)
    first, last = found.others
    assert (first.seconds.values, last.sooner) == ((10.0, 10.0), None)
    assert first.sooner == pytest.approx(found.seconds.mean / 10.0)
    given = beside_alone(series, 40.0, kept_word_errors("test"))
    assert given is not None
    assert [one.sooner for one in given.others] == [1.0, 1.0]


def test_the_target_is_what_all_reached_rounded_up(tmp_path: Path) -> None:
    best = run(tmp_path, losses=(3.0, 1.5))
    worst = run(tmp_path, seed=1, losses=(2.0004, 2.5))
    assert common_target([best, worst]) == (2.001, [])
    assert common_target([best]) == (1.5, [])


def test_who_learned_too_little_sets_no_target(tmp_path: Path) -> None:
    """Half of the way from 6 to 2 is 4: a run that stays at 5 is left out, and named."""
    made = run(tmp_path)
    diverged = run(tmp_path, "ssgd", 2, losses=(5.0, math.nan))
    assert common_target([made, diverged]) == (2.0, [diverged])
    comparison = compare_runs([made, diverged])
    assert comparison.without() == "ssgd, 2 learners"
    assert comparison.of(diverged).seconds_to_target is None
    titles, _, row = means_table(comparison)
    assert row[titles.index("seconds to 2")] == "never"
    assert common_target([dataclasses.replace(made, evaluations=())]) == (None, [])


# Partners -------------------------------------------------------------------------------------------------------------


def test_figures_are_ratios_to_the_run_of_the_same_seed(tmp_path: Path) -> None:
    one = [run(tmp_path, seed=seed, speed=speed) for seed, speed in ((0, 100.0), (1, 200.0))]
    four = [run(tmp_path, "ssgd", 4, seed, speed=300.0, losses=(2.0, 1.0)) for seed in (0, 1)]
    slow = [run(tmp_path, "ssgd", 4, seed, speed=150.0, slow="1:3x") for seed in (0, 1)]
    comparison = compare_runs([*one, *four, *slow], target=3.0)
    assert [s.name for s in comparison.series] == [
        "sgd, 1 learner",
        "ssgd, 4 learners",
        "ssgd, 4 learners, straggler 1:3x",
    ]
    assert [comparison.of(r).speedup for r in four] == [3.0, 1.5]
    assert [comparison.of(r).seconds_to_target for r in (one[0], four[0])] == [10.0, 7.5]  # 3/4 of the way from 6 to 2
    assert comparison.of(four[0]).sooner == pytest.approx(10 / 7.5)
    assert [comparison.of(r).undisturbed for r in (one[0], four[0], slow[0])] == [None, None, 0.5]
    titles, *rows = means_table(comparison)
    table = {row[0]: dict(zip(titles, row, strict=True)) for row in rows}
    assert table["ssgd, 4 learners"]["speedup"] == "2.25 ± 1.06"
    assert table["ssgd, 4 learners"]["times sooner"] == "1.33 ± 0.00"
    assert table["ssgd, 4 learners"]["speed kept %"] == "–"
    assert table["… straggler 1:3x"]["speed kept %"] == "50.0 ± 0.0"
    assert "seeds" not in titles  # all rows have the same
    assert any("keeps 50 %" in sentence for sentence in headline(comparison))


def test_without_a_partner_there_is_no_figure(tmp_path: Path) -> None:
    one, four = run(tmp_path, seed=0), run(tmp_path, "ssgd", 4, seed=1)
    comparison = compare_runs([one, four])
    assert comparison.of(four).speedup is None
    assert comparison.of(four).sooner is None
    assert "speedup" in means_table(comparison)[0]  # the one learner's own, 1
    assert means_table(comparison)[2][means_table(comparison)[0].index("speedup")] == "–"
    assert speedup(comparison) is None


def test_the_baseline_is_undisturbed_on_the_same_clock_and_nearest_in_minibatch(tmp_path: Path) -> None:
    four = run(tmp_path, "ssgd", 4)
    slow, virtual = run(tmp_path, slow="0:3x"), run(tmp_path, runtime="sim")
    assert baseline_of(four, [slow, virtual, four]) is None
    other, plain = run(tmp_path, "bmuf"), run(tmp_path)
    assert baseline_of(four, [other, plain]) is plain
    larger = dataclasses.replace(plain, results=dataclasses.replace(plain.results, minibatch_frames=4096))
    assert baseline_of(four, [larger, other]) is other


def test_what_a_straggler_costs_is_told_of_equal_recipes_only(tmp_path: Path) -> None:
    slow, calm = run(tmp_path, "ssgd", 4, slow="1:3x"), run(tmp_path, "ssgd", 4)
    assert undisturbed_of(slow, [slow, calm]) is calm
    assert undisturbed_of(calm, [slow, calm]) is None
    other = dataclasses.replace(calm, recipe=calm.recipe + "optimizer: {momentum: 0.5}\n")
    assert undisturbed_of(slow, [slow, other]) is None


# Beside one learner alone ---------------------------------------------------------------------------------------------


def first(*runs: Run, target: float | None = None) -> str:
    return headline(compare_runs(runs, target))[0]


def test_the_first_sentence_says_how_much_sooner_than_one_alone(tmp_path: Path) -> None:
    """One alone ends with 2 after 20 s; two are there half way from 3 at 10 s to 1 at 20 s, three are level."""
    alone, two = run(tmp_path), run(tmp_path, "ssgd", 2, losses=(3.0, 1.0))
    assert first(alone, two) == (
        "Two learners reached a held-out loss of 2 in 15.0 s, one alone in 20.0 s: 1.33 times sooner (ssgd)."
    )
    assert first(alone, run(tmp_path, "bsp", 2, losses=(4.0, 3.0, 1.0))).endswith(
        "in 20.0 s: 1.25 times as long (bsp)."
    )
    assert first(alone, run(tmp_path, "bsp", 3)).endswith("one alone in 20.0 s: level (bsp).")
    assert "in 20.0 s (virtual), one alone" in first(*(run(tmp_path, runtime="sim", learners=n) for n in (1, 2)))


def test_what_does_not_get_where_one_alone_ends_is_said(tmp_path: Path) -> None:
    """Also where seconds to a loss that all reached would be fewer."""
    alone, two = run(tmp_path), run(tmp_path, "ssgd", 2, losses=(2.1, 2.05))
    assert first(alone, two) == (
        "Two learners did not reach a held-out loss of 2 (ssgd), which one alone reached in 20.0 s."
    )
    assert "in 10.0 s, one alone in 18.9 s" in first(alone, two, target=2.11)
    some = [run(tmp_path, "ssgd", 2, seed, losses=losses) for seed, losses in ((1, (2.5, 2.2)), (2, (2.0, 1.9)))]
    one = [run(tmp_path, seed=seed) for seed in (1, 2)]
    assert "did not reach a held-out loss of 2 under 1 of 2 seeds (ssgd)" in first(*one, *some)


def test_the_equal_ones_come_first_then_more_learners_then_stragglers(tmp_path: Path) -> None:
    runs = [
        run(tmp_path, "ssgd", 2, losses=(4.0, 3.0, 2.0), slow="1:3x"),
        run(tmp_path, "adpsgd", 2, losses=(3.0, 1.5, 1.0), slow="1:3x"),
        run(tmp_path, "ssgd", 4, losses=(2.0, 1.0)),
        run(tmp_path, "adpsgd", 2, losses=(3.0, 1.0)),
        run(tmp_path),
    ]
    assert first(*runs) == (
        "Two learners reached a held-out loss of 2 in 15.0 s, one alone in 20.0 s: 1.33 times sooner (adpsgd). "
        "Four learners: ssgd in 10.0 s, 2.00 times sooner. "
        "Two learners, straggler 1:3x: adpsgd in 16.7 s, 1.20 times sooner; ssgd in 30.0 s, 1.50 times as long."
    )


def test_of_several_runs_alone_the_best_counts(tmp_path: Path) -> None:
    """The loss is that of the one that ends lowest, the seconds those of the one that is there first."""
    poor, good = run(tmp_path / "a", losses=(3.0, 2.5)), run(tmp_path / "b", losses=(1.0, 2.0))
    two = run(tmp_path, "ssgd", 2, losses=(2.0, 1.0))
    assert "a held-out loss of 2 in 10.0 s, one alone in 8.0 s: 1.25 times as long" in first(poor, good, two)


def test_without_one_alone_of_the_same_kind_there_is_no_such_sentence(tmp_path: Path) -> None:
    alone, two = run(tmp_path), run(tmp_path, "ssgd", 2)
    other = dataclasses.replace(alone, results=dataclasses.replace(alone.results, corpus="another"))
    for runs in ([other, two], [run(tmp_path, slow="0:3x"), two], [run(tmp_path / "d", losses=(math.nan,)), two]):
        assert not any("one alone" in sentence for sentence in headline(compare_runs(runs)))


# Names and pictures ---------------------------------------------------------------------------------------------------


def test_settings_tell_equal_names_apart(tmp_path: Path) -> None:
    runs = [run(tmp_path, "ssgd", 4, seed=seed) for seed in (0, 1)]
    runs = [
        dataclasses.replace(r, recipe=r.recipe + f"optimizer: {{momentum: {momentum}}}\n")
        for r, momentum in zip(runs, (0.9, 0.5), strict=True)
    ]
    assert [s.name for s in series_of(runs)] == [
        "ssgd, 4 learners, optimizer.momentum 0.9",
        "ssgd, 4 learners, optimizer.momentum 0.5",
    ]


def test_a_strategy_has_one_colour_whatever_the_learners(tmp_path: Path) -> None:
    runs = [run(tmp_path, "ssgd", 2), run(tmp_path, "bmuf", 2), run(tmp_path, "ssgd", 4), run(tmp_path, "bmuf", 4)]
    indices = [s.index for s in series_of(runs)]
    assert [index % 8 for index in indices] == [0, 1, 0, 1]
    assert len(set(indices)) == 4


def test_names_below_each_other_say_what_they_add() -> None:
    names = [
        "ssgd, 4 learners",
        "ssgd, 4 learners, straggler 1:3x",
        "ssgd, 4 learners, straggler 2:3x",
        "ssgd, 8 learners",
    ]
    assert shortened(names) == ["ssgd, 4 learners", "… straggler 1:3x", "… straggler 2:3x", "ssgd, 8 learners"]
    assert shortened(["a", "ab, c"]) == ["a", "ab, c"]


def test_the_race_is_drawn_fastest_first_each_straggler_below_its_own(tmp_path: Path) -> None:
    runs = [
        run(tmp_path, losses=(3.0, 2.0)),  # at 2 after 20 s
        run(tmp_path, "ssgd", 2, losses=(4.0, 1.0)),  # after 16.7 s
        run(tmp_path, "ssgd", 2, losses=(4.0, 3.0, 2.0), slow="1:3x"),  # after 30 s
        run(tmp_path, "bmuf", 2, losses=(2.0, 2.0)),  # after 10 s
    ]
    picture = time_to_target(compare_runs(runs)) or ""
    assert "Time to a held-out loss of 2<" in picture
    places = [picture.index(f">{name}</text>") for name in ("bmuf, 2 learners", "ssgd, 2 learners", "… straggler 1:3x")]
    assert places == sorted(places)
    assert places[-1] < picture.index(">sgd, 1 learner</text>")
    assert "ssgd, 2 learners: 16.7 s 1.2 x" in picture


def test_two_clocks_are_no_race(tmp_path: Path) -> None:
    assert time_to_target(compare_runs([run(tmp_path), run(tmp_path, "ssgd", 2, runtime="sim")])) is None
    assert time_to_target(compare_runs([run(tmp_path / "alone")])) is None


def test_speedup_is_a_line_a_strategy_from_one_learner_on(tmp_path: Path) -> None:
    runs = [run(tmp_path), *(run(tmp_path, "ssgd", n, speed=80.0 * n) for n in (2, 4))]
    picture = speedup(compare_runs(runs)) or ""
    assert 'data-s="1 9"' in picture  # both series light up with it
    assert "ssgd, 4 learners: 3.20 times one learner&#39;s frames per second" in picture
    assert picture.count('class="reference"') == 2  # wide and narrow
