"""Tables, series, intervals and the sentences at the top: worked out by hand."""

import dataclasses
from pathlib import Path

import pytest

from roundelay.core.records import WordErrors
from roundelay.reports.comparison import compare_runs
from roundelay.reports.headline import headline
from roundelay.reports.numbers import MISSING, percent, plain, seconds, short
from roundelay.reports.runs import Run, load_run, load_runs
from roundelay.reports.series import errors_interval, interval, series_interval, series_of
from roundelay.reports.table import means_table, summary_table, text_table
from support.fake_runs import Fake, write_run


def words(errors: int, ref: int = 773) -> dict[str, WordErrors]:
    return {
        "test": WordErrors(
            wer=100 * errors / ref, ins=0, del_=0, sub=errors, ref=ref, utterances=130, acoustic_scale=0.1
        )
    }


def with_results(run: Run, **changes: object) -> Run:
    return dataclasses.replace(run, results=dataclasses.replace(run.results, **changes))  # type: ignore[arg-type]


def seeds(folder: Path, *numbers: int, label: str = "adpsgd random-ring", learners: int = 4) -> list[Run]:
    fakes = [Fake(name=f"{label}-{n}", label=label, learners=learners, seed=n) for n in numbers]
    return load_runs([write_run(folder, fake) for fake in fakes])


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (7, "7"),
        (950, "950"),
        (999.6, "1k"),
        (1234, "1.23k"),
        (12_500_000, "12.5M"),
        (3e9, "3G"),
        (-4200, "-4.2k"),
        (0.00123, "0.00123"),
        (1e300, "1.0e+300"),
        (float("nan"), "not a number"),
        (float("-inf"), "infinite"),
    ],
)
def test_short_numbers(value: float, written: str) -> None:
    assert short(value) == written


def test_numbers_that_are_none_and_times() -> None:
    assert plain(None) == percent(None) == "–"
    assert plain(1.61803, 2) == "1.62"
    assert percent(0.551) == "55.1 %"
    assert percent(float("nan")) == "not a number"
    assert [seconds(s) for s in (4.26, 312, 1500, 10_800)] == ["4.3 s", "312 s", "25.0 min", "3 h"]


@pytest.mark.parametrize(
    ("errors", "low", "high"),
    [  # of 100 words; score interval of a Poisson count: n + 1.92 -+ 1.96 sqrt(n + 0.96)
        (0, 0.0, 3.84),
        (1, 0.18, 5.66),
        (46, 34.49, 61.35),
        (100, 82.22, 121.62),
    ],
)
def test_intervals_of_counts(errors: int, low: float, high: float) -> None:
    assert interval(errors, 100) == pytest.approx((low, high), abs=0.01)


def test_more_seeds_do_not_make_the_test_set_larger() -> None:
    once, thrice = words(46)["test"], [words(40)["test"], words(46)["test"], words(52)["test"]]
    assert series_interval(thrice) == pytest.approx(series_interval([once]))


def test_a_recorded_interval_is_taken_for_the_truth() -> None:
    one, two = (dataclasses.replace(words(40)["test"], interval=ends) for ends in ([4.0, 7.0], [5.0, 9.0]))
    assert errors_interval(one) == (4.0, 7.0)
    assert series_interval([one, two]) == (4.5, 8.0)
    assert series_interval([one, words(40)["test"]]) == series_interval([words(40)["test"]])


def test_subsets_of_the_test_are_columns_of_their_own(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, Fake()))
    part = words(5, ref=100)["test"]
    whole = dataclasses.replace(run.results.wer["test"], subsets={"swb": part})
    with_parts = dataclasses.replace(run, results=dataclasses.replace(run.results, wer={"test": whole}))
    titles, first, second = summary_table([with_parts, run])
    place = titles.index("test swb WER")
    assert titles[place - 1] == "test WER"
    assert (first[place], second[place]) == ("5.00 % (5/100)", MISSING)


def test_runs_that_differ_in_the_seed_alone_are_a_series(tmp_path: Path) -> None:
    runs = seeds(tmp_path, 1, 2, 3) + seeds(tmp_path, 1, label="sgd", learners=1)
    found = series_of(runs)
    assert [s.name for s in found] == ["adpsgd random-ring, 4 learners", "sgd, 1 learner"]
    assert [len(s.runs) for s in found] == [3, 1]
    assert [s.index for s in found] == [0, 1]


def test_the_same_seed_twice_is_no_series(tmp_path: Path) -> None:
    runs = [load_run(write_run(tmp_path, Fake(name=name))) for name in ("first", "second")]
    assert [s.name for s in series_of(runs)] == [
        "adpsgd random-ring, 4 learners (first)",
        "adpsgd random-ring, 4 learners (second)",
    ]


