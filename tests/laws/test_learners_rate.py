"""The learning rate of several learners: what each strategy moves by, the gain of gradients whose noise is known, and
that a run under it is as repeatable as any other."""

from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import torch

from roundelay.algorithms.averaging import fastest_over_mean, minibatches_averaged
from roundelay.algorithms.gain import (
    EARLY,
    NOISE_SCALARS,
    PAIRS_KEPT,
    PERIOD,
    RETURN,
    SWING,
    WITHHELD,
    GradientNoise,
    gain,
)
from roundelay.algorithms.local_update import Sgd
from roundelay.core.rates import LearnersRate
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, ClusterState
from roundelay.runtime.learners_rate import (
    RateFactor,
    said_at_end,
    said_at_start,
    settled,
    work_of,
)
from roundelay.runtime.resize import TrainedBy, gone_on_with
from roundelay.runtime.sim.driver import SimRuntime
from roundelay_speech.recipes.recipe import Training, as_it_was
from support import attached_rates
from support.clusters import EVERY, MINIBATCH, cluster, make_strategy, plan
from support.launched import reports, run_learners

NOISY = Quadratic(parameters=200, examples=10**6, noise=3.0)


def under(rate: LearnersRate, name: str, learners: int, task: Quadratic = NOISY) -> Cluster:
    return replace(cluster(name, learners, task, momentum=0.5), rate=rate)


# The equation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learners", [1, 2, 3.5, 16])
def test_the_gain_is_one_without_noise_and_all_learners_in_nothing_but_noise(learners: float) -> None:
    assert gain(1.0, learners) == 1
    assert gain(0.0, learners) == pytest.approx(learners)
    gains = [gain(signal, learners) for signal in np.linspace(0, 1, 20)]
    assert gains == sorted(gains, reverse=True)


def test_the_gain_is_the_same_whether_gradients_are_looked_at_one_by_one_or_as_means() -> None:
    noise, signal, learners = 7.0, 0.5, 4
    one, mean = signal / (noise + signal), signal / (noise / learners + signal)
    expected = (noise + signal) / (noise / learners + signal)
    assert gain(one, learners) == pytest.approx(expected)
    assert gain(mean, learners, averaged=learners) == pytest.approx(expected)


@pytest.mark.parametrize("noise", [0.0, 0.5, 2.0, 8.0])
def test_the_estimate_is_the_gain_of_gradients_with_that_noise(noise: float) -> None:
    """Gradients (3, 0, ..., 0) plus noise of so much in each of 400 directions."""
    drawn, mean = np.random.default_rng(0), torch.zeros(400)
    mean[0] = 3.0
    known, truth = GradientNoise(np.zeros(len(NOISE_SCALARS))), 9 / (9 + 400 * noise**2)
    found = []
    for step in range(100 * PERIOD):
        if known.wants(step):
            known.look(step, mean + noise * torch.from_numpy(drawn.standard_normal(400, dtype=np.float32)))
        found.append(gain(known.signal, 4))
    assert found[0] == 1, "nothing is known yet"
    assert np.mean(found[50 * PERIOD :]) == pytest.approx(gain(truth, 4), rel=0.05)
    assert np.abs(np.diff(found)).max() < 0.5, "the factor never jumps"


def test_the_estimate_is_near_the_truth_after_the_first_steps_and_follows_gradients_that_become_short() -> None:
    """The mean gradient goes from long to a hundredth of that, beneath noise that stays."""
    drawn, known, found = np.random.default_rng(1), GradientNoise(np.zeros(len(NOISE_SCALARS))), []
    for step in range(EARLY + 20 * PERIOD):
        mean = torch.full((400,), 10.0 if step < EARLY else 0.1)
        if known.wants(step):
            known.look(step, mean + torch.from_numpy(drawn.standard_normal(400, dtype=np.float32)))
        found.append(gain(known.signal, 4))
    assert found[EARLY - 1] == pytest.approx(gain(100 / 101, 4), rel=0.02)
    assert found[-1] == pytest.approx(gain(0.01 / 1.01, 4), rel=0.2), "means of products would say 1 still"
    noisy = GradientNoise(np.zeros(len(NOISE_SCALARS)))
    for step in range(EARLY):
        noisy.look(step, torch.from_numpy(drawn.standard_normal(400, dtype=np.float32)))
    assert gain(noisy.signal, 2) > 1.75


