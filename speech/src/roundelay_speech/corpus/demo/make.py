"""A small spoken-command corpus made on the spot: espeak-ng voices with added noise, exactly repeatable.

Synthetic speech: good for seeing the whole path run, not for word error rates worth reporting.

    DATA/wav/SPEAKER/ID.wav    16 kHz, 16 bit
    DATA/phone_times.jsonl     when every phone and word begins, from the synthesiser: to judge alignments by
    DATA/demo.json             seed and size; written when all of the audio is there

The grammar leaves real choices to the recogniser: numbers that differ in one phone (fourteen, forty), letters that
rhyme, digit strings of any order.

Legend: N samples.
"""

import dataclasses
import io
import json
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.core.files import read_json, unwritable, write_json, write_text
from roundelay.core.progress import Progress
from roundelay.core.streams import stream
from roundelay_speech.audio.reading import whole_recording
from roundelay_speech.bindings import soundfile
from roundelay_speech.corpus.build import ReadUtterances, prepare_utterances
from roundelay_speech.corpus.options import Preparation
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.hmm.boundaries import PHONE_TIMES
from roundelay_speech.lexicon.lexicon import parse_lexicon
from roundelay_speech.prepared import Corpus

SHORTEST, LONGEST = 2, 7  # words per sentence

# CMU phones. Second pronunciations are those of the accents below.
LEXICON = """\
ZERO Z IY R OW
ONE W AH N
ONE(2) W AA N
TWO T UW
THREE TH R IY
FOUR F AO R
FOUR(2) F AO
FIVE F AY V
SIX S IH K S
SEVEN S EH V AH N
EIGHT EY T
NINE N AY N
THIRTEEN TH ER T IY N
FOURTEEN F AO R T IY N
FOURTEEN(2) F AO T IY N
FIFTEEN F IH F T IY N
SIXTEEN S IH K S T IY N
THIRTY TH ER T IY
THIRTY(2) TH ER D IY
FORTY F AO R T IY
FORTY(2) F AO T IY
FORTY(3) F AO D IY
FIFTY F IH F T IY
SIXTY S IH K S T IY
B B IY
D D IY
E IY
G JH IY
P P IY
T T IY
TURN T ER N
GO G OW
SET S EH T
OPEN OW P AH N
SHUT SH AH T
START S T AA R T
START(2) S T AA T
STOP S T AA P
MOVE M UW V
CALL K AO L
LEFT L EH F T
RIGHT R AY T
UP AH P
DOWN D AW N
TO T UW
TO(2) T AH
THE DH AH
AND AE N D
THEN DH EH N
ON AA N
ON(2) AO N
OFF AO F
OFF(2) AA F
CHANNEL CH AE N AH L
GATE G EY T
LIGHT L AY T
DOOR D AO R
DOOR(2) D AO
VOLUME V AA L Y UW M
RADIO R EY D IY OW
"""

# Symbol -> (weight, expansion); lower-case words are symbols.
GRAMMAR: Mapping[str, Sequence[tuple[float, str]]] = {
    "sentence": ((6, "command"), (2, "command link command")),
    "link": ((2, "AND"), (2, "THEN"), (1, "AND THEN")),
    "command": (
        (3, "TURN side"),
        (2, "MOVE way number"),
        (2, "GO way"),
        (3, "GO TO place"),
        (3, "SET quantity TO number"),
        (2, "TURN THE device state"),
        (1, "TURN state THE device"),
        (2, "action entrance"),
        (1, "action gate"),
        (1, "begin THE device"),
        (4, "CALL digits"),
    ),
    "side": ((1, "LEFT"), (1, "RIGHT")),
    "way": ((1, "UP"), (1, "DOWN"), (1, "LEFT"), (1, "RIGHT")),
    "place": ((2, "CHANNEL number"), (2, "gate"), (1, "THE entrance")),
    "gate": ((2, "GATE letter"), (3, "GATE letter digit")),
    "entrance": ((1, "DOOR"), (1, "THE DOOR"), (1, "GATE")),
    "quantity": ((1, "THE VOLUME"), (1, "VOLUME"), (1, "THE CHANNEL"), (1, "CHANNEL")),
    "device": ((1, "LIGHT"), (1, "RADIO")),
    "state": ((1, "ON"), (1, "OFF")),
    "action": ((1, "OPEN"), (1, "SHUT")),
    "begin": ((1, "START"), (1, "STOP")),
    "number": ((1, "digit"), (2, "teen")),
    "digits": ((1, "digit digit digit"), (2, "digit digit digit digit"), (1, "digit digit digit digit digit")),
    "digit": tuple((1, w) for w in ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]),
    "teen": tuple((1, w) for w in ["THIRTEEN", "FOURTEEN", "FIFTEEN", "SIXTEEN", "THIRTY", "FORTY", "FIFTY", "SIXTY"]),
    "letter": tuple((1, w) for w in ["B", "D", "E", "G", "P", "T"]),
}


