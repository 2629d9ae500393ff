"""Words while somebody speaks: the final ones are those of the same samples recognised at once."""

import json
import sys
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from roundelay.cli import main
from roundelay.core.streams import stream
from roundelay_speech.audio.activity import Cutting
from roundelay_speech.decode.alternatives import WORDS_ALONE
from roundelay_speech.decode.search import decode
from roundelay_speech.packed.growing import GrowingScores, in_chunks
from roundelay_speech.packed.hearing import PieceFeatures
from roundelay_speech.packed.model import Model, load_model
from roundelay_speech.search.beam import GrowingSearch
from roundelay_speech.transcription.live import EVERY, USUAL, Latencies, Live, Update, _Growing, delays
from roundelay_speech.transcription.serving.endpoint import LIVE
from roundelay_speech.transcription.serving.work import recognising
from support.asking import Server
from support.beeps import RATE, say
from support.served import served
from support.websocket import BYTES, speaking

QUICK = ["schedule.max_epochs=2", "training.runtime=sim"]
SENTENCES = [["GO", "YES"], ["NO"], ["STAY", "STAY", "GO"], ["YES", "NO", "GO"]]
Samples = npt.NDArray[np.float32]
CHUNKS = "name: conformer, layers: 1, heads: 2, kernel: 7, attention_chunk: 12"
NETWORKS = {
    "dnn": [],
    "blstm": ["model={name: blstm, layers: 1, cells: 16}"],
    "conformer": [f"model={{{CHUNKS}, width: 16, dynamic_chunks: true}}"],
    "ctc": [
        f"model={{{CHUNKS}, width: 24, expansion: 2, deltas: 1, dropout: 0.0, subsampling: 3}}",
        *("training.objective=ctc", "training.minibatch=6", "training.minibatch_unit=sequences"),
        *("optimizer={name: adam}", "schedule={rule: anneal, learning_rate: 0.02, max_epochs: 4}"),
        "decode={graph: {name: ctc, blank_cost: 0.5}, workers: 1, scales: [0.5, 1]}",
    ],
}
BEHIND = {"dnn": 0.095, "conformer": 0.175, "ctc": 0.155}
"""Seconds from the beginning of a sound to the end of the last frame that its scores wait for."""


@pytest.fixture(scope="module", params=sorted(NETWORKS))
def model(folder: Path, request: pytest.FixtureRequest) -> Model:
    """A packed model of a network that sees a window, one that sees chunks, and one that sees whole utterances."""
    exp, out = f"exp/live/{request.param}", f"exp/live/model-{request.param}"
    if (folder / out).is_dir():
        return load_model(folder / out)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "recipe.yaml", "--exp", exp, *QUICK, *NETWORKS[request.param]]) == 0
        assert main(["decode", exp]) == 0
        assert main(["pack", exp, "--out", out]) == 0
    return load_model(folder / out)


@pytest.fixture(scope="module")
def talk() -> Samples:
    """Sentences with pauses of a second."""
    rng = stream(0, "talk")
    parts = [part for words in SENTENCES for part in (np.zeros(RATE), say(words, rng))]
    signal = np.concatenate([*parts, np.zeros(RATE)])
    noisy: Samples = (signal + 0.0003 * rng.standard_normal(len(signal))).astype(np.float32)
    return noisy


def heard(
    model: Model, samples: Samples, block: int, cutting: Cutting = USUAL, latencies: Latencies | None = None
) -> list[Update]:
    live = Live(model, cutting, latencies)
    found = [update for at in range(0, len(samples), block) for update in live.push(samples[at : at + block])]
    return [*found, *live.finish()]


