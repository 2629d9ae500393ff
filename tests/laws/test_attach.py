"""Laws of `roundelay.attach` for two learners, on one host or on two. All run in one start of two processes,
support/attached_laws.py."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from roundelay.strategies import STRATEGIES
from support import attached_gpu, attached_laws, attached_resuming
from support.attached_hosts import run_hosts
from support.attached_laws import LEARNERS, OPTIMIZERS, QUORATE, STEPS, alone, close, mlp
from support.launched import reports, run_learners

GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")]
)
Found = Mapping[str, Mapping[int, Mapping[str, Any]]]


@cache
def run(kind: str) -> Found:
    """Two learners of one host, or one of each of two `hosts`."""
    if kind == "hosts":
        said, complained = run_hosts((1, 1), str(attached_laws.__file__), kind)
    else:
        done = run_learners(LEARNERS, str(attached_laws.__file__), kind)
        said, complained = done.stdout, done.stderr
    assert "rank 1 began with other weights or buffers than rank 0" in complained
    assert "trains on the same minibatches" not in complained
    return reports(said)


@pytest.fixture(scope="module", params=["here", "hosts", "mapped", "elsewhere", GPU])
def found(request: pytest.FixtureRequest) -> Found:
    """Of modules where the rows are, on one host or on two, of modules on devices that map each other's rows or do not,
    for which a processor stands in, and of modules on a GPU."""
    return run(request.param)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ssgd_is_one_learner_with_the_minibatches_together(found: Found, optimizer: str) -> None:
    law = found[f"ssgd {optimizer}"]
    assert law[0]["values"] == law[1]["values"]
    close(law[0]["values"], alone(optimizer))


def test_gradients_may_be_accumulated(found: Found) -> None:
    close(found["ssgd SGD momentum micro"][0]["values"], alone("SGD momentum"))


def test_bsp_of_period_one_is_ssgd(found: Found) -> None:
    """Weighted by examples, so the rounds in which one learner has none are right too."""
    close(found["bsp SGD"][0]["values"], alone("SGD"))


def test_a_forward_without_a_step_is_no_step(found: Found) -> None:
    assert found["forward without step"][0]["values"] == found["ssgd SGD momentum"][0]["values"]


@pytest.mark.parametrize("name", [*(name for name in STRATEGIES if name != "sgd"), QUORATE])
def test_every_strategy_runs_and_learners_agree(found: Found, name: str, request: pytest.FixtureRequest) -> None:
    kept_here = name != QUORATE and STRATEGIES[name].traits.one_host
    if request.node.callspec.params["found"] == "hosts" and kept_here:
        assert f"every {name}" not in found
        pytest.skip("for learners of one host")
    law = found[f"every {name}"]
    start = attached_laws.values(mlp(norm=True))
    for what in ("between", "values", "statistics"):
        assert law[0][what] == law[1][what], what
    assert torch.tensor(law[0]["values"]).isfinite().all()
    assert start != law[0]["between"] != law[0]["values"]
    one_host = request.node.callspec.params["found"] != "hosts"  # else each is a node of hadpsgd's
    together = (name != QUORATE and STRATEGIES[name].traits.synchronous) or (name == "hadpsgd" and one_host)
    steps = [2 * max(STEPS)] * LEARNERS if together else [2 * own for own in STEPS]
    assert law[0]["steps"] == law[1]["steps"] == steps


def test_rows_are_where_they_cost_least(found: Found, request: pytest.FixtureRequest) -> None:
    """Shared where others write them, one's own where nobody does, and on the host where neither can be."""
    kind = request.node.callspec.params["found"]
    for name, strategy in STRATEGIES.items():
        if name == "sgd" or f"every {name}" not in found:
            continue
        where = found[f"every {name}"][0]["rows"]
        if kind in ("here", "hosts"):
            assert where == "on the host"
        elif strategy.traits.synchronous and strategy.traits.model == "mean":
            assert where == "on a device of its own"
        elif strategy.traits.synchronous or kind == "elsewhere":
            assert where == "on the host, the module elsewhere"
        else:
            assert where == "shared on devices"


def test_learners_share_the_memory_that_the_table_says() -> None:
    """docs/strategies: bytes a parameter of each learner + of all of a host. No strategy writes more vectors than that.
    Some write fewer in runs as short as these."""
    table = (Path(__file__).parents[2] / "docs/strategies/README.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| \[([\w-]+)\]\(.*\| (\d+)(?:\+(\d+))? \|$", table, re.MULTILINE)
    unsaid = set(STRATEGIES) - {name for name, _, _ in said}
    assert not unsaid, f"the table of docs/strategies/README.md does not say how many bytes a parameter: {unsaid}"
    for name, each, of_all in said[1:]:
        vectors: Mapping[str, list[int]] = run("here")[f"every {name}"][0]["vectors"]
        strategy = STRATEGIES[name]()
        beside = (strategy.traits.model == "centre") + len(strategy.centre_memory)
        unwritten = LEARNERS * int(each) + int(of_all or 0) - 4 * (sum(map(len, vectors.values())) + beside)
        assert 0 <= unwritten <= 12, (name, vectors)


def test_buffers_follow_their_rule(found: Found) -> None:
    law = found["buffers"]
    assert law[0]["own"] != law[1]["own"]
    mean = [(a + b) / 2 for a, b in zip(law[0]["own"], law[1]["own"], strict=True)]
    for rank in range(LEARNERS):
        close(law[rank]["mean"], mean)
        assert law[rank]["counted"] == STEPS[0]
        assert law[rank]["after"] == law[rank]["own"]
        assert law[rank]["own_counted"] == STEPS[rank]
        assert law[rank]["cached"] == 32 + rank