def test_another_recipe_is_another_series(tmp_path: Path) -> None:
    runs = [
        load_run(write_run(tmp_path, Fake(name="small", seed=1))),
        load_run(write_run(tmp_path, Fake(name="large", seed=2, recipe="model: {{layers: 6}}\nseed: {seed}\n"))),
    ]
    assert len(series_of(runs)) == 2


def test_the_table_says_what_was_counted(tmp_path: Path) -> None:
    run = with_results(seeds(tmp_path, 7)[0], wer=words(46))
    titles, row = summary_table([run])
    cells = dict(zip(titles, row, strict=True))
    assert cells["test WER"] == "5.95 % (46/773)"
    assert cells["dev WER"] == "–"
    assert (cells["strategy"], cells["learners"], cells["seed"]) == ("adpsgd random-ring", "4", "7")
    assert cells["frames"] == "2.52M"
    assert cells["frames/s"] == "43.2k"
    assert cells["staleness"].split(" / ")[1] == str(int(run.results.staleness["largest"]))


def test_means_come_with_their_spread(tmp_path: Path) -> None:
    runs = [with_results(r, wer=words(e)) for r, e in zip(seeds(tmp_path, 1, 2, 3), (41, 46, 54), strict=True)]
    titles, row = means_table(compare_runs(runs))
    assert dict(zip(titles, row, strict=True))["test WER %"] == "6.08 ± 0.85"
    assert means_table(compare_runs(runs[:1])) == []


def test_a_diverged_seed_is_counted_not_hidden(tmp_path: Path) -> None:
    runs = seeds(tmp_path, 1, 2)
    runs[1] = with_results(runs[1], frame_cross_entropy={"dev": float("nan")})
    titles, row = means_table(compare_runs(runs))
    assert dict(zip(titles, row, strict=True))["dev loss"].endswith(", 1 not finite")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_text_keeps_to_the_width_and_loses_no_column(tmp_path: Path, width: int) -> None:
    runs = seeds(tmp_path, 1, 2, 3) + seeds(tmp_path, 1, label="sgd", learners=1)
    for chosen in (runs, runs[2:], runs[:1]):
        text = text_table(chosen, width)
        assert max(map(len, text.splitlines())) <= width
        assert not text.endswith("\n")
        for title in summary_table(chosen)[0]:
            assert title in text
        for run in chosen:
            assert run.name in text


def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    text = text_table(seeds(tmp_path, 1) + seeds(tmp_path, 1, label="sgd", learners=1), width=100)
    line, *_ = [line for line in text.splitlines() if line.startswith("strategy")]
    assert line.split("  ")[1:] != []
    assert "adpsgd random-ring" in line
    assert line.endswith("sgd")


def test_the_headline_claims_no_difference_that_counts_do_not_show(tmp_path: Path) -> None:
    one = with_results(seeds(tmp_path, 1, label="sgd", learners=1)[0], wer=words(42))
    four = with_results(seeds(tmp_path, 1)[0], wer=words(46))
    worse = with_results(four, wer=words(120))
    assert headline(compare_runs([one, four]))[1] == (
        "Word error rates on test lie between 5.4 % (sgd, 1 learner) and 6.0 % (adpsgd random-ring, 4 learners); "
        "all 95 % intervals overlap, so these counts alone do not tell them apart."
    )
    assert headline(compare_runs([one, worse]))[1].endswith("the 95 % intervals of some do not touch.")
    equal = with_results(one, wer=words(46))
    assert headline(compare_runs([equal, four]))[1].startswith(
        "Word error rates on test are all 6.0 %; all 95 % intervals overlap"
    )


def test_the_headline_says_when_learners_shared_cores(tmp_path: Path) -> None:
    one = seeds(tmp_path, 1, label="sgd", learners=1)[0]
    four = seeds(tmp_path, 1)[0]
    events = [dataclasses.replace(s, frames_per_second=10_000.0) for s in four.segments]
    (sentence,) = [
        s for s in headline(compare_runs([one, dataclasses.replace(four, segments=tuple(events))])) if "fastest" in s
    ]
    assert sentence.startswith("The fastest, sgd, 1 learner, trained 43.2k frames per second, 4.3 times as many as")
    assert sentence.endswith(" 4 learners shared 2 cores.")


def test_the_headline_does_not_judge_what_is_not_finished(tmp_path: Path) -> None:
    one = seeds(tmp_path, 1, label="sgd", learners=1)[0]
    going = load_run(write_run(tmp_path, Fake(name="going", end="killed", epochs=1)))
    sentences = headline(compare_runs([one, going]))
    assert sentences[-1] == "Not finished, so not to be judged yet: going."
    assert all("adpsgd" not in sentence for sentence in sentences)


def test_the_headline_compares_no_virtual_seconds_with_real_ones(tmp_path: Path) -> None:
    real = seeds(tmp_path, 1)[0]
    simulated = load_run(write_run(tmp_path, Fake(name="simulated", runtime="sim")))
    assert not any("second" in sentence for sentence in headline(compare_runs([real, simulated])))