def test_final_words_are_those_of_the_same_samples(model: Model, talk: Samples) -> None:
    """Recognised at once, and normalised by the same: all utterances so far."""
    updates = heard(model, talk, 1000)
    final = [update for update in updates if update.final]
    assert len(final) == len(SENTENCES)
    pieces = [talk[round(u.segment.start * RATE) : round(u.segment.end * RATE)] for u in final]
    for number, update in enumerate(final):
        whole = model.recognise_pieces(pieces[: number + 1])[number]
        assert [word.word for word in update.segment.words] == list(whole.words)
        for word, same in zip(update.segment.words, whole.timed, strict=model.gives_times):
            assert word.start == pytest.approx(update.segment.start + same.start)
            assert (word.duration, word.confidence) == (same.duration, same.confidence)
    assert any(word for update in final for word in update.segment.words)
    if model.folder.name == "model-ctc":
        assert [update.segment.text.split() for update in final] == SENTENCES


@pytest.mark.parametrize("model", ["ctc"], indirect=True)
def test_words_so_far_are_the_first_of_the_final_ones(model: Model, talk: Samples) -> None:
    """In most cases, with a model that knows the words."""
    updates = heard(model, talk, 1000)
    right = []
    for update in updates:
        if not update.final:
            said = next(u for u in updates if u.final and u.at >= update.at).segment.text
            right.append(said.startswith(update.segment.text))
    assert sum(right) > 0.8 * len(right)


