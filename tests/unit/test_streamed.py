"""Networks evaluated as frames come: a bounded past, no future, and the scores of the whole utterance."""

import copy
import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.models import AcousticNetwork, ConformerConfig
from roundelay_speech.models.conformer import LONGEST_DRAWN, Conformer
from support.toy_corpus import FILTERS
from support.toy_models import SEQUENCES, tiny
from support.toy_units import examples_of

pytestmark = pytest.mark.usefixtures("one_thread")

UNITS = "units in "
AS_THEY_COME = ("dnn", "conformer-chunks", UNITS + "conformer-chunks")


def network(name: str) -> AcousticNetwork:
    """With parameters that are not small, so that each of them shows."""
    units = name.startswith(UNITS)
    made = copy.deepcopy(examples_of(name.removeprefix(UNITS))[0] if units else tiny(name)).eval()
    rng = stream(0, "parameters")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, 0.3, parameter.shape)))
    return made


def conformer(name: str = "conformer-chunks") -> Conformer:
    made = network(name)
    assert isinstance(made, Conformer)
    return made


def utterance(frames: int) -> Tensor:
    return torch.from_numpy(stream(frames, "features").normal(2, 1, (frames, FILTERS)).astype(np.float32))


MEAN, STD = torch.full((FILTERS,), 2.0), torch.full((FILTERS,), 1.1)


