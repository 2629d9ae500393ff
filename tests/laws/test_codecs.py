"""Laws that every codec of the registry keeps: by itself, and in what is exchanged by it."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.codecs import CODECS, FORMS, codec_named, codec_of
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Exchange
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK, chunks
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.coding import arrived
from roundelay.runtime.rows import NoLock, Row, reach
from roundelay.runtime.sim.cluster import Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.runtime.sim.cost import CostModel, Prices
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import cluster, plan
from support.coded import Pairs

EVERY = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
INEXACT = [codec for codec in CODECS.values() if not codec.exact]
EVERY_INEXACT = pytest.mark.parametrize("codec", INEXACT, ids=[codec.name for codec in INEXACT])
SPARSE = {"sparse": Sparse(), "half of it": Sparse(density=0.5, two_bits=False), "all of it": Sparse(density=1.0)}
ANY_FORM = pytest.mark.parametrize("codec", [*CODECS.values(), *SPARSE.values()], ids=[*CODECS, *SPARSE])
ANY_INEXACT = pytest.mark.parametrize(
    "codec", [*INEXACT, *SPARSE.values()], ids=[*(codec.name for codec in INEXACT), *SPARSE]
)
SIZES = [1, 2, 37, 1023, 1024, 1025, CHUNK, CHUNK + 1, 2 * CHUNK + 1027]


def vector(size: int, seed: int = 0) -> Tensor:
    """(size,), elements of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) * torch.logspace(-3, 2, size)


def sent(codec: Codec, x: Tensor, error: Tensor | None = None) -> Tensor:
    arrived = torch.empty_like(x)
    codec.send(x, error, arrived)
    return arrived


@ANY_FORM
@pytest.mark.parametrize("size", SIZES)
def test_what_is_not_sent_is_remembered(codec: Codec, size: int) -> None:
    """x + e before is what arrives + e after, to one rounding of each sum."""
    x, error = vector(size), 0.1 * vector(size, 1)
    before, given = error.clone(), x.clone()
    arrived = sent(codec, x, error)
    assert torch.equal(x, given), "what is sent is only read"
    if codec.exact:
        assert torch.equal(error, before)
        return
    both = 2.0**-22 * (x.abs() + before.abs() + arrived.abs())
    assert bool(((arrived.double() + error - x - before).abs() <= both).all())


@ANY_FORM
@pytest.mark.parametrize("size", SIZES)
def test_the_bytes_are_as_many_as_the_codec_says_and_all_that_is_needed(codec: Codec, size: int) -> None:
    """Each chunk is decoded from its own bytes alone, and the bytes beside them stay as they are."""
    x, arrived = vector(size), torch.full((size,), torch.nan)
    total, room = codec.bytes_of(size), torch.full((codec.bytes_of(size) + 8,), 0xA5, dtype=torch.uint8)
    parts = codec.parts(room[:total], size)
    assert [part.nbytes for part in parts] == [codec.bytes_of(p.stop - p.start) for p in chunks(size)]
    assert sum(part.nbytes for part in parts) == total
    for part, coded in zip(chunks(size), parts, strict=True):
        codec.encode(x[part], coded)
    assert bool((room[total:] == 0xA5).all())
    for part, coded in zip(chunks(size), parts, strict=True):
        codec.decode(coded.clone(), arrived[part])
    assert torch.equal(arrived, sent(codec, x))
    assert codec.bytes_of(CHUNK) % 8 == 0
    assert codec.bytes_of(size) <= FP32.bytes_of(size) + 4


@pytest.mark.parametrize("size", SIZES)
def test_fp32_is_the_vector_bit_for_bit(size: int) -> None:
    x = vector(size)
    x[0] = -0.0
    x[-1] = math.inf
    assert torch.equal(sent(FP32, x, torch.zeros(size)).view(torch.int32), x.view(torch.int32))
    coded = torch.empty(FP32.bytes_of(min(size, CHUNK)), dtype=torch.uint8)
    FP32.encode(x[:CHUNK], FP32.parts(coded, min(size, CHUNK))[0])
    assert coded.numpy().tobytes() == x[:CHUNK].numpy().tobytes()