@pytest.mark.parametrize(
    ("product", "momentum", "free"),
    [
        (0.02, 0, 1.0),
        (0.15, 0, 0.5),
        (0.6, 0, 0.0),
        (1.8, 0, 0.0),
        (0.038, 0.9, 1.0),
        (0.19, 0.9, 0.0),
        (0.8, 0.9, 0.0),
    ],
)
def test_the_gain_is_taken_back_where_curvature_limits_the_rate(product: float, momentum: float, free: float) -> None:
    """`product` of rate and curvature: at rest consecutive gradients are in the mean -product / 2 of their squares
    without momentum. With it they are alike, and gradients half a swing apart are not."""
    random = torch.Generator().manual_seed(0)
    noise, x = GradientNoise(np.zeros(len(NOISE_SCALARS))), torch.zeros(40_000)
    moved = torch.zeros_like(x)
    for step in range(1000):
        gradient = x + torch.randn(x.shape, generator=random)
        if step >= 400 and noise.wants(step):  # at rest: forgotten is the beginning, at x = 0
            noise.look(step, gradient)
        moved = momentum * moved - product * gradient
        x += moved
    if not momentum:
        assert 1 - noise.seen()[0] == pytest.approx(-product / 2, abs=0.02)
    assert noise.free == pytest.approx(free, abs=0.2)


def test_a_gain_comes_back_slowly_and_goes_at_once() -> None:
    noise, gradient = GradientNoise(np.zeros(len(NOISE_SCALARS))), torch.ones(4)
    assert noise.free == 0, "before a pair is seen, and among the first"
    for pair in range(1, 31):
        noise.look(0, gradient)
        noise.look(1, gradient)
        assert noise.free == pytest.approx(min(1.0, max(0, pair - WITHHELD + 1) * RETURN))
    for _ in range(PAIRS_KEPT):
        noise.look(0, gradient)
        noise.look(1, -gradient)
    assert noise.free == 0


def test_swings_of_the_first_steps_withhold_nothing_later() -> None:
    noise, drawn = GradientNoise(np.zeros(len(NOISE_SCALARS))), torch.Generator().manual_seed(0)
    swinging = torch.tensor([1.0, 1.0, 0.0, -1.0, -1.0])
    for step in range(EARLY):
        gradient = torch.randn(400, generator=drawn)
        if step < (SWING[-1] + 1) * (WITHHELD - 1):
            gradient = swinging[step % (SWING[-1] + 1)] * torch.ones(400)
        if noise.wants(step):
            noise.look(step, gradient)
    assert noise.free > 0.9


def test_a_learner_marks_its_row_under_the_gain_alone_and_until_half_of_it_is_free() -> None:
    weighed = make_strategy("adpsgd weights=progress")
    noise = GradientNoise(np.zeros(len(NOISE_SCALARS)))
    factor = RateFactor("gain", weighed, shared=False, noise=noise)
    assert factor.steep
    for free, steep in ((0.4, True), (0.5, False)):
        noise.recall([0.0, 10.0, 0.0, 0.0, 0.0, 0.0, free])
        assert factor.steep == steep
    assert not RateFactor("fastest", weighed, shared=False, noise=None).steep


