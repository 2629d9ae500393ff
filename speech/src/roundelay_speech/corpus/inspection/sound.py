"""The sound of every utterance, measured by several processes: level, clipping, seconds of speech, a digest."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.cores import cores
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import AudioError, read_audio
from roundelay_speech.corpus.checks import shared_audio
from roundelay_speech.corpus.inspection.findings import Finding, Severity
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted, listing, named
from roundelay_speech.data.processes import start_workers
from roundelay_speech.prepared import TRAIN

SILENT_DB = -60.0  # dB of full scale; quiet speech at a distance has -45
_BLOCK_S = 0.02
_BELOW_LOUD_DB = 30.0  # speech is no further below the loud parts of its utterance; pauses in a quiet room are
_AT_TOP = 0.9999  # of the largest sample
_RUN, _RUNS = 3, 3  # samples at the top in a row, and how often: speech meets its own maximum once
_CLIPPED_SHARE = 1e-4
_MANY = 0.01  # clipped utterances of a split
_SECONDS_WORTH_A_PROCESS = 1800.0
_BATCH = 64


@dataclass(frozen=True)
class SoundFacts:
    """Measurements of one utterance."""

    loud_db: float = SILENT_DB * 2  # level of its loud parts (95 of 100 blocks are below), in dB of full scale
    speech_s: float = 0.0  # seconds within 30 dB of that; 0 if the utterance is silent
    clipped: float = 0.0  # share of samples in runs at the largest value
    digest: str = ""  # of its samples: equal for equal audio in any file
    fault: str = ""  # a sentence if the audio cannot be read; the rest is then 0

    @property
    def silent(self) -> bool:
        """True if the utterance has nothing that could be speech."""
        return not self.fault and self.loud_db < SILENT_DB


def measure(samples: Samples, rate: int) -> SoundFacts:
    """Measure samples, (N,) between -1 and 1, at `rate` Hz."""
    digest = hashlib.sha256(np.ascontiguousarray(samples).tobytes()).hexdigest()[:32]
    width = max(1, round(_BLOCK_S * rate))
    blocks = samples[: len(samples) // width * width].reshape(-1, width) if len(samples) >= width else samples[None]
    power = np.mean(np.square(blocks.astype(np.float64)), axis=1)
    levels = 10 * np.log10(np.maximum(power, 1e-12))
    loud = float(np.percentile(levels, 95))
    speech = 0.0 if loud < SILENT_DB else float(np.sum(levels > loud - _BELOW_LOUD_DB)) * _BLOCK_S
    return SoundFacts(loud, speech, _clipped(samples), digest)


def _clipped(samples: Samples) -> float:
    """Return the share of samples in runs of three and more at the largest or the smallest value."""
    caught = 0
    for signed in (samples, -samples):
        top = float(signed.max())
        if top < 0.05:
            continue
        at_top = np.concatenate(([False], signed >= _AT_TOP * top, [False])).astype(np.int8)
        edges = np.flatnonzero(np.diff(at_top))
        lengths: npt.NDArray[np.int64] = edges[1::2] - edges[::2]
        runs = lengths[lengths >= _RUN]
        caught += int(runs.sum()) if len(runs) >= _RUNS else 0
    return caught / len(samples)


def measure_all(
    splits: Mapping[str, Sequence[Utterance]], root: Path, progress: Progress, workers: int | None = None
) -> dict[str, dict[str, SoundFacts]]:
    """Measure the sound of every utterance; return the facts by split and id.

    Args:
        root: the folder where relative paths begin.
        workers: number of processes; None: chosen by the amount of work.
    """
    every = list(chain.from_iterable(splits.values()))
    batches = [every[at : at + _BATCH] for at in range(0, len(every), _BATCH)]
    if workers is None:
        workers = max(1, min(cores(), int(sum(u.duration for u in every) / _SECONDS_WORTH_A_PROCESS)))
    progress.start("listening", len(every))
    found: list[SoundFacts] = []
    try:
        for some in _measured(batches, root, workers):
            found += some
            progress.advance(len(some))
    finally:
        progress.finish()
    sounds = iter(found)
    return {split: {u.id: next(sounds) for u in some} for split, some in splits.items()}


def _measured(batches: Sequence[Sequence[Utterance]], root: Path, workers: int) -> Iterator[list[SoundFacts]]:
    jobs = [(batch, root) for batch in batches]
    if workers == 1:
        yield from map(_of_batch, jobs)
        return
    with start_workers(workers) as running:
        yield from running.in_order(_of_batch, jobs)


def _of_batch(job: tuple[Sequence[Utterance], Path]) -> list[SoundFacts]:
    utterances, root = job
    found = []
    for u in utterances:
        try:
            found.append(measure(read_audio(u, root), u.sampling_rate))
        except AudioError as error:
            found.append(SoundFacts(fault=str(error)))
    return found


def sound_findings(
    splits: Mapping[str, Sequence[Utterance]], sounds: Mapping[str, Mapping[str, SoundFacts]]
) -> list[Finding]:
    """Return findings on audio that cannot be read, silence, clipping, and audio that occurs twice."""
    found: list[Finding] = []
    for split, some in sounds.items():
        of = counted(len(some), "utterance")
        if faulty := {name: sound.fault for name, sound in some.items() if sound.fault}:
            what = f"{split}: the audio of {len(faulty)} of {of} cannot be read:\n{listing(list(faulty.values()))}"
            mend = "Get these files again, or leave them out: `roundelay prepare ... --on-bad-audio skip`."
            found.append(Finding("unusable", "error", split, what, mend, tuple(faulty)))
        if silent := [name for name, sound in some.items() if sound.silent]:
            what = f"{split}: {len(silent)} of {of} silent ({named(silent)})"
            mend = (
                "Record them again, or delete them from `text`; where recordings have two channels, try the other "
                "(`--channel 1`)."
            )
            found.append(Finding("silent", "warning", split, what, mend, tuple(silent)))
        if cut := [name for name, sound in some.items() if sound.clipped > _CLIPPED_SHARE]:
            what = f"{split}: {len(cut)} of {of} clipped: their loud parts are cut off at the top ({named(cut)})"
            mend = "Record with less gain; clipped samples cannot be restored, and a few such do little harm."
            grave: Severity = "warning" if len(cut) > _MANY * len(some) else "note"
            found.append(Finding("clipping", grave, split, what, mend, tuple(cut)))
        found += _twice(split, splits[split], some)
    if TRAIN in sounds:
        heard = {sound.digest: name for name, sound in sounds[TRAIN].items() if not sound.silent and sound.digest}
        for split in (name for name in sounds if name != TRAIN):
            pairs = [(name, heard[s.digest]) for name, s in sounds[split].items() if s.digest in heard]
            mend = "Delete them from one of the two splits; `roundelay prepare ... --on-overlap error` stops at them."
            ids = tuple(one for one, _ in pairs)
            found += [Finding("audio", "warning", split, what, mend, ids) for what in shared_audio(split, pairs)]
    return found


def _twice(split: str, utterances: Sequence[Utterance], sounds: Mapping[str, SoundFacts]) -> list[Finding]:
    """Return a finding on utterances of one split with equal audio, with equal or different words."""
    same: dict[str, list[Utterance]] = defaultdict(list)
    for u in utterances:
        if (sound := sounds[u.id]).digest and not sound.silent:
            same[sound.digest].append(u)
    groups = [group for group in same.values() if len(group) > 1]
    if not groups:
        return []
    odd = sum(len({u.text for u in group}) > 1 for group in groups)
    pairs = [f"{group[0].id} and {group[1].id}" for group in groups]
    what = f"{split}: the same audio is there more than once, {counted(len(groups), 'time')} ({named(pairs)})"
    if odd:
        what += f", {counted(odd, 'time')} with other words: one of the transcripts is wrong"
    ids = tuple(u.id for group in groups for u in group)
    return [Finding("audio", "warning", split, what, "Delete all but one of each, the one with the right words.", ids)]
