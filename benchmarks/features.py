"""Amount of audio that a core turns into features in a second: `python benchmarks/features.py`.

Writes a corpus of WAV files, computes its features as `roundelay prepare` does (reading, filterbank, statistics, the
array on disk) in one process and in one for each core, and prints hours of audio per second, of the clock and of the
processor, per core. Best and median of some repetitions: other work on the machine can only slow it down.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
import torch

from roundelay.core.cores import cores
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.compute import AudioFolder, compute_features
from roundelay_speech.features.fbank import FbankConfig, fbank

GOAL = 0.8  # hours of audio per second and core


def corpus(folder: Path, hours: float, seconds: float, rate: int, form: str) -> list[Utterance]:
    """Write WAV files of noise of slowly changing loudness, 16 bits; return their utterances."""
    rng = stream(0, "noise")
    samples = round(seconds * rate)
    loudness = 0.1 + 0.1 * np.sin(np.arange(samples) * (2 * np.pi * 3 / rate))
    noise = (rng.standard_normal(samples) * loudness).clip(-1, 1)
    found = []
    for number in range(round(hours * 3600 / seconds)):
        name = f"s{number % 20}-{number}"
        soundfile.write(folder / f"{name}.{form}", np.roll(noise, 17 * number), rate, subtype="PCM_16")
        found.append(
            Utterance(
                name, name, f"{name}.{form}", 0.0, samples / rate, 0, rate, samples, name.split("-", maxsplit=1)[0], "A"
            )
        )
    return found


def measured(utterances: list[Utterance], folder: Path, workers: int) -> tuple[float, float]:
    """Return the seconds on the clock, and of this process's processor time, that making a feature store takes."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        clock, processor = time.perf_counter(), time.process_time()
        compute_features(utterances, Path(out), FbankConfig(), Silent(), audio=AudioFolder(folder), workers=workers)
        return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    """Measure feature extraction in one process and on every core, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=12.0, help="of an utterance")
    parser.add_argument("--rate", type=int, default=16000)
    parser.add_argument("--form", choices=["wav", "flac"], default="wav")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        utterances = corpus(folder, options.hours, options.seconds, options.rate, options.form)
        hours = sum(u.duration for u in utterances) / 3600
        print(f"{hours:.2f} h, {len(utterances)} utterances, {options.rate} Hz, {options.form}, {os.cpu_count()} cores")
        torch.set_num_threads(1)
        wave = torch.from_numpy(soundfile.read(folder / utterances[0].path, dtype="float32")[0])
        fbank(wave, options.rate)
        times = []
        for _ in range(options.repetitions):
            start = time.process_time()
            for _ in range(50):
                fbank(wave, options.rate)
            times.append((time.process_time() - start) / 50)
        report("filterbank alone, 1 core", [options.seconds / 3600 / t for t in times])
        runs = [measured(utterances, folder, 1) for _ in range(options.repetitions)]
        report("all of it, 1 process, clock", [hours / clock for clock, _ in runs])
        report("all of it, 1 process, processor", [hours / processor for _, processor in runs])
        clocks = [measured(utterances, folder, cores())[0] for _ in range(options.repetitions)]
        report(f"all of it, {cores()} processes, clock, per core", [hours / clock / cores() for clock in clocks])


def report(what: str, rates: list[float]) -> None:
    """Print one line: best and median of `rates`, and the ratio of the best to the goal."""
    best = max(rates)
    print(f"{what}: {best:.2f} h/s (median {statistics.median(rates):.2f}), {best / GOAL:.2f} x the goal of {GOAL} h/s")


if __name__ == "__main__":
    main()