@dataclass(frozen=True)
class Speaker:
    """One synthetic voice."""

    name: str
    voice: str  # espeak-ng's name, `language+variant`
    rate: int  # words per minute
    pitch: int  # 0 to 99
    gender: str


# Accents, variants, rates and pitches differ between splits as between people: no speaker of one is in another, and no
# variant (the size and shape of a vocal tract). Variants with breath noise are not repeatable, see demo_voice.
SPEAKERS: Mapping[str, Sequence[Speaker]] = {
    "train": (
        Speaker("demo-ada", "en-us+grandma", 165, 55, "f"),
        Speaker("demo-bea", "en-us+aunty", 190, 50, "f"),
        Speaker("demo-cal", "en-us+m1", 160, 40, "m"),
        Speaker("demo-dan", "en-us+m3", 205, 35, "m"),
        Speaker("demo-eli", "en-us", 175, 50, "m"),
        Speaker("demo-fay", "en+Annie", 180, 55, "f"),
        Speaker("demo-gus", "en+m4", 150, 30, "m"),
        Speaker("demo-hal", "en+m7", 195, 45, "m"),
        Speaker("demo-ida", "en-gb-scotland+f4", 170, 50, "f"),
        Speaker("demo-jim", "en-gb-scotland+m2", 185, 40, "m"),
        Speaker("demo-kit", "en-gb-x-rp+m5", 165, 55, "m"),
        Speaker("demo-lou", "en-gb-x-rp+belinda", 155, 45, "f"),
        Speaker("demo-max", "en-us+klatt", 170, 45, "m"),
        Speaker("demo-nat", "en-us+klatt2", 190, 60, "m"),
        Speaker("demo-oda", "en-us+linda", 200, 50, "f"),
        Speaker("demo-pat", "en-us+Michael", 180, 40, "m"),
    ),
    "dev": (
        Speaker("demo-quin", "en-us+m6", 185, 42, "m"),
        Speaker("demo-rae", "en+anika", 170, 50, "f"),
        Speaker("demo-sam", "en-gb-scotland+rob", 195, 48, "m"),
        Speaker("demo-tess", "en-us+steph", 175, 52, "f"),
    ),
    "test": (
        Speaker("demo-uma", "en-us+f1", 180, 50, "f"),
        Speaker("demo-vic", "en-us+robert", 190, 38, "m"),
        Speaker("demo-wes", "en+travis", 175, 52, "m"),
        Speaker("demo-xia", "en-gb-x-rp+Andrea", 200, 45, "f"),
    ),
}


def sentence(rng: np.random.Generator) -> list[str]:
    """Draw a sentence of SHORTEST to LONGEST words."""
    while True:
        words = _expand("sentence", rng)
        if SHORTEST <= len(words) <= LONGEST:
            return words


def spoken(words: Sequence[str], rng: np.random.Generator) -> str:
    """Return the text of a sentence for the synthesiser: letters in capitals, now and then a comma for a pause."""
    said = [word if len(word) == 1 else word.lower() for word in words]
    pauses = rng.random(len(said) - 1) < 0.08
    return "".join(word + (", " if pause else " ") for word, pause in zip(said, pauses, strict=False)) + said[-1] + "."


def _expand(symbol: str, rng: np.random.Generator) -> list[str]:
    if not re.fullmatch("[a-z]+", symbol):
        return [symbol]
    weights = np.array([weight for weight, _ in GRAMMAR[symbol]])
    chosen = int(rng.choice(len(weights), p=weights / weights.sum()))
    return [word for part in GRAMMAR[symbol][chosen][1].split() for word in _expand(part, rng)]


RATE = 16000  # Hz
LICENCE = "Synthetic speech, made on this machine by espeak-ng; for demonstrations, not for reported word error rates."
MADE = "demo.json"
VERSION = 1

_AT_ONCE = 2  # voices that speak while the one before is being mixed
_PATIENCE_S = 300.0  # for one speaker, whose sentences take about half a second
_LEVEL = 0.05  # root mean square of speech, full scale 1
_PAUSE_S = (0.10, 0.40)  # before the first word and after the last
_SNR_DB = (5.0, 20.0)
_GAIN_DB = (-6.0, 6.0)
_JITTER = 0.06  # of rate and pitch, from sentence to sentence

Signal = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DemoSize:
    """The number of utterances of each split, dealt to its speakers in turn."""

    train: int = 720
    dev: int = 100
    test: int = 100