def at_once(made: AcousticNetwork, features: Tensor, *, over: bool = False) -> Tensor:
    """Scores of all frames, which lie in one call; where chunks are drawn, in those of 6 frames, unless it is over."""
    if isinstance(made, Conformer) and made.config.dynamic_chunks and not over:
        made = made.in_chunks(6)
    reach = made.frontend.config.reach
    longer = torch.cat([features[:1].expand(reach, -1), features, features[-1:].expand(reach, -1)])
    with torch.inference_mode():
        if isinstance(made, Conformer):
            rows = torch.arange(-(-len(features) // made.subsampling))
            whole: Tensor = made(longer[None], MEAN[None], STD[None], torch.tensor([len(features)]), rows)
            return whole
        windows = longer.unfold(0, 2 * reach + 1, 1).transpose(1, 2)
        scores: Tensor = made(windows, MEAN.expand(len(features), -1), STD.expand(len(features), -1))
        return scores


@pytest.mark.parametrize("name", AS_THEY_COME)
@pytest.mark.parametrize("frames", [1, 5, 6, 7, 95])
def test_scores_are_those_of_all_frames_at_once_however_they_come(name: str, frames: int) -> None:
    made, features = network(name), utterance(frames)
    expected = at_once(made, features)
    rng = stream(frames, "cuts")
    cuttings = [[], list(range(frames + 1)), *(sorted(rng.integers(0, frames + 1, 9).tolist()) for _ in range(3))]
    for cuts in cuttings:
        streamed = made.streamed(MEAN, STD)
        assert streamed is not None
        bounds = [0, *cuts, frames]
        found = [streamed.push(features[a:b]) for a, b in pairwise(bounds)]
        found.append(streamed.push(features[:0], last=True))
        torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", AS_THEY_COME)
def test_the_delay_is_what_it_says(name: str) -> None:
    """After `delay` frames there is a score, and not before; then a chunk of them at a time."""
    streamed = network(name).streamed(MEAN, STD)
    assert streamed is not None
    frames = utterance(40)
    found = [len(streamed.push(frames[at : at + 1])) for at in range(40)]
    assert found.index(next(filter(None, found))) == streamed.delay - 1
    assert streamed.delay == {"dnn": 6, "conformer-chunks": 6 + 2, UNITS + "conformer-chunks": 6}[name]


@pytest.mark.parametrize("name", AS_THEY_COME[1:])
def test_no_chunk_depends_on_what_follows_it(name: str) -> None:
    made, features = conformer(name), utterance(60)
    reach, rows = made.reach, 6 // made.subsampling
    before = at_once(made, features)
    for chunk in (1, 4):
        changed = features.clone()
        changed[6 * chunk + reach :] += 3.0
        after = at_once(made, changed)
        assert torch.equal(after[: rows * chunk], before[: rows * chunk])
        assert not torch.isclose(after[rows * chunk + reach :], before[rows * chunk + reach :]).all(1).any()


@pytest.mark.parametrize("name", AS_THEY_COME[1:])
def test_what_is_long_past_is_forgotten(name: str) -> None:
    """A frame reaches so many chunks as attention looks back, and half a kernel, in every block."""
    made, features = conformer(name), utterance(120)
    rows = 6 // made.subsampling
    far = len(made.blocks) * (made.config.left_chunks + -(-made.config.kernel // 2 // rows) + 1) + 1
    changed = features.clone()
    changed[: 6 - made.reach] += 3.0
    before, after = at_once(made, features), at_once(made, changed)
    assert not torch.isclose(after[: rows * 2], before[: rows * 2]).all(1).any()
    assert far * rows < len(before)
    assert torch.equal(after[far * rows :], before[far * rows :])


def test_an_utterance_that_is_over_is_one_chunk_where_chunks_are_drawn() -> None:
    made, features = conformer(), utterance(50)
    config = dataclasses.replace(made.config, attention_chunk=None, dynamic_chunks=False)
    whole = config.network(FILTERS, made.columns).eval()
    whole.load_state_dict(made.state_dict())
    for same in (made, made.in_chunks(50)):
        found = at_once(same, features, over=True)
        torch.testing.assert_close(found, at_once(whole, features), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, at_once(made, features), rtol=1e-3, atol=1e-3)


def test_dynamic_networks_are_evaluated_in_chunks_of_any_size() -> None:
    """Streamed in chunks of another size, scores are those of these chunks at once; the past is as long."""
    made, features = conformer(), utterance(40)
    for frames in (3, 12, 5):
        other = made.in_chunks(frames)
        streamed = other.streamed(MEAN, STD)
        assert streamed is not None
        assert streamed.delay == frames + 2
        found = torch.cat([streamed.push(features), streamed.push(features[:0], last=True)])
        torch.testing.assert_close(found, at_once(other, features), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found, at_once(made, features), rtol=1e-3, atol=1e-3)
        assert isinstance(other, Conformer)
        assert 12 <= other.config.rows_before < 12 + frames
    for name in ("dnn", UNITS + "conformer-chunks"):
        with pytest.raises(
            UserError, match=r"Chunks of 12 frames: .* not trained for them.*model\.dynamic_chunks=true"
        ):
            network(name).in_chunks(12)


@pytest.mark.parametrize("name", ["conformer-chunks", UNITS + "conformer-chunks"])
def test_frames_so_far_can_be_one_chunk_where_chunks_are_drawn(name: str) -> None:
    """Scores are those of an utterance that is over, as far as its frames have come; then chunks follow as before."""
    made, features = conformer(name), utterance(47)
    streamed = made.streamed(MEAN, STD)
    assert streamed is not None
    found = streamed.push(features[:28], together=True)
    if made.config.dynamic_chunks:
        rows = 28 - made.reach
        torch.testing.assert_close(found, at_once(made.in_chunks(rows), features)[:rows], rtol=1e-5, atol=1e-5)
    else:
        torch.testing.assert_close(found, at_once(made, features)[: len(found)], rtol=1e-5, atol=1e-5)
    rest = [len(streamed.push(features[at : at + 1])) for at in range(28, 47)]
    assert {size for size in rest if size} == {6 // made.subsampling}


def test_training_draws_chunks() -> None:
    """Half of the minibatches see whole sequences, the others chunks of a frame to a second."""
    made = conformer().train()
    torch.manual_seed(0)
    drawn = [made._chunk() for _ in range(2000)]
    sizes = {size for size in drawn if size is not None}
    assert 900 < drawn.count(None) < 1100
    assert (min(sizes), max(sizes)) == (1, LONGEST_DRAWN)
    fixed = conformer(UNITS + "conformer-chunks")
    fixed.train()
    assert {fixed._chunk() for _ in range(9)} == {2}


@pytest.mark.parametrize("name", [name for name in SEQUENCES if name not in AS_THEY_COME])
def test_others_need_the_whole_utterance(name: str) -> None:
    assert tiny(name).streamed(MEAN, STD) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_chunk": 16, "subsampling": 3}, "a multiple of model.subsampling, 3 frames"),
        ({"attention_chunk": 16, "chunk": 50}, "leave model.chunk=null"),
        ({"attention_chunk": 0}, "give a whole number of 1 or more"),
        ({"dynamic_chunks": True}, "give model.attention_chunk"),
    ],
)
def test_impossible_chunks_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ConformerConfig(**options)  # type: ignore[arg-type]
