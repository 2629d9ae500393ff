"""Features of a whole corpus: computed once, kept in one array (see store).

The features of one utterance are those of parts; an interrupted run has left those of partial.

Legend: T frames of all utterances together, F features.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from roundelay.core.checksums import write_checked
from roundelay.core.configure import plain
from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent, mention, tracked
from roundelay_speech.audio.reading import AudioError, audio_path, bad_audio, read_audio
from roundelay_speech.data.arrays import Float32
from roundelay_speech.data.manifest import Utterance, repeated
from roundelay_speech.data.problems import BadPolicy, LeftOut, listing
from roundelay_speech.data.processes import batched, start_workers
from roundelay_speech.features.fbank import FbankConfig
from roundelay_speech.features.partial import Partial
from roundelay_speech.features.parts import ExternalError, FeatureConfig, Sources, features_of, only_fbank, stored_parts
from roundelay_speech.features.store import (
    FEATURES,
    INDEX,
    SPEAKER_STATISTICS,
    STORE_VERSION,
    FeatureStore,
    SpeakerStats,
    SpeakerSums,
    file_state,
    whole_store,
    write_speakers,
)

# A worker process takes about two seconds to import torch; below this much audio one process is done sooner.
_SECONDS_WORTH_A_PROCESS = 2 * 3600.0
HOURS_A_SECOND = 0.8
"""Hours of audio for which a core computes filterbanks in a second, about (benchmarks/features.py)."""
SERIAL_SECONDS = 0.11
"""Seconds of one process at the end for an hour of audio: statistics of speakers, and the checksum of the array."""
WORTH_SAYING_MINUTES = 2.0
WORTH_SAYING_BYTES = 1 << 30
_SECONDS_AT_ONCE = 120.0  # of audio; a worker's portion, and the most that an interrupted run has to compute again


_Found = list[tuple[Float32 | None, str]]
"""Features, or None and the reason; an exception would end the pool's map."""


def _with_one_thread(sources: Sources) -> Sources:
    torch.set_num_threads(1)
    return sources


def _some(sources: Sources, utterances: Sequence[Utterance]) -> _Found:
    return [_one(utterance, sources) for utterance in utterances]


def _one(utterance: Utterance, sources: Sources) -> tuple[Float32 | None, str]:
    try:
        return features_of(utterance, sources), ""
    except (AudioError, ExternalError) as error:
        return None, str(error)


@contextmanager
def _mapper(workers: int, sources: Sources) -> Iterator[Callable[[Iterable[Sequence[Utterance]]], Iterator[_Found]]]:
    """Provide a function that maps batches in order, in this process or in several."""
    if workers <= 1:
        # One thread: the pieces are small, and two threads waiting for each other on busy cores took 15 times as long.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            # Utterance by utterance, so that each is safe as soon as it is there.
            yield lambda batches: ([_one(u, sources)] for batch in batches for u in batch)
        finally:
            torch.set_num_threads(threads)
        return
    with start_workers(workers, _with_one_thread, sources) as running:
        yield lambda batches: running.in_order(_some, batches)


def _workers(utterances: Sequence[Utterance], workers: int | None) -> int:
    if workers is not None:
        return workers
    seconds = sum(u.duration for u in utterances)
    return max(1, min(cores(), int(seconds / _SECONDS_WORTH_A_PROCESS)))


# All of them ----------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class AudioFolder:
    """The folder and sampling rate of utterances' audio."""

    path: Path = Path()  # the folder that relative paths of utterances begin at
    rate: int | None = None  # to resample all audio to, in Hz; None: all has one rate


HERE = AudioFolder()


