"""Miniature trees laid out as LibriSpeech and the telephone corpora of the LDC are, spoken in beeps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from roundelay.core.streams import stream
from support.beeps import RATE, WORDS, Float64, say

CMU_STYLE = "yes Y EH1 S\nyes(2) Y EH0 S\nno N OW1 # a comment\ngo G OW1\nstay S T EY1\nmorning M AO1 R N IH0 NG\n"
"""Lower case, stress marks, and a word that is never said."""
PHONE_RATE = 8000  # Hz


def sentences(rng: np.random.Generator, count: int, longest: int = 4) -> list[list[str]]:
    """Return `count` random sentences of the language of beeps, of up to `longest` words."""
    return [[str(w) for w in rng.choice(list(WORDS), int(rng.integers(1, longest + 1)))] for _ in range(count)]


def librispeech(
    folder: Path, parts: Mapping[str, Sequence[int]], utterances: int = 10, seed: int = 0, speakers: bool = True
) -> Path:
    """Write parts of LibriSpeech with these readers, one chapter each, `utterances` in a chapter; and SPEAKERS.TXT,
    where odd numbers are women."""
    rng = stream(seed, "librispeech")
    rows = [";ID |SEX| SUBSET |MINUTES| NAME\n"]
    for part, readers in parts.items():
        for reader in readers:
            rows.append(f"{reader:<5}| {'F' if reader % 2 else 'M'} | {part:<17}| 25.03 | Some | Body\n")
            chapter = folder / "LibriSpeech" / part / f"{reader}" / f"{1000 + reader}"
            chapter.mkdir(parents=True)
            lines = []
            for number, words in enumerate(sentences(rng, utterances)):
                name = f"{reader}-{1000 + reader}-{number:04d}"
                soundfile.write(chapter / f"{name}.flac", say(words, rng), RATE)
                lines.append(f"{name} {' '.join(words)}\n")
            (chapter / f"{reader}-{1000 + reader}.trans.txt").write_text("".join(lines))
    if speakers:
        (folder / "LibriSpeech" / "SPEAKERS.TXT").write_text("".join(rows))
    return folder


def mu_law(samples: Float64) -> bytes:
    """Return samples between -1 and 1 as 8-bit mu-law (ITU-T G.711)."""
    linear = np.round(np.clip(samples, -1, 1) * 32635).astype(np.int64)
    magnitude = np.minimum(np.abs(linear), 32635) + 132
    exponent = np.floor(np.log2(magnitude)).astype(np.int64) - 7
    mantissa = (magnitude >> (exponent + 3)) & 15
    sign = np.where(linear < 0, 128, 0)
    return bytes((~(sign | (exponent << 4) | mantissa) & 255).astype(np.uint8))


def sphere(
    path: Path,
    channels: Sequence[Float64],
    coding: str = "ulaw",
    rate: int = PHONE_RATE,
    declared: int | None = None,
    fields: str = "",
) -> Path:
    """Write a SPHERE file of mu-law samples, whose header tells of `declared` samples if given; return its path."""
    samples = np.stack(channels, axis=1).reshape(-1)
    header = (
        "NIST_1A\n   1024\n"
        f"conversation_id -s4 2001\nchannel_count -i {len(channels)}\nsample_rate -i {rate}\n"
        f"sample_count -i {len(channels[0]) if declared is None else declared}\nsample_n_bytes -i 1\n"
        f"sample_coding -s{len(coding)} {coding}\n{fields}end_head\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.encode().ljust(1024) + mu_law(samples))
    return path


Turns = list[tuple[str, float, float, list[str]]]
"""Side, start and end in seconds, words."""


def call(path: Path, rng: np.random.Generator, turns: int, coding: str = "ulaw") -> Turns:
    """Write a call of turns, A and B in turn, as two channels of a SPHERE file; return who says what, and when."""
    pieces: tuple[list[Float64], list[Float64]] = ([], [])
    told: Turns = []
    now = 0.0
    for number, words in enumerate(sentences(rng, turns, 3)):
        speech: npt.NDArray[np.float64] = say(words, rng)[::2]
        speech = speech[: len(speech) // 80 * 80]  # to hundredths of a second
        side = number % 2
        pieces[side].append(speech)
        pieces[1 - side].append(0.001 * rng.standard_normal(len(speech)))
        told.append(("AB"[side], now, now + len(speech) / PHONE_RATE, words))
        now += len(speech) / PHONE_RATE
    sphere(path, [np.concatenate(channel) for channel in pieces], coding)
    return told


SWB_DICTIONARY = """\
# a comment

[silence] sil
[noise] sil
yes y eh s
no n ow
go g ow
go_1 g ow
stay s t ey
st[ay]- s t
"""


def switchboard(folder: Path, calls: int = 6, turns: int = 16, seed: int = 0, hub5: bool = True) -> Path:
    """Write Switchboard-1 and Hub5-2000 in one folder, nested as the LDC does, with a segment of silence before every
    turn; return the folder."""
    rng = stream(seed, "switchboard")
    for number in range(2001, 2001 + calls):
        told = call(folder / "LDC97S62" / "swb1_d1" / "data" / f"sw0{number}.sph", rng, turns)
        text = folder / "swb_ms98_transcriptions" / f"{number}"[:2] / f"{number}"
        text.mkdir(parents=True)
        for side in "AB":
            lines, place = [], 1
            for who, start, end, words in told:
                spoken = " ".join(words).lower() if who == side else "[silence]"
                lines.append(f"sw{number}{side}-ms98-a-{place:04d} {start:.6f} {end:.6f} {spoken}\n")
                place += 1
            (text / f"sw{number}{side}-ms98-a-trans.text").write_text("".join(lines))
    (folder / "swb_ms98_transcriptions" / "sw-ms98-dict.text").write_text(SWB_DICTIONARY)
    (folder / "tables").mkdir()
    (folder / "tables" / "call_con_tab.csv").write_text('2001, "A", 1001, "7"\n2001, "B", 1002, "7"\n')
    (folder / "tables" / "caller_tab.csv").write_text('1001, 1, "N", "FEMALE", 1954\n1002, 2, "N", "MALE", 1960\n')
    if hub5:
        lines = [";; comment\n"]
        for name in ("sw_4390", "en_4156"):
            told = call(folder / "LDC2002S09" / "hub5e_00" / "english" / f"{name}.sph", rng, turns)
            for side, start, end, words in told:
                lines.append(f"{name} {side} {name}_{side} {start:.2f} {end:.2f} <O,{name[:2]},F,{name[:2]}-F> ")
                lines.append(f"{' '.join(words)} (ST-) (%HESITATION)\n" if side == "B" else f"{' '.join(words)}\n")
        lines.append("sw_4390 A sw_4390_A 0.0 0.5 <O,sw,F,sw-F> IGNORE_TIME_SEGMENT_IN_SCORING\n")
        reference = folder / "LDC2002T43" / "reference"
        reference.mkdir(parents=True)
        (reference / "hub5e00.english.000405.stm").write_text("".join(lines))
        (reference / "en20000405_hub5.glm").write_text(";; rules\n")
    return folder