def test_a_large_gradient_is_known_by_a_sample_from_all_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signal in the first half alone, so that the first elements, or the last, would say another share."""
    monkeypatch.setattr("roundelay.algorithms.gain.MOST", 1 << 12)
    drawn, mean = np.random.default_rng(2), torch.zeros(100_003)
    mean[:50_000] = 1.0
    known = GradientNoise(np.zeros(len(NOISE_SCALARS)))
    for step in range(20 * PERIOD):
        if known.wants(step):
            known.look(step, mean + torch.from_numpy(drawn.standard_normal(100_003, dtype=np.float32)))
    assert known.signal == pytest.approx(1 / 3, rel=0.1)


def test_a_pair_whose_second_gradient_never_came_tells_nothing() -> None:
    scalars = np.zeros(len(NOISE_SCALARS))
    known = GradientNoise(scalars)
    known.look(0, torch.ones(3))
    known.forget()
    known.look(1, torch.ones(3))
    known.look(PERIOD, torch.ones(3))
    known.look(2 * PERIOD + 1, torch.ones(3))  # the step after the first of that pair was an empty one
    known.look(PERIOD, torch.full((3,), torch.nan))
    known.look(PERIOD + 1, torch.ones(3))
    assert known.signal == 1
    assert not scalars[:2].any()


# Strategies ----------------------------------------------------------------------------------------------------------


def test_what_strategies_move_by() -> None:
    assert make_strategy("adpsgd").moves(4, 4) == make_strategy("adpsgd").moves(4, 1) == 1 / 4
    assert make_strategy("asgd").moves(4, 4) == make_strategy("asgd").moves(4, 1) == 1
    assert make_strategy("bmuf").moves(4, 4) == pytest.approx(1)
    largest = {name: make_strategy(name).largest_factor(4, shared=False) for name in ("ssgd", "adpsgd", "asgd", "bmuf")}
    assert largest == pytest.approx({"ssgd": 4, "adpsgd": 4, "asgd": 1, "bmuf": 1})
    assert make_strategy("adpsgd").largest_factor(4, shared=True) == 1
    means = {
        name: make_strategy(name).minibatches_in_an_update(4) for name in ("ssgd", "adpsgd", "hadpsgd node_size=2")
    }
    assert means == {"ssgd": 4, "adpsgd": 1, "hadpsgd node_size=2": 2}
    assert make_strategy("easgd").largest_factor(1, shared=False) == 1, "one learner alone is left as it is"


@cache
def model(rate: LearnersRate, name: str, learners: int) -> ClusterState:
    with SimRuntime(under(rate, name, learners)) as runtime:
        runtime.segment(plan(EARLY + PERIOD, learners, rate=0.01))
        return runtime.state()


@pytest.mark.parametrize("name", ["ssgd", "delayed-gradient"])
@pytest.mark.parametrize("rate", ["gain", "linear"])
def test_rows_that_are_equal_stay_equal(name: str, rate: LearnersRate) -> None:
    rows = model(rate, name, 3).vectors["row"]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows, model("as-is", name, 3).vectors["row"])


@pytest.mark.parametrize(
    ("rate", "name"),
    [("gain", name) for name in EVERY if name != "sgd"]
    + [("fastest", f"{name} weights=progress") for name in ("adpsgd", "hadpsgd")],
)
def test_a_run_that_is_interrupted_goes_on_bit_for_bit(rate: LearnersRate, name: str) -> None:
    """Under the gain between the two gradients of a pair, too. An asynchronous strategy's exchanges end with a segment,
    so there the straight run has the same segments."""
    made, rounds = under(rate, name, 2), EARLY + PERIOD
    cut = make_strategy(name).block * -(-(EARLY - 12) // make_strategy(name).block)
    first, rest = (
        replace(plan(rounds, 2, rate=0.01), first=2 * at, last_round=to) for at, to in ((0, cut), (cut, rounds))
    )
    with SimRuntime(made) as straight, SimRuntime(made) as begun, SimRuntime(made) as resumed:
        if make_strategy(name).traits.synchronous:
            straight.segment(plan(rounds, 2, rate=0.01))
        else:
            straight.segment(first)
            straight.segment(rest)
        begun.segment(first)
        resumed.load(begun.state())
        resumed.segment(rest)
        for vector, value in straight.state().vectors.items():
            assert torch.equal(value, resumed.state().vectors[vector]), vector


def test_learners_that_share_a_minibatch_are_left_as_they_are() -> None:
    shared = [replace(under(rate, "adpsgd", 3), shared_minibatch=True) for rate in ("as-is", "gain", "linear")]
    ends = []
    for made in shared:
        with SimRuntime(made) as runtime:
            runtime.segment(plan(6, 3))
            ends.append(runtime.consensus())
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
    assert "share one minibatch" in said_at_start("gain", make_strategy("adpsgd"), 3, shared=True)


def test_linear_learners_do_the_work_of_all_and_as_is_that_of_one() -> None:
    for rate, expected in (("as-is", 1.0), ("linear", 3.0)):
        with SimRuntime(under(rate, "adpsgd", 3)) as runtime:  # type: ignore[arg-type]
            counts = runtime.segment(plan(6, 3)).counts
        moved, longest = work_of(counts.rate_factors, counts.steps, make_strategy("adpsgd"), 3, 3)
        assert moved / longest == pytest.approx(expected)


def test_under_the_rate_of_the_fastest_the_work_is_that_of_the_fastest_and_the_noise_less() -> None:
    weighed, steps = make_strategy("adpsgd weights=progress"), np.array([300, 100])
    work, longest = work_of(fastest_over_mean([1 / (1 + 3**0.5)]) * steps, steps, weighed, 2, 2)
    assert work / longest == pytest.approx(1)
    assert minibatches_averaged(steps.tolist()) == pytest.approx((3**1.5 + 1) ** 2 / 30)
    assert minibatches_averaged([7, 7, 7]) == pytest.approx(3)
    assert minibatches_averaged([0, 0]) == 1
    known = "fastest", weighed, 2, False
    assert "as far in a second as the fastest of them alone" in said_at_start(*known)  # type: ignore[arg-type]
    assert "minibatches 1.19 times as large" in said_at_end(*known, work=1.0, averaged=1.19)  # type: ignore[arg-type]
    assert not said_at_start("fastest", make_strategy("asgd"), 2, shared=False)


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 1 / 3), (1.0, 1.0, 0.1), (1.0,) * 5])
@pytest.mark.parametrize("rank", [0, -1])
def test_under_the_gain_unequal_learners_move_by_that_of_the_fastest_and_further_as_noise_allows(
    speeds: tuple[float, ...], rank: int
) -> None:
    """With nothing but noise as far as keeps the noise of one learner at its rate: max(s) n, and f^2 sum p^2 s is as
    large as f sum p s. Whoever is asked says the same."""
    s, root = np.array(speeds), np.sqrt(speeds)
    others = root / (root[rank] + root)
    others[rank] = 0
    noise = GradientNoise(np.zeros(len(NOISE_SCALARS)))
    factor = RateFactor("gain", make_strategy("adpsgd weights=progress"), shared=False, noise=noise)
    factor.live(range(len(speeds)))
    shares, found = root / root.sum(), []
    for share_of_noise in (0.0, 1.0):
        noise.recall([share_of_noise, 100.0, 0.0, 1.0, 0.0, 0.0, 1.0])
        found.append(factor.factor(PERIOD - 1, torch.Tensor, others=others))
    assert found[0] * (shares * s).sum() == pytest.approx(s.max(), rel=0.02)
    assert found[1] * (shares**2 * s).sum() == pytest.approx((shares * s).sum(), rel=0.02)
    factor.live(range(len(speeds)), 1)
    assert factor.factor(PERIOD - 1, torch.Tensor, others=others) == found[0], "all have the same minibatches"


def test_what_is_left_open_is_the_gain_where_rows_can_be_weighed() -> None:
    for name, shared, meant in (
        ("adpsgd", False, "gain"),
        ("hadpsgd node_size=2", False, "gain"),
        ("adpsgd weights=equal", False, "as-is"),
        ("adpsgd", True, "as-is"),
        ("ssgd", False, "as-is"),
    ):
        made = Cluster(make_strategy(name), NOISY, Sgd(), 4, shared_minibatch=shared, rate="auto")
        assert made.rate == settled("auto", make_strategy(name), shared) == meant
        assert made.strategy.weighed == (meant == "gain")
        again = Cluster(made.strategy.under("auto", shared), NOISY, Sgd(), 4, shared_minibatch=shared, rate="auto")
        assert again == made, "settled twice is settled once"


def test_an_epoch_is_as_long_under_every_rate() -> None:
    for rate in get_args(LearnersRate):
        with SimRuntime(under(rate, "adpsgd", 2)) as runtime:
            assert runtime.segment(plan(5, 2)).counts.frames.sum() == 5 * MINIBATCH


# Attached ------------------------------------------------------------------------------------------------------------


@cache
def attached() -> dict[str, dict[int, dict[str, Any]]]:
    """Two learners of one host."""
    done = run_learners(2, str(attached_rates.__file__))
    found: dict[str, dict[int, dict[str, Any]]] = {law: dict(by_rank) for law, by_rank in reports(done.stdout).items()}
    return {**found, "said": {0: {"text": done.stderr}}}


@pytest.mark.parametrize("strategy", attached_rates.STRATEGIES)
def test_attached_learners_at_the_linear_rate_are_learners_at_twice_the_rate(strategy: str) -> None:
    linear, twice = attached()[f"linear {strategy}"], attached()[f"twice {strategy}"]
    for rank in range(2):
        assert linear[rank]["values"] == twice[rank]["values"]
        assert linear[rank]["rates"] == [attached_rates.RATE], "it is the user's again after each step"
    assert linear[0]["work"] == pytest.approx(2)
    said = attached()["said"][0]["text"]
    assert "rate linear: 2 learners train at 2 times the learning rate" in said
    assert "2 learners moved the model as far as 2.00 would" in said
    assert "as far as 4.00" not in said, "however soon the other has closed"


@pytest.mark.parametrize("strategy", attached_rates.STRATEGIES)
def test_attached_learners_under_the_gain_warm_up_to_between_one_and_all(strategy: str) -> None:
    """And learners whose rows are equal stay so, though each looks at gradients by itself."""
    law = attached()[f"gain {strategy}"]
    assert 1.05 < law[0]["work"] < 2
    assert law[0]["values"] == law[1]["values"]
    assert "2 learners did the work of 1." in attached()["said"][0]["text"]


@pytest.mark.parametrize("strategy", attached_rates.STRATEGIES)
def test_equal_minibatches_gain_nothing_once_all_know_of_them(strategy: str) -> None:
    for rank in range(2):
        law = attached()[f"equal {strategy}"][rank]
        assert law["factors"][0] > 1 == law["factors"][1]
    said = attached()["said"][0]["text"]
    assert said.count("do the same work, a gain of 1") == len(attached_rates.STRATEGIES)
    assert said.count("2 learners did the work of 1.00 (rate gain), for their minibatches were equal") == 2


@pytest.mark.parametrize("strategy", attached_rates.STRATEGIES)
def test_a_session_under_the_gain_that_is_resumed_goes_on_bit_for_bit(strategy: str) -> None:
    law = attached()[f"resumed {strategy}"]
    for rank in range(2):
        assert law[rank]["straight"] == law[rank]["values"]
        assert law[rank]["signal"] < 1, "else there is nothing to be kept"


def test_attached_learners_go_by_progress_and_the_gain_unless_told_otherwise() -> None:
    law = attached()["by default"]
    for rank in range(2):
        assert law[rank]["adpsgd"][0] == "gain"
        assert "weights='progress'" in law[rank]["adpsgd"][1]
        assert law[rank]["adpsgd,weights=equal"][0] == law[rank]["ssgd"][0] == "as-is"


def test_attached_learners_at_the_rate_of_the_fastest_go_by_progress() -> None:
    law = attached()["unequal"]
    for rank in range(2):
        assert law[rank]["rate"] == "fastest"
        assert "weights='progress'" in law[rank]["strategy"]
        assert law[rank]["rates"] == [attached_rates.RATE], "it is the user's again after each step"
    first, _, last = law[0]["factors"]
    assert first == 1, "the other has done nothing yet"
    assert last == pytest.approx(1.32, abs=0.03), "masses of about 30 and 10"
    said = attached()["said"][0]["text"]
    assert "very different numbers of steps: rank 1 10, rank 0 31." in said
    assert "counts alike" not in said, "rows are weighed by progress"


def test_an_attached_learner_whose_peer_has_left_trains_at_its_own_rate() -> None:
    law = attached()["alone at last"][0]
    assert law["values"] == law["plain"]


def test_a_learner_with_another_rate_is_refused() -> None:
    errors = [attached()["other rate"][rank]["error"] for rank in range(2)]
    assert any("rate gain, rank 0 with linear" in error for error in errors)


# Recipes -------------------------------------------------------------------------------------------------------------


def test_learners_that_share_a_minibatch_are_kept_as_earlier_versions_kept_them() -> None:
    assert Training(strategy="adpsgd", learners=2).rate == "as-is"
    assert Training(strategy="adpsgd", learners=2, minibatch_per_learner=64).rate == "auto"
    assert Training(strategy="adpsgd", learners=2, rate="gain").rate == "gain"


def test_a_kept_recipe_of_an_earlier_version_goes_on_with_the_rate_of_one_learner() -> None:
    for strategy in ("adpsgd:fixed-ring", "hadpsgd"):
        assert as_it_was({"training": {"strategy": strategy}})["training"]["rate"] == "as-is"
        assert as_it_was({"training": {"strategy": strategy, "rate": "fastest"}})["training"]["rate"] == "fastest"


def test_a_run_that_one_learner_began_goes_on_with_two() -> None:
    """State that the gain keeps is there from the beginning, whatever the number of learners."""
    made = Cluster(make_strategy("adpsgd"), NOISY, Sgd(), 1, shared_minibatch=False, rate="auto")
    with SimRuntime(made) as alone, SimRuntime(replace(made, learners=2)) as both:
        alone.segment(plan(PERIOD, 1, rate=0.01))
        both.load(gone_on_with(alone.state(), both.cluster, TrainedBy.of(made.strategy, (0,))))
        steps = EARLY
        assert both.segment(plan(steps, 2, rate=0.01)).counts.rate_factors.max() > steps