def compute_features(
    utterances: Sequence[Utterance],
    folder: Path,
    config: FeatureConfig | FbankConfig,
    progress: Progress,
    *,
    audio: AudioFolder = HERE,
    workers: int | None = None,
    on_bad: BadPolicy = "error",
) -> tuple[FeatureStore, list[LeftOut]]:
    """Compute the features of all utterances into `folder`, in their order, unless they are there already.

    They are there if the store is complete and was made from the same utterances, the same files (by size and time of
    change) and the same configuration, under a policy that would have left out the same utterances. Utterances that an
    interrupted run has finished are not computed again, unless their files have changed.

    Args:
        utterances: utterances of all splits, all at one sampling rate unless `audio` names one.
        folder: folder of the store.
        config: the parts of features; a FbankConfig alone is one filterbank.
        progress: advances with every utterance.
        workers: number of processes; None: chosen by the amount of work.
        on_bad: `error`, or `skip` utterances that cannot be read, are shorter than a frame, give NaN or lack a part.

    Returns:
        The store, and the utterances left out (under `skip`) with the reason.

    Raises:
        UserError: repeated ids, several sampling rates, a full disk; under `error` any bad utterance (all are listed);
            under `skip` when nothing is left. Earlier files in the folder stay.
    """
    config = only_fbank(config) if isinstance(config, FbankConfig) else config
    audio_folder, rate = audio.path, _sampling_rate(utterances, audio.rate)
    keys = _keys(utterances, audio_folder, config, rate)
    fingerprint = _digest([f"{u.id} {keys[u.id]}" for u in utterances])
    if (done := whole_store(folder, fingerprint)) is not None and not (done[1] and on_bad == "error"):
        return done
    sources = Sources.of(audio_folder, config, rate)
    if on_bad == "error":
        _refuse_missing(utterances, audio_folder, config)
    with Partial.opened(folder) as partial:
        _compute(partial, utterances, keys, sources, workers, progress)
        kept, left_out = _sound(partial, utterances, on_bad)
        speakers = _finish(partial, kept, config, sources, progress)
    index = {
        "version": STORE_VERSION,
        "fingerprint": fingerprint,
        **_framing(config, rate),
        "parts": [dataclasses.asdict(part) for part in stored_parts(sources, kept[0])],
        "utterances": [u.id for u in kept],
        "frames": [partial.entries[u.id].frames for u in kept],
        "speakers": speakers.indices(kept),
        "left_out": [dataclasses.asdict(one) for one in left_out],
    }
    write_checked(folder / INDEX, index, [FEATURES, SPEAKER_STATISTICS], one_line=True)
    partial.discard()
    return FeatureStore.open(folder), left_out


def _framing(config: FeatureConfig, rate: int) -> dict[str, Any]:
    """Return the fields of the index on the framing: times in seconds, the rate in Hz."""
    return {
        "sampling_rate": rate,
        "frame_shift": config.frames.frame_shift(rate) / rate,
        "frame_length": config.frames.frame_length(rate) / rate,
        "config": plain(config),
    }


def _compute(
    partial: Partial,
    utterances: Sequence[Utterance],
    keys: Mapping[str, str],
    sources: Sources,
    workers: int | None,
    progress: Progress,
) -> None:
    """Put the features of all utterances, or the reasons why there are none, into `partial`; go on where it stands."""
    if partial.size > WORTH_SAYING_BYTES:
        mention(progress, f"reading {partial.size / 1e9:,.1f} GB of features that are there")
    partial.keep(keys)
    waiting = [u for u in utterances if u.id not in partial.entries]
    if forecast := _forecast(waiting, _workers(waiting, workers), len(utterances)):
        mention(progress, forecast)
    progress.start("computing features", len(utterances))
    progress.advance(len(utterances) - len(waiting))
    try:
        with _mapper(_workers(waiting, workers), sources) as run:
            rest = iter(waiting)
            for found in run(batched(waiting, _SECONDS_AT_ONCE, lambda u: u.duration)):
                for features, reason in found:
                    utterance = next(rest)
                    partial.add(utterance.id, keys[utterance.id], features, reason)
                    progress.advance()
                partial.flush()
    finally:
        progress.finish()


def _forecast(waiting: Sequence[Utterance], workers: int, utterances: int) -> str:
    """Return words on the hours of audio to compute, and roughly how long that takes; "" if it takes little."""
    hours = sum(u.duration / u.speed for u in waiting) / 3600
    minutes = hours * (1 / HOURS_A_SECOND / workers + SERIAL_SECONDS) / 60
    if minutes < WORTH_SAYING_MINUTES:
        return ""
    took = f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"
    done = f"features of {utterances - len(waiting):,} utterances are there; " if len(waiting) < utterances else ""
    return (
        f"{done}{hours:,.1f} hours of audio by {workers} process{'es' * (workers > 1)} will take roughly {took}; "
        "finished features stay if this is interrupted"
    )