@EVERY_INEXACT
@pytest.mark.parametrize("size", SIZES)
def test_the_error_of_every_element_is_within_what_the_codec_declares_and_comes_near_it(
    codec: Codec, size: int
) -> None:
    x = vector(size)
    off = (sent(codec, x) - x).abs()
    largest = x.abs().clone()
    for chunk in chunks(size):
        for at in range(chunk.start, chunk.stop, codec.block):
            part = slice(at, min(at + codec.block, chunk.stop))
            largest[part] = x[part].abs().max()
    beyond = (off - codec.error * (1 + 1e-4) * largest).argmax()
    assert off[beyond] <= codec.error * (1 + 1e-4) * largest[beyond], (
        f"{codec.name} declares an error of {codec.error:.3g} of the largest element of a block of {codec.block}; "
        f"element {beyond}, {x[beyond]:.4g}, of a block up to {largest[beyond]:.4g}, is off by {off[beyond]:.3g}"
    )
    if size > 1000:
        assert bool((off > 0.8 * codec.error * largest).any()), "a bound that is never nearly met says little"


@ANY_FORM
@pytest.mark.parametrize("size", SIZES)
def test_what_has_arrived_travels_on_as_it_is(codec: Codec, size: int) -> None:
    for scale in (1.0, 1e-30, 1e-42, 1e30):
        once = sent(codec, scale * vector(size))
        assert torch.equal(sent(codec, once), once)


@EVERY_INEXACT
def test_a_constant_vector_that_is_sent_again_and_again_arrives_in_the_mean(codec: Codec) -> None:
    """The mean of n arrivals is off by the last rest over n. Without memory it stays where it was."""
    x, error = vector(5000), torch.zeros(5000)
    total, forgetful = torch.zeros(5000).double(), torch.zeros(5000).double()
    off = []
    for number in range(1, 65):
        total += sent(codec, x, error)
        forgetful += sent(codec, x)
        off.append(float((total / number - x).abs().mean()))
    assert off[-1] < off[0] / (16 if codec.error < 1 else 8), "of one bit the rest has to grow until the mean is right"
    assert float((forgetful / 64 - x).abs().mean()) == pytest.approx(off[0], rel=1e-5)


@ANY_FORM
def test_what_is_not_finite_is_seen_to_be_so_and_leaves_no_rest(codec: Codec) -> None:
    x, error = torch.ones(CHUNK + 5000), torch.zeros(CHUNK + 5000)
    x[7], x[2000] = math.inf, math.nan
    arrived = sent(codec, x, error)
    assert not bool(arrived[[7, 2000]].isfinite().any())
    assert bool(error.isfinite().all())
    spared = -(-2001 // codec.block) * codec.block
    assert bool(arrived[spared:].isfinite().all()), "elements without a scale in common with it are spared"


@ANY_FORM
def test_a_vector_of_zeros_arrives_as_zeros(codec: Codec) -> None:
    assert not bool(sent(codec, torch.zeros(3000), torch.zeros(3000)).any())


def test_a_codec_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"training.wire is 'int9': choose one of fp32, .* Did you mean int[48]\?"):
        codec_named("int9", "training.wire")
    assert dataclasses.replace(codec_named("int8", memory="left")).memory == "left"


@ANY_FORM
def test_another_host_finds_it_by_its_name_and_numbers(codec: Codec) -> None:
    assert codec_of(codec.name, [*codec.numbers, 0.0]) == codec, "a table has room for the numbers of any"


