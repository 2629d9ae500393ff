"""A network that tells speech from noise is asked window by window; its chances become stretches of speech."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.audio import activity
from roundelay_speech.audio.activity import Activity, Silero
from support.recogniser import tones

Samples = npt.NDArray[np.float32]
WINDOW, CONTEXT = {8000: 256, 16000: 512}, {8000: 32, 16000: 64}


class LoudIsSpeech:
    """In the place of the network: loud windows are speech, and the state counts windows."""

    def __init__(self) -> None:
        self.windows: list[Samples] = []

    def run(self, _: None, given: dict[str, Any]) -> tuple[Samples, Samples]:
        window, state, rate = given["input"], given["state"], int(given["sr"])
        assert window.shape == (1, CONTEXT[rate] + WINDOW[rate])
        assert window.dtype == state.dtype == np.float32
        assert state[0, 0, 0] == len(self.windows), "the state is that of the window before"
        self.windows.append(window[0])
        loud = float(np.sqrt(np.square(window[0, CONTEXT[rate] :]).mean())) > 0.01
        return np.array([[0.9 if loud else 0.1]], np.float32), state + 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[LoudIsSpeech]:
    """Networks that were made, in order."""
    made: list[LoudIsSpeech] = []

    def session() -> LoudIsSpeech:
        made.append(LoudIsSpeech())
        return made[-1]

    monkeypatch.setattr(activity, "_session", session)
    return made


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 48000])
def test_windows_are_those_of_the_whole_signal(asked: list[LoudIsSpeech], rate: int) -> None:
    """In whatever blocks it comes; each with the end of the one before. Other rates are brought to 16 kHz."""
    signal = stream(0, "silero").normal(0, 0.1, rate).astype(np.float32)
    once, bit_by_bit = Silero(rate), Silero(rate)
    once.push(signal)
    for first in range(0, len(signal), 777):
        bit_by_bit.push(signal[first : first + 777])
    whole, parts = asked
    heard = rate if rate in WINDOW else 16000
    assert len(whole.windows) >= len(parts.windows) >= heard // WINDOW[heard] - 2
    for one, other in zip(whole.windows, parts.windows, strict=False):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert not whole.windows[0][: CONTEXT[heard]].any()
    for before, after in zip(whole.windows, whole.windows[1:], strict=False):
        np.testing.assert_array_equal(before[-CONTEXT[heard] :], after[: CONTEXT[heard]])
    if heard == rate:
        together = np.concatenate([window[CONTEXT[rate] :] for window in whole.windows])
        np.testing.assert_array_equal(together, signal[: len(together)])


@pytest.mark.parametrize("rate", [8000, 16000])
def test_frames_have_the_chance_of_their_window(asked: list[LoudIsSpeech], rate: int) -> None:
    """Also after what was before is forgotten; what has not filled a window yet is taken for as the last was."""
    found = Silero(rate)
    assert found.frames(0, 3).tolist() == [0, 0, 0]
    signal = np.where(np.arange(2 * rate) < rate, 0, 0.5).astype(np.float32)
    found.push(signal)
    chances = found.frames(0, 205)
    np.testing.assert_allclose(chances[:96], 0.1, atol=1e-6)
    np.testing.assert_allclose(chances[100:], 0.9, atol=1e-6)
    for before in (3, 50, 150, 190):
        found.forget(before)
        np.testing.assert_array_equal(found.frames(before, 205), chances[before:])


def test_speech_is_where_the_network_hears_it(asked: list[LoudIsSpeech]) -> None:
    rate = 8000
    activity = Activity(rate, "silero")
    signal = tones(["LOW", "TOP"], rate)
    activity.push(signal)
    spans = activity.spans()
    np.testing.assert_allclose(spans, [(100, 160), (260, 320)], atol=8)  # frames of 10 ms, windows of 32
    assert activity.anybody()
    activity.forget(200)
    np.testing.assert_allclose(activity.spans(), [(60, 120)], atol=8)
    silent = Activity(rate, "silero")
    silent.push(signal[:rate])
    assert not silent.anybody()
    assert len(asked) == 2


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(UserError, match=r"--detector silero.*roundelay\[detector\]"):
        Activity(16000, "silero")