@dataclass(frozen=True)
class _Line:
    """One sentence to be spoken."""

    id: str
    words: tuple[str, ...]
    text: str  # as the synthesiser gets it
    rate: int
    pitch: int


def prepare_demo(data: Path, progress: Progress, *, seed: int = 0, size: DemoSize = DemoSize()) -> Corpus:
    """Synthesise the corpus into `data` and prepare it; the same seed and size give the same bytes.

    Raises:
        UserError: the extra `demo` is not installed; the synthesiser fails; the disk is full.
    """
    need("demo", "The demo corpus, which is spoken by espeak-ng,")
    script = {split: _script(split, seed, count) for split, count in dataclasses.asdict(size).items()}
    made = {
        "version": VERSION,
        "seed": seed,
        "size": dataclasses.asdict(size),
        "synthesiser": f"espeakng-loader {version('espeakng-loader')}",
    }
    if not _is_made(data, made, script):
        (data / MADE).unlink(missing_ok=True)
        progress.start("synthesising speech", sum(dataclasses.asdict(size).values()))
        try:
            with tempfile.TemporaryDirectory(prefix="roundelay-demo-") as scratch:
                times = list(_synthesise(script, data, Path(scratch), seed, progress))
        finally:
            progress.finish()
        write_text(data / PHONE_TIMES, "".join(json.dumps(time) + "\n" for time in times))
        write_json(data / MADE, made)
    splits = {
        split: [_utterance(data, speaker, line) for speaker, some in per_speaker.items() for line in some]
        for split, per_speaker in script.items()
    }
    lexicon = parse_lexicon(LEXICON, "demo lexicon")
    return prepare_utterances(ReadUtterances(splits), lexicon, Preparation(data, "demo", LICENCE), progress)


def _script(split: str, seed: int, count: int) -> dict[Speaker, list[_Line]]:
    """Return the sentences of a split, dealt to its speakers in turn."""
    speakers = SPEAKERS[split]
    script: dict[Speaker, list[_Line]] = {speaker: [] for speaker in speakers[:count]}
    for number in range(count):
        speaker = speakers[number % len(speakers)]
        name = f"{speaker.name}-{number // len(speakers):03d}"
        rng = stream(seed, "demo sentence", name)
        words = sentence(rng)
        rate, pitch = (round(value * (1 + _JITTER * rng.uniform(-1, 1))) for value in (speaker.rate, speaker.pitch))
        script[speaker].append(_Line(name, tuple(words), spoken(words, rng), rate, pitch))
    return script


def _is_made(data: Path, made: Mapping[str, Any], script: Mapping[str, Mapping[Speaker, Sequence[_Line]]]) -> bool:
    if not (data / MADE).is_file() or read_json(data / MADE) != made:
        return False
    return all(
        (data / _wav(speaker, line)).is_file()
        for per_speaker in script.values()
        for speaker, some in per_speaker.items()
        for line in some
    )


def _wav(speaker: Speaker, line: _Line) -> str:
    return f"wav/{speaker.name}/{line.id}.wav"


def _utterance(data: Path, speaker: Speaker, line: _Line) -> Utterance:
    path = _wav(speaker, line)
    whole = whole_recording(line.id, data / path, speaker.name, " ".join(line.words), speaker.gender)
    return dataclasses.replace(whole, path=path, language="en")