def test_words_so_far_are_found_from_the_beginning_when_speech_ceases(model: Model) -> None:
    """With all that was heard by then, as of an utterance that is over; so they do not wait for the pause."""
    rng, growing = stream(0, "silence"), _Growing(model, WORDS_ALONE)
    speech = say(SENTENCES[2], rng).astype(np.float32)
    growing.words(speech[: RATE // 2], [], silent=False)
    upto = round(0.6 * RATE)  # too little more for a beginning
    growing.words(speech[:upto], [], silent=False)
    assert growing._known_frames == 50
    found = growing.words(speech[:upto], [], silent=True)
    assert growing._known_frames == 60
    fresh = _Growing(model, WORDS_ALONE)
    assert found == fresh.words(speech[:upto], [], silent=True)
    growing.words(speech[: upto + 160], [], silent=True)
    assert growing._known_frames == 60  # once, until somebody speaks again


def test_blocks_do_not_matter(model: Model, talk: Samples) -> None:
    assert heard(model, talk, 333) == heard(model, talk, len(talk))


def test_words_come_while_somebody_speaks(model: Model, talk: Samples) -> None:
    """And they are final a pause after the speech, and a step, in audio that had come by then."""
    latencies = Latencies()
    updates = heard(model, talk, 1000, latencies=latencies)
    assert [u.at for u in updates] == sorted(u.at for u in updates)
    for update in updates:
        assert update.final or update.segment.end <= update.at + 1e-9
        assert not update.final or 0.5 <= update.latency <= 0.5 + EVERY + 0.011
    before = [u for u in updates if not u.final and u.segment.words]
    assert before
    assert latencies.final == [u.latency for u in updates if u.final]
    assert len(latencies.computing_final) == 4
    assert len(latencies.computing) == len(updates) - 4
    assert latencies.report()[0].startswith("4 utterances; words were final 0.")
    assert latencies.report()[1].startswith("computing them took 0.")


@pytest.mark.parametrize("model", ["blstm"], indirect=True)
def test_a_network_of_whole_utterances_says_so(model: Model) -> None:
    assert "blstm needs the end of the whole utterance" in delays(model)
    with pytest.raises(ValueError, match="blstm needs the whole utterance"):
        GrowingScores(model, model.usual)


@pytest.mark.parametrize("model", BEHIND, indirect=True)
def test_scores_grow_as_samples_come(model: Model, talk: Samples) -> None:
    """They are those of all samples at once, in the same chunks; as long behind them as it says."""
    samples, known = talk[RATE : RATE + RATE * 2], model.usual
    drawn = model.folder.name == "model-conformer"
    expected = in_chunks(model, 12 if drawn else None).scores(model.features(samples), known)
    for block in (333, 1600, len(samples)):
        growing, rows = GrowingScores(model, known), []
        for at in range(0, len(samples), block):
            rows.append(growing.push(samples[at : at + block]))
            seconds = min(at + block, len(samples)) / RATE
            assert sum(map(len, rows)) >= 100 * (seconds - growing.delay) / model.hearings[0].model.module.subsampling
        found = np.concatenate(rows)
        np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-4, atol=1e-4)
    behind = BEHIND[model.folder.name.removeprefix("model-")]
    assert GrowingScores(model, known).delay == pytest.approx(behind)
    assert f"at most {behind:.2f} s of audio behind" in delays(model)


@pytest.mark.parametrize("model", ["ctc"], indirect=True)
def test_over_a_connection_words_are_the_same(model: Model, talk: Samples) -> None:
    """As those of whoever gives the samples to the recogniser, by a WebSocket and as events."""
    sent = np.round(32767 * talk).astype("<i2")
    expected = [u for u in heard(model, sent.astype(np.float32) / np.float32(32768), 1000) if u.final]
    buffer = BytesIO()
    soundfile.write(buffer, sent, RATE, format="WAV", subtype="PCM_16")
    with served(partial(recognising, model.folder, 600.0)) as server:
        with speaking(server.port, LIVE) as client:
            client.send(BYTES, sent.tobytes())
            client.end()
            events, _, _ = client.told()
        *deltas, done, _ = Server(server.port).post(buffer.getvalue(), stream="true")[2].decode().split("\n\n")
    found = [event for event in events if event["type"] == "transcript.text.segment"]
    assert [(one["start"], one["text"]) for one in found] == [(u.segment.start, u.segment.text) for u in expected]
    assert any(event["type"] == "transcript.text.partial" for event in events)
    assert events[-1]["text"] == " ".join(" ".join(words) for words in SENTENCES)
    assert json.loads(done.partition("data: ")[2])["text"] == events[-1]["text"]
    assert [json.loads(one.partition("data: ")[2])["delta"].split() for one in deltas] == SENTENCES


def test_silence_at_either_end_is_not_heard(model: Model, talk: Samples) -> None:
    """Frames without any sound are silence, whatever a network would say of them; the others have their scores."""
    (hearing,), (known,) = model.hearings, model.usual.of_network
    (features,), every = model.features(talk[RATE : 2 * RATE]).of_network, hearing.model.module.subsampling
    mean, std = hearing.usual
    room = np.tile(mean - std, (9, 1))
    found = model.scores(PieceFeatures((np.concatenate([room, features, room]),)), model.usual)
    expected = hearing.scores(features, known, RATE)
    assert len(found) == len(expected) + 2 * 9 // every
    np.testing.assert_allclose(found[9 // every : 9 // every + len(expected)], expected, atol=1e-5)
    outside = np.concatenate([found[: 9 // every], found[9 // every + len(expected) :]])
    assert set(outside.argmax(1).tolist()) <= set(model._quiet)


def test_an_utterance_without_end_is_cut(model: Model, talk: Samples) -> None:
    speech = np.concatenate([talk[: 4 * RATE], *[talk[RATE : RATE + RATE // 2]] * 12])
    final = [update for update in heard(model, speech, 1000, Cutting(longest=3.0)) if update.final]
    assert len(final) >= 2
    assert all(update.segment.end - update.segment.start <= 3.3 for update in final)
    starts, ends = [u.segment.start for u in final], [u.segment.end for u in final]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_silence_is_forgotten(model: Model) -> None:
    live = Live(model)
    quiet = (0.0003 * stream(0, "quiet").standard_normal(RATE)).astype(np.float32)
    for _ in range(60):
        assert list(live.push(quiet)) == []
    assert len(live._held) < 4 * RATE
    assert len(live._activity.level) < 2500
    assert list(live.finish()) == []


def test_a_search_that_goes_on_finds_the_words_of_one_at_once(model: Model) -> None:
    rng = stream(0, "scores")
    columns = model.hearings[0].model.module.columns
    scores = rng.normal(size=(150, columns)).astype(np.float32)
    for sizes in ([150], [1] * 150, [40, 0, 70, 40]):
        growing = GrowingSearch(model.graph.fst, 9.0, 500)
        for first, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
            growing.push(scores[first : first + size])
        assert tuple(model.graph.words[word] for word in growing.words()) == decode(model.graph, scores, 9.0, 500).words
    assert GrowingSearch(model.graph.fst, 9.0, 500).words() == []


def test_the_command(
    model: Model, talk: Samples, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "talk.wav", talk, RATE, subtype="FLOAT")
    expected = [" ".join(w.word for w in u.segment.words) for u in heard(model, talk, len(talk)) if u.final]
    call = ["transcribe", str(model.folder), str(tmp_path / "talk.wav"), "--stream"]
    assert main(call) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [text for text in expected if text]
    assert "4 utterances; words were final" in err
    buffer = BytesIO()
    soundfile.write(buffer, talk, RATE, format="WAV", subtype="FLOAT")
    buffer.seek(0)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(buffer))
    assert main([*call[:2], "-", "--stream", "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines if line["final"]] == expected
    chunked = main([*call, "--chunk", "6"])
    if model.folder.name == "model-conformer":  # the one that was trained for that
        assert chunked == 0
        out, err = capsys.readouterr()
        assert out.splitlines() == [text for text in expected if text]
        assert "at most 0.12 s of audio behind" in " ".join(err.split())
    else:
        assert chunked == 2
        assert "Chunks of 6 frames" in " ".join(capsys.readouterr().err.split())
    assert main([*call[:-1], "--chunk", "6"]) == 2
    assert "give --stream" in capsys.readouterr().err
    assert main([*call, "--out", "x"]) == 2
    assert "leave --out out" in capsys.readouterr().err
    assert main([*call, "--format", "srt"]) == 2
    assert "--format txt or json" in capsys.readouterr().err
    assert main([*call[:-1], "--rate", "8000"]) == 2
    assert "give --stream" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["ctc"], indirect=True)
@pytest.mark.timeout(600)
def test_sherpa_finds_the_words_while_somebody_speaks(model: Model, talk: Samples, tmp_path: Path) -> None:
    """Exported chunk by chunk, and searched by the graph: the words of our own stream, sentence by sentence, in blocks
    of any size. After a sentence comes the noise of the recording, as it would at a microphone."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="ONNX is an extra: pip install 'roundelay[export]'")
    assert main(["export", "sherpa", str(model.folder), "--out", str(tmp_path / "out")]) == 0
    graph = tmp_path / "out/HLG.fst"
    assert graph.is_file()
    sherpa = pytest.importorskip("sherpa_onnx.lib._sherpa_onnx", reason="pip install sherpa-onnx")
    about = json.loads((tmp_path / "out/about.json").read_text())
    network = sherpa.OnlineWenetCtcModelConfig(str(tmp_path / "out/model.onnx"), **about["sherpa_onnx_chunks"])
    recognizer = sherpa.OnlineRecognizer(
        sherpa.OnlineRecognizerConfig(
            feat_config=sherpa.FeatureExtractorConfig(**about["sherpa_onnx"]),
            model_config=sherpa.OnlineModelConfig(
                wenet_ctc=network, tokens=str(tmp_path / "out/tokens.txt"), num_threads=1
            ),
            ctc_fst_decoder_config=sherpa.OnlineCtcFstDecoderConfig(graph=str(graph)),
            enable_endpoint=False,
            decoding_method="greedy_search",
        )
    )
    symbols = [line.split()[0] for line in (tmp_path / "out/words.txt").read_text().splitlines()]
    final = [update for update in heard(model, talk, 1000) if update.final]
    assert [update.segment.text.split() for update in final] == SENTENCES
    for block, update in zip((100, 800, 3000, len(talk)), final, strict=True):
        # sherpa-onnx waits for a whole chunk
        piece = talk[round(update.segment.start * RATE) : round((update.segment.end + 0.5) * RATE)]
        stream_of_it = recognizer.create_stream()
        for at in range(0, len(piece), block):
            stream_of_it.accept_waveform(RATE, piece[at : at + block])
            while recognizer.is_ready(stream_of_it):
                recognizer.decode_stream(stream_of_it)
        result = recognizer.get_result(stream_of_it)
        assert [symbols[number] for number in result.words] == update.segment.text.split()
