"""From stored features to what the network sees, against the textbook written out frame by frame."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.models.frames import FrameExamples, cut_windows
from roundelay_speech.models.frontend import Frontend, FrontendConfig, delta_kernels
from support.toy_corpus import toy_corpus


def naive_deltas(
    x: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """d_t = sum_j j (x_{t+j} - x_{t-j}) / (2 sum_j j^2), j = 1, 2, inside a signal long enough on both sides."""
    d = np.zeros_like(x)
    for t in range(2, len(x) - 2):
        d[t] = sum(j * (x[t + j] - x[t - j]) for j in (1, 2)) / 10
    return d


def test_deltas_of_a_ramp_are_its_slope_and_theirs_are_zero() -> None:
    first, second = delta_kernels(2, 2)[1:]
    ramp = 3.0 * np.arange(9)
    assert np.correlate(ramp[2:7], first)[0] == pytest.approx(3)
    assert np.correlate(ramp, second)[0] == pytest.approx(0)


def test_the_front_end_is_deltas_and_splicing_of_the_extended_utterance(tmp_path: Path) -> None:
    _, store, _ = toy_corpus(tmp_path)
    config = FrontendConfig(context=5)
    name = store.utterance_ids[3]
    first, frames = store.span(name)
    reach = np.arange(-config.reach, config.reach + 1)
    out = Frontend(config, 40)(*cut_windows(store, np.arange(first, first + frames), reach)).numpy()
    assert out.shape == (frames, 1320)
    padded = np.pad(store.normalised(name).astype(np.float64), ((20, 20), (0, 0)), mode="edge")
    statics, deltas = padded, naive_deltas(padded)
    orders = [statics, deltas, naive_deltas(deltas)]
    for t in (0, 1, frames // 2, frames - 1):
        expected = np.concatenate([order[20 + t + p] for order in orders for p in range(-5, 6)])
        np.testing.assert_allclose(out[t], expected, atol=1e-5)


def test_scales_bring_every_order_to_unit_variance(tmp_path: Path) -> None:
    _, store, _ = toy_corpus(tmp_path)
    frontend = Frontend(FrontendConfig(context=0), 40)
    windows = cut_windows(store, np.arange(len(store.array)), np.arange(-4, 5))
    frontend.fit_scale(*windows)
    spread = frontend(*windows).std(0)
    torch.testing.assert_close(spread, torch.ones_like(spread), rtol=1e-4, atol=1e-4)


def test_frames_without_a_label_are_never_drawn(tmp_path: Path) -> None:
    corpus, store, _ = toy_corpus(tmp_path)
    labels = stream(0, "labels").integers(0, 7, len(store.array)).astype(np.int32)
    lost = store.span("train-0")
    labels[lost[0] : sum(lost)] = -1
    splits = {split: [u.id for u in some] for split, some in corpus.splits.items()}
    examples = FrameExamples(store, labels, splits, FrontendConfig(context=1))
    assert examples.count("train") == sum(store.frames(u) for u in splits["train"]) - lost[1]
    (windows, mean, std), targets = examples.batch("train", np.arange(5))
    assert windows.shape == (5, 11, 40)
    assert mean.shape == std.shape == (5, 40)
    assert targets.tolist() == labels[sum(lost) : sum(lost) + 5].tolist()
    seen = torch.cat([t for _, t in examples.in_order("dev", 17)])
    assert len(seen) == examples.count("dev")
    assert examples.label_counts("train", 7).sum() == examples.count("train")


def test_an_alignment_of_other_features_is_refused(tmp_path: Path) -> None:
    _, store, _ = toy_corpus(tmp_path)
    with pytest.raises(UserError, match="roundelay align"):
        FrameExamples(store, np.zeros(3, np.int32), {}, FrontendConfig())


def test_windows_in_one_piece_and_at_edges_are_those_cut_frame_by_frame(tmp_path: Path) -> None:
    _, store, _ = toy_corpus(tmp_path)
    reach = np.arange(-9, 10)
    frames = stream(0, "frames").permutation(len(store.array))[:500]
    windows = cut_windows(store, frames, reach)[0].numpy()
    for frame, window in zip(frames, windows, strict=True):
        utterance = np.searchsorted(store.offsets, frame, side="right") - 1
        wanted = np.clip(frame + reach, store.offsets[utterance], store.offsets[utterance + 1] - 1)
        np.testing.assert_array_equal(window, store.array[wanted])


def test_utterances_shorter_than_a_window(tmp_path: Path) -> None:
    """Also where the whole corpus is."""
    _, store, _ = toy_corpus(tmp_path)
    short = dataclasses.replace(store, array=store.array[:4], offsets=np.array([0, 3, 4]))
    windows = cut_windows(short, np.array([1, 3]), np.arange(-5, 6))[0].numpy()
    np.testing.assert_array_equal(windows[0], store.array[[0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]])
    np.testing.assert_array_equal(windows[1], store.array[[3] * 11])


def test_a_front_end_over_time_is_the_one_on_windows(tmp_path: Path) -> None:
    _, store, _ = toy_corpus(tmp_path)
    frontend = Frontend(FrontendConfig(context=0), 40)
    first, size = store.span("train-3")
    windows = cut_windows(store, np.arange(first, first + size), np.arange(-4, 5))
    frontend.fit_scale(*windows)
    inside = np.clip(np.arange(first - 4, first + size + 4), first, first + size - 1)
    over_time = frontend.over_time(torch.from_numpy(store.array[inside])[None], windows[1][:1], windows[2][:1])
    assert over_time.shape == (1, size, 3, 40)
    torch.testing.assert_close(over_time[0].flatten(1), frontend(*windows), rtol=1e-5, atol=1e-5)