def test_learners_begin_from_the_weights_of_rank_0(found: Found) -> None:
    assert found["other weights"][0]["values"] == found["other weights"][1]["values"]
    assert found["other weights"][0]["values"] == attached_laws.values(mlp(seed=0))


@pytest.mark.parametrize("law", ["sampler adpsgd 0", "sampler adpsgd 1", "sampler ssgd 0"])
def test_samplers_share_out_every_example_once(found: Found, law: str) -> None:
    epochs = []
    for epoch in range(2):
        drawn = [found[law][rank]["drawn"][epoch] for rank in range(LEARNERS)]
        batches = [tuple(batch) for mine in drawn for batch in mine]
        assert sorted(number for batch in batches for number in batch) == list(range(25))
        assert max(map(len, batches)) == 3
        epochs.append(set(batches))
    assert epochs[0] != epochs[1]
    if "ssgd" in law:
        assert [len(found[law][rank]["drawn"][0]) for rank in range(LEARNERS)] == [4, 5]  # the last round: one example
        assert found[law][0]["length"] == 5


@pytest.mark.parametrize("strategy", ["bmuf", "dpsgd", "easgd-sync"])
def test_a_state_saved_and_loaded_changes_nothing(found: Found, strategy: str) -> None:
    law = found[f"going on {strategy}"]
    assert law[0]["straight"] == law[0]["values"] == law[1]["values"]


@pytest.mark.parametrize("strategy", attached_resuming.SYNCHRONOUS)
def test_a_session_saved_and_resumed_in_the_middle_of_an_epoch_goes_on_bit_for_bit(
    found: Found, strategy: str, request: pytest.FixtureRequest
) -> None:
    """Adam's state, a schedule, dropout's random numbers and batch normalisation included."""
    if f"resumed {strategy}" not in found:
        assert request.node.callspec.params["found"] != "here"
        assert strategy not in attached_resuming.SOME or request.node.callspec.params["found"] == "mapped"
        pytest.skip("all of them run on one host")
    law = found[f"resumed {strategy}"]
    for rank in range(LEARNERS):
        assert law[rank]["straight"] == law[rank]["values"] == law[0]["values"]
        assert law[rank]["rest"] == law[rank]["trained"] != []
        assert law[rank]["steps"][0] == law[rank]["steps"][1]


@pytest.mark.parametrize("kind", ["here", "hosts"])
@pytest.mark.parametrize("strategy", attached_resuming.OTHERS)
def test_other_learners_go_on_from_the_model_and_share_out_what_is_left_of_an_epoch(kind: str, strategy: str) -> None:
    law = run(kind)[f"others {strategy}"]
    for rank in range(LEARNERS):
        close(law[rank]["one"], law[rank]["saved"])
    (first, one, again), (second, _, other) = (law[rank]["trained"] for rank in range(LEARNERS))
    whole = list(range(attached_resuming.EXAMPLES))
    assert sorted(first + second + one + again + other) == sorted(2 * whole)


@pytest.mark.parametrize("name", ["bmuf", "bmuf-fairseq", "slowmo", "diloco"])
def test_with_a_minibatch_each_block_momentum_moves_as_far_as_one_learner_on_all_minibatches(name: str) -> None:
    """Forty steps of each of two learners are eighty of one, local momentum and its reset included."""
    found = run("here")
    assert found[f"block momentum {name}"][0]["steps"] == pytest.approx(80, rel=0.05)
    assert found["block momentum bsp"][0]["steps"] == pytest.approx(40, rel=1e-3), "the mean moves as one of them"


def test_averaging_the_momentum_of_optimizers_that_share_nothing_is_refused() -> None:
    assert "local_momentum is average" in run("here")["average"][1]["error"]


def test_learners_of_two_hosts_whose_rows_are_on_devices_agree() -> None:
    """A processor stands in for the devices. Those of one host exchange there, and with the other by copies."""
    law = reports(run_hosts((1, 2), str(attached_gpu.__file__), "one loop", "adpsgd", "cpu")[0])["dense float32"]
    assert law[0]["values"] == law[1]["values"] == law[2]["values"]
    assert torch.tensor(law[0]["values"]).isfinite().all()
    assert {one["rows"] for one in law.values()} == {"shared on devices"}


def test_two_hosts_are_one_bit_for_bit() -> None:
    """The bits are equal where they do not depend on timing; on two hosts the loop is left as it was, with the
    optimizer's own step. The last test here: both have run by now."""
    one, two = run("here"), run("hosts")
    here = {f"every {name}" for name, strategy in STRATEGIES.items() if strategy.traits.one_host}
    here |= {f"resumed {name}" for name in attached_resuming.SYNCHRONOUS if name not in attached_resuming.SOME}
    here |= {"average", *(law for law in one if law.startswith("block momentum"))}
    assert set(one) - set(two) == here
    timed = [QUORATE, *(name for name, strategy in STRATEGIES.items() if not strategy.traits.synchronous)]
    exact = [law for law in two if not {*law.split(), *law.replace(",", " ").split()} & {*timed, "buffers"}]
    assert len(exact) > 20
    for law in exact:
        for rank in range(LEARNERS):
            mine, theirs = ({**found[law][rank], "rows": "", "vectors": ""} for found in (one, two))
            assert mine == theirs, (law, rank)