@pytest.mark.parametrize(
    ("name", "numbers", "wrong"),
    [
        ("int9", [], "no codec 'int9'"),
        (7, [], "no codec 7"),
        ("sparse", [0.1], "has 2 numbers"),
        ("sparse", ["0.1", 1], "has 2 numbers"),
        ("sparse", [0.0, 1], "above 0"),
        ("sparse", [math.nan, 1], "above 0"),
    ],
)
def test_what_names_no_codec_is_refused(name: object, numbers: list[float], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        codec_of(name, numbers)


# Sparse ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 4096, 2 * 4096 + 37])
@pytest.mark.parametrize("density", [0.003, 0.03, 0.5])
def test_the_largest_of_each_block_arrive_as_the_means_of_their_bins(size: int, density: float) -> None:
    """Worked out element by element."""
    x, expected = vector(size), torch.zeros(size)
    for at in range(0, size, 4096):
        block = x[at : at + 4096].tolist()
        kept = sorted(range(len(block)), key=lambda i: -abs(block[i]))[: max(1, round(density * len(block)))]
        middle = sum(abs(block[i]) for i in kept) / len(kept)
        bins = {i: (block[i] < 0, abs(block[i]) > middle) if len(kept) > 4 else (i, True) for i in kept}
        for i in kept:
            members = [block[j] for j in kept if bins[j] == bins[i]]
            expected[at + i] = sum(members) / len(members)
    found = sent(Sparse(density=density), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert torch.equal(found != 0, expected != 0)
    exactly = sent(Sparse(density=density, two_bits=False), x)
    assert torch.equal(exactly, torch.where(expected != 0, x, 0.0))


def test_bytes_fall_with_the_density() -> None:
    """14 bits of each element that is kept, and four values a block."""
    for density in (0.01, 0.03, 0.1, 0.5):
        kept = round(density * 4096)
        assert Sparse(density=density).bytes_of(4096 * 1000) == 1000 * (16 + -(-kept // 4) + 3 * -(-kept // 2))
    assert FP32.bytes_of(CHUNK) > 70 * FORMS["sparse"].bytes_of(CHUNK)


def test_blocks_with_few_elements_that_are_not_zero_send_those() -> None:
    x = torch.zeros(2 * 4096)
    x[[3, 4095, 5000]] = torch.tensor([-2.0, 5.0, 1e-30])
    for two_bits in (True, False):
        assert torch.equal(sent(Sparse(two_bits=two_bits), x), x)


def test_bytes_that_nobody_has_encoded_are_some_vector() -> None:
    """Places beyond the end of a short block, too."""
    codec, x = Sparse(), torch.empty(4096 + 700)
    for value in (0, 0x5A, 0xFF):
        codec.decode(torch.full((codec.bytes_of(len(x)),), value, dtype=torch.uint8), x)


# In exchanges ---------------------------------------------------------------------------------------------------------


def consensus_distance(codec: str, remembers: bool) -> tuple[float, float]:
    """Of four rows that start apart and only average: at the end, and how far the sum of all has moved, as a share of
    the largest element."""
    made = dataclasses.replace(
        cluster("adpsgd", 4, Quadratic(parameters=CHUNK + 1030)), strategy=Pairs(codec, remembers)
    )
    with SimRuntime(made) as runtime:
        state = runtime.state()
        state.vectors["row"].normal_(generator=torch.Generator().manual_seed(0))
        runtime.load(state)
        before = runtime.rows().double().sum(0)
        runtime.segment(plan(40, 4, rate=0.0))
        rows = runtime.rows().double()
    return float((rows - rows.mean(0)).square().mean().sqrt()), float(
        (rows.sum(0) - before).abs().max() / rows.abs().max()
    )


@EVERY
def test_exchanges_keep_the_sum_of_rows_whatever_the_codec(codec: Codec) -> None:
    for remembers in (True, False):
        distance, moved = consensus_distance(codec.name, remembers)
        assert moved < 1e-5
        assert distance < 0.5 or codec.error > 0.1, "they started at about 1; in very coarse steps they swing"


@ANY_INEXACT
@pytest.mark.parametrize("remembers", [True, False])
def test_both_rows_remember_what_the_rule_has_not_seen_of_them(codec: Codec, remembers: bool) -> None:
    """All that the rule has seen of a row, and the rest, is all that the row was, whoever asked; without a memory it is
    not."""
    size, seen = CHUNK + 5, torch.zeros(2, CHUNK + 5).double()
    rows = [Row(rank, vector(size, rank), np.zeros(2, np.int64), NoLock()) for rank in range(2)]
    for row in rows:
        row.memory = {"left": torch.zeros(size)}
    truth = torch.zeros(2, size).double()
    chosen = dataclasses.replace(codec, memory="left" if remembers else "")
    for number in range(6):
        asker = number % 2
        at = [0]

        def look_and_average(mine: Tensor, theirs: Tensor, asker: int = asker, at: list[int] = at) -> None:
            part = slice(at[0], at[0] + len(mine))
            seen[asker, part] += mine
            seen[1 - asker, part] += theirs
            at[0] = part.stop
            pair_average_(mine, theirs)

        for row in rows:
            truth[row.rank] += row.vector
        reach(rows[asker], rows[1 - asker], Exchange(1 - asker, look_and_average, codec=chosen))
    rest = torch.stack([row.memory["left"].double() for row in rows])
    off = float((seen + rest - truth).abs().max())
    assert rest.any() == remembers
    assert (off < 1e-3) == remembers


def test_private_vectors_and_ages_go_with_rows_in_full_precision() -> None:
    rows = [Row(rank, vector(5), np.zeros(2, np.int64), NoLock()) for rank in range(2)]
    with pytest.raises(ValueError, match="takes no private vectors"):
        reach(rows[0], rows[1], Exchange(1, pair_average_, since=0, codec=CODECS["int8"]))
    assert rows[0].version == rows[1].version == 0
    assert not rows[0].torn


def test_a_memory_that_the_strategy_has_not_is_named() -> None:
    with pytest.raises(ValueError, match="'gone', which is none of the strategy's vectors: left"):
        arrived(codec_named("int8", memory="gone"), vector(5), 1.0, {"left": torch.zeros(5)})


# What they cost -------------------------------------------------------------------------------------------------------


SLOW = VirtualCluster(nodes=(Node(1, count=4),), links=VirtualLinks(VirtualLink(), VirtualLink(1e-4, 1e8)))


@ANY_FORM
def test_the_simulator_takes_the_bytes_of_the_codec(codec: Codec) -> None:
    """As much as a model of so many bytes, whatever talks."""
    elements = 1_000_000
    of_row, of_bytes = Prices(SLOW, 4, 4.0 * elements), Prices(SLOW, 4, float(codec.bytes_of(elements)))
    assert of_row.reach_ns(0, 1, codec, codec) == of_bytes.reach_ns(0, 1)
    assert of_row.mix_ns(0, [1, 3], codec) == of_bytes.mix_ns(0, [1, 3])
    for _ in range(2):  # the second time from memory
        assert of_row.mean_ns((0, 1, 2), codec) == of_bytes.mean_ns((0, 1, 2))
        assert of_row.mean_ns((0, 1, 2)) == Prices(SLOW, 4, 4.0 * elements).mean_ns((0, 1, 2))


@ANY_FORM
def test_a_fragment_of_a_row_costs_its_share(codec: Codec) -> None:
    """Of the bytes; and of seconds that were measured with a whole row."""
    quarter, whole = (Prices(SLOW, 4, 4.0 * elements) for elements in (250_000, 1_000_000))
    for _ in range(2):  # the second time from memory
        assert whole.mean_ns((0, 1, 2), codec, 4) == quarter.mean_ns((0, 1, 2), codec)
    measured = Prices(CostModel(allreduce=0.02).virtual(2), 2, 4e6)
    assert measured.mean_ns((0, 1), codec, 4) == 5_000_000


@pytest.mark.parametrize("parameters", [0, 2 * CHUNK])
def test_sparseloco_costs_the_bytes_that_it_sends(parameters: int) -> None:
    took: dict[float, float] = {}
    for density in (1.0, 0.1, 0.01):
        made = cluster(f"sparseloco period=3 density={density}", 4, Quadratic(parameters=parameters))
        with SimRuntime(made, CostModel(cluster=SLOW), 8.0 * CHUNK) as runtime:
            took[density] = runtime.segment(plan(12, 4)).virtual_seconds or 0.0
    talk = {d: Prices(SLOW, 4, 8.0 * CHUNK).mean_ns((0, 1, 2, 3), Sparse(density=d)) / 1e9 for d in took}
    for density in (0.1, 0.01):
        assert took[1.0] - took[density] == pytest.approx(4 * (talk[1.0] - talk[density]), abs=1e-8)
        assert talk[1.0] > 2 * talk[density]


@pytest.mark.parametrize("parameters", [0, 2 * CHUNK])
def test_a_coded_run_is_as_much_shorter_as_its_messages(parameters: int) -> None:
    """With vectors and without any: what is paid is the same."""
    task = Quadratic(parameters=parameters)
    took: dict[str, float] = {}
    for codec in CODECS:
        made = cluster(f"diloco period=3 codec={codec}", 4, task)
        with SimRuntime(made, CostModel(cluster=SLOW), 8.0 * CHUNK) as runtime:
            took[codec] = runtime.segment(plan(12, 4)).virtual_seconds or 0.0
    talk = {codec: Prices(SLOW, 4, 8.0 * CHUNK).mean_ns((0, 1, 2, 3), CODECS[codec]) / 1e9 for codec in CODECS}
    for codec in CODECS:
        assert took["fp32"] - took[codec] == pytest.approx(4 * (talk["fp32"] - talk[codec]), abs=1e-8)