def _sound(
    partial: Partial, utterances: Sequence[Utterance], on_bad: BadPolicy
) -> tuple[list[Utterance], list[LeftOut]]:
    """Return utterances that have features, and those that have none, with reasons.

    Raises:
        UserError: utterances lack features and may not, or none are left; or not all have equally many features.
    """
    left_out = [LeftOut(u.id, reason) for u in utterances if (reason := partial.entries[u.id].reason)]
    kept = [u for u in utterances if not partial.entries[u.id].reason]
    if left_out and (on_bad == "error" or not kept):
        raise bad_audio(left_out, len(utterances))
    widths = {partial.entries[u.id].width: u.id for u in reversed(kept)}
    if len(widths) > 1:
        odd = [f"{width} features, first in {name}" for width, name in widths.items()]
        raise UserError(f"All utterances must have as many features:\n{listing(odd)}")
    return kept, left_out


def _finish(
    partial: Partial, kept: Sequence[Utterance], config: FeatureConfig, sources: Sources, progress: Progress
) -> SpeakerStats:
    """Make the array and the speakers' statistics from the computed parts; an old store is invalid from here on."""
    width = partial.entries[kept[0].id].width
    sums = SpeakerSums()
    told = progress if partial.size > WORTH_SAYING_BYTES else Silent()
    for u in tracked(told, "statistics of speakers, then a checksum", kept):
        sums.add(u.speaker, partial.features(u.id))
    speakers = sums.finish(stored_parts(sources, kept[0]))
    partial.become(partial.folder / FEATURES, [u.id for u in kept], width)
    write_speakers(partial.folder / SPEAKER_STATISTICS, speakers)
    return speakers


def _sampling_rate(utterances: Sequence[Utterance], wanted: int | None) -> int:
    """Return the wanted sampling rate, or else that of all utterances, after a check that their ids differ."""
    if not utterances:
        raise UserError("There are no utterances to compute features of.")
    if again := repeated(u.id for u in utterances):
        raise UserError(f"{len(again)} utterance ids occur more than once; rename the utterances:\n{listing(again)}")
    if wanted is not None:
        return wanted
    rates: dict[int, str] = {}
    for u in utterances:
        rates.setdefault(u.sampling_rate, u.id)
    if len(rates) > 1:
        found = [f"{rate} Hz, first in {first}" for rate, first in rates.items()]
        raise UserError(
            f"All audio of a corpus must have one sampling rate; resample some (`--rate`):\n{listing(found)}"
        )
    return utterances[0].sampling_rate


def _digest(values: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def _keys(utterances: Sequence[Utterance], audio_folder: Path, config: FeatureConfig, rate: int) -> dict[str, str]:
    """Return, by utterance id, a key that changes with the utterance, the files it is made from, and the
    configuration."""
    external = [[str(part.source), *file_state(part.source)] for part in config.externals]
    common = _digest([STORE_VERSION, plain(config), external])
    files: dict[str, tuple[int, int]] = {}
    keys = {}
    for u in utterances:
        if u.path not in files:
            files[u.path] = file_state(audio_path(u, audio_folder)) if config.filterbanks else (0, 0)
        place = [u.path, *files[u.path], u.start, u.num_samples, u.channel, u.sampling_rate, u.speaker, u.speed]
        if u.sampling_rate != rate:
            place.append(rate)
        if u.warp != 1:
            place.append(f"warp {u.warp}")
        if u.distortion:
            place.append(f"distortion {u.distortion} {u.id}")
        keys[u.id] = _digest([common, *place])
    return keys


def _refuse_missing(utterances: Sequence[Utterance], audio_folder: Path, config: FeatureConfig) -> None:
    """Raise a UserError for missing files, before features are computed for an hour in vain."""
    if not config.filterbanks:
        return
    absent: list[LeftOut] = []
    for u in utterances:
        if not audio_path(u, audio_folder).is_file():
            try:
                read_audio(u, audio_folder)
            except AudioError as error:
                absent.append(LeftOut(u.id, str(error)))
    if absent:
        raise bad_audio(absent, len(utterances))