def _synthesise(
    script: Mapping[str, Mapping[Speaker, Sequence[_Line]]], data: Path, scratch: Path, seed: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Make all audio; yield the phone times of every utterance. One process per speaker: see demo_voice."""
    waiting = deque((speaker, some) for per_speaker in script.values() for speaker, some in per_speaker.items())
    speaking: deque[tuple[Speaker, Sequence[_Line], subprocess.Popen[bytes]]] = deque()
    try:
        while waiting or speaking:
            while waiting and len(speaking) < _AT_ONCE:
                speaker, some = waiting.popleft()
                speaking.append((speaker, some, _speak(speaker, some, scratch)))
            speaker, some, process = speaking[0]
            _wait(process, speaker, scratch)
            speaking.popleft()
            replies = (scratch / f"{speaker.name}.replies").read_text(encoding="utf-8").splitlines()
            for line, reply in zip(some, map(json.loads, replies), strict=True):
                yield _mix(speaker, line, reply, data, seed)
                progress.advance()
    finally:
        for _, _, process in speaking:
            process.kill()
            process.wait(_PATIENCE_S)


def _speak(speaker: Speaker, some: Sequence[_Line], scratch: Path) -> "subprocess.Popen[bytes]":
    requests, replies, complaints = (
        scratch / f"{speaker.name}.{kind}" for kind in ("requests", "replies", "complaints")
    )
    write_text(
        requests,
        "".join(
            json.dumps(
                {
                    "file": str(scratch / f"{x.id}.wav"),
                    "text": x.text,
                    "voice": speaker.voice,
                    "rate": x.rate,
                    "pitch": x.pitch,
                }
            )
            + "\n"
            for x in some
        ),
    )
    with open(requests, "rb") as stdin, open(replies, "wb") as stdout, open(complaints, "wb") as stderr:
        command = [sys.executable, "-m", "roundelay_speech.corpus.demo.voice"]
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)


def _wait(process: "subprocess.Popen[bytes]", speaker: Speaker, scratch: Path) -> None:
    try:
        status = process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"The synthesiser has not finished {speaker.name} ({speaker.voice}) in {_PATIENCE_S:.0f} s; run it again."
        ) from None
    if status != 0:
        complaint = (scratch / f"{speaker.name}.complaints").read_text(encoding="utf-8", errors="replace").strip()
        raise UserError(
            f"The synthesiser failed on {speaker.name} ({speaker.voice}), status {status}. If the disk of "
            f"{scratch.parent} is not full, install the extra again (pip install --force-reinstall 'roundelay[demo]'). "
            "It said:\n"
            f"{complaint[-2000:]}"
        )


def _mix(speaker: Speaker, line: _Line, reply: Mapping[str, Any], data: Path, seed: int) -> dict[str, Any]:
    """Write one spoken sentence at 16 kHz, with pauses around it and noise over it; return its phone times."""
    raw_rate = int(reply["sampling_rate"])
    raw, _ = soundfile.read(reply["file"], dtype="float64")
    Path(reply["file"]).unlink()
    rng = stream(seed, "demo noise", line.id)
    before, after = (round(float(rng.uniform(*_PAUSE_S)) * RATE) for _ in range(2))
    speech = resample(raw, raw_rate, RATE)
    speech *= _LEVEL / np.sqrt(np.mean(np.square(speech)))
    clean = np.concatenate([np.zeros(before), speech, np.zeros(after)])
    snr_db, gain_db = float(rng.uniform(*_SNR_DB)), float(rng.uniform(*_GAIN_DB))
    noise = coloured_noise(len(clean), pink=bool(rng.random() < 0.5), rng=rng) * _LEVEL * 10 ** (-snr_db / 20)
    mixed = (clean + noise) * 10 ** (gain_db / 20)
    mixed *= min(1.0, 0.99 / np.abs(mixed).max())
    path = data / _wav(speaker, line)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # By way of memory: libsndfile reports a full disk only as "System error".
        encoded = io.BytesIO()
        soundfile.write(encoded, mixed, RATE, format="WAV", subtype="PCM_16")
        path.write_bytes(encoded.getvalue())
    except OSError as error:
        raise unwritable(path, error) from error

    def seconds(sample: int) -> float:
        return round(before / RATE + sample / raw_rate, 4)

    begins = {place: seconds(sample) for place, _, sample in reply["words"]}
    places = [match.start() for match in re.finditer(r"\S+", line.text)]
    return {
        "id": line.id,
        "phones": [["_", 0.0], *([name, seconds(sample)] for name, sample in reply["phones"])],
        # A word run together with the one before (ON THE) has no time of its own.
        "words": [[word, begins.get(at)] for word, at in zip(line.words, places, strict=True)],
        "end": round(len(mixed) / RATE, 4),
        "snr_db": round(snr_db, 2),
    }


def resample(signal: Signal, from_rate: int, to_rate: int) -> Signal:
    """Resample (N,) at `from_rate` Hz to (ceil(N * to_rate / from_rate),) at `to_rate` Hz, by cutting or padding the
    spectrum.

    Exact for signals below both Nyquist frequencies that begin and end in silence (the transform is periodic).
    """
    common = np.gcd(from_rate, to_rate)
    up, down = to_rate // common, from_rate // common
    blocks = -(-len(signal) // down)
    spectrum = np.fft.rfft(signal, blocks * down)
    wanted = -(-len(signal) * to_rate // from_rate)
    resampled: Signal = np.fft.irfft(spectrum[: blocks * up // 2 + 1], blocks * up)[:wanted] * (up / down)
    return resampled


def coloured_noise(length: int, *, pink: bool, rng: np.random.Generator) -> Signal:
    """Return (N,) Gaussian noise of root mean square 1; pink: power falls as 1 / frequency."""
    noise: Signal = rng.standard_normal(length)
    if pink:
        spectrum = np.fft.rfft(noise)
        spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
        noise = np.fft.irfft(spectrum, length)
    noise /= np.sqrt(np.mean(np.square(noise)))
    return noise
