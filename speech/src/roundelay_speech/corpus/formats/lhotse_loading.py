"""Cuts whose samples are in no file as they are: mixed or padded, transformed when they are loaded (speed, rate,
volume), or written by a command. The package lhotse makes their samples, once for each supervision, into a file of the
prepared corpus, so that no later step needs it.

Legend: C channels of a cut, N samples of a supervision.
"""

import copy
import hashlib
import importlib.util
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.extras import load
from roundelay.core.files import atomic_write
from roundelay_speech.audio.reading import audio_length
from roundelay_speech.bindings import soundfile
from roundelay_speech.data.manifest import Utterance, problems_of
from roundelay_speech.data.problems import LeftOut, Unusable

_PLAIN = ("MonoCut", "MultiCut")
_SAID = 200  # characters of lhotse's own words that a message repeats


@dataclass(frozen=True)
class LhotseOptions:
    """Options of reading Lhotse's manifests."""

    folder: Path | None = None  # gets the audio that lhotse makes; None: cuts that need it are refused
    commands: bool = False  # whether recordings that are commands are run
    # of those that a supervision names, where it names several; None: such a supervision is refused.
    channel: int | None = None


FILES_ALONE = LhotseOptions()


def special(cut: Mapping[str, Any]) -> str | None:
    """Return a reason why the samples of a cut are not simply those of a file; None if they seem to be."""
    kind, recording = cut.get("type", "MonoCut"), cut.get("recording")
    if kind not in _PLAIN:
        return f"a {kind}"
    if not isinstance(recording, dict):
        return None
    name = recording.get("id")
    if recording.get("transforms"):
        return f"its recording {name} is to be transformed when it is read"
    others = [kind for kind in _kinds(recording) if kind != "file"]
    return f"its recording {name} is no file but a {others[0]}" if others else None


def one_channel(named: int | Sequence[int], wanted: int | None) -> int:
    """Return the channel of a supervision that names one or several.

    Raises:
        Unusable: the supervision names several channels, and none of them is wanted.
    """
    if isinstance(named, int):
        return named
    if len(named) == 1:
        return named[0]
    if wanted is None or wanted not in named:
        raise Unusable(
            f"spoken on several channels ({', '.join(map(str, named))}); only one is read, which `--channel N` names"
        )
    return wanted


def load_cut(
    at: str, cut: Mapping[str, Any], reason: str, root: Path, since: float, options: LhotseOptions
) -> tuple[list[Utterance], list[LeftOut]]:
    """Return the supervisions of a cut as utterances, each with a file of its own; and those that cannot be used.

    Args:
        at: FILE:LINE of the cut.
        cut: the cut's record in the manifest.
        reason: reason given by `special`.
        root: the folder where relative paths of recordings begin.
        since: time of change of the manifest: audio that is older is made again (s).
    """
    name = str(cut.get("id"))
    if (why := _refused(cut, options)) is not None:
        return [], [LeftOut(name, f"{name}: {at}: {reason}; {why}")]
    try:
        loaded = load("lhotse.serialization", "lhotse", "This").deserialize_item(
            copy.deepcopy(dict(cut))
        )  # it takes its argument apart
        loaded = loaded.with_recording_path_prefix(root.absolute())
        supervisions = [*loaded.supervisions]
    except Exception as error:  # of any kind: neither the record nor the code that reads it is ours
        return [], [LeftOut(name, f"{name}: {at}: lhotse cannot read it: {_short(error)}")]
    if not supervisions:
        return [], [LeftOut(name, f"{name}: {at}: no supervision, so no transcript")]
    found: list[Utterance] = []
    left_out: list[LeftOut] = []
    for one in supervisions:
        try:
            found.append(_utterance(cut, loaded, one, since, options))
        except Unusable as unusable:
            left_out.append(LeftOut(str(one.id), f"{one.id}: {at}: {unusable}"))
    return found, left_out


def _refused(cut: Mapping[str, Any], options: LhotseOptions) -> str | None:
    """Return a reason not to load a cut, with a remedy."""
    kinds = {*_kinds(cut)}
    if "command" in kinds and not options.commands:
        return "`--allow-pipes` runs it, if you trust it; or save the audio first"
    if others := kinds - {"file", "command"}:
        return f"a recording that is a {min(others)} must become a file first"
    if options.folder is None or importlib.util.find_spec("lhotse") is None:
        return (
            "the package lhotse makes its audio (pip install 'roundelay[lhotse]'); or save it first (`cut.save_audio`)"
        )
    return None


def _kinds(record: object) -> list[str]:
    """Return the kinds of all sources of audio in a record, at any depth."""
    if isinstance(record, list):
        return [kind for one in record for kind in _kinds(one)]
    if not isinstance(record, dict):
        return []
    own = record.get("sources")
    there = [str(one.get("type", "file")) for one in own if isinstance(one, dict)] if isinstance(own, list) else []
    return there + [
        kind for key, one in record.items() if key in ("tracks", "cut", "recording") for kind in _kinds(one)
    ]


def _utterance(
    cut: Mapping[str, Any], loaded: Any, supervision: Any, since: float, options: LhotseOptions
) -> Utterance:
    """Write a cut's samples as a WAV file, unless a newer one is there, and return their utterance."""
    text = " ".join((supervision.text or "").split())
    if not text:
        raise Unusable("empty transcript")
    row = _row(loaded, supervision, options)
    whole = json.dumps([cut, supervision.id, row], sort_keys=True)
    digest = hashlib.blake2b(whole.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    assert options.folder is not None
    path = options.folder.absolute() / f"{re.sub(r'[^A-Za-z0-9._-]', '_', supervision.id)[:100]}.{digest}.wav"
    if not (path.is_file() and path.stat().st_mtime >= since):
        samples = _samples(loaded, supervision)[row]
        with atomic_write(path) as file:
            soundfile.write(file, samples, int(loaded.sampling_rate), format="WAV", subtype="FLOAT")
    rate, samples = audio_length(path)
    made = Utterance(
        id=supervision.id,
        recording_id=supervision.id,
        path=str(path),
        start=0.0,
        duration=samples / rate,
        channel=0,
        sampling_rate=rate,
        num_samples=samples,
        speaker=supervision.speaker or supervision.recording_id,
        text=text,
        gender=supervision.gender,
        language=supervision.language,
    )
    if problems := problems_of(made):
        raise Unusable("; ".join(problems))
    return made


def _row(loaded: Any, supervision: Any, options: LhotseOptions) -> int:
    """Return the row of a cut's samples with the supervision's channel; cuts of one channel have one row."""
    channels = getattr(loaded, "channel", None)
    if not isinstance(channels, list):
        return 0
    named = one_channel(supervision.channel, options.channel)
    if named not in channels:
        raise Unusable(f"its cut has no channel {named}")
    return sorted(channels).index(named)


def _samples(loaded: Any, supervision: Any) -> npt.NDArray[np.float32]:
    """Return samples (C, N) of the part of a cut that a supervision covers."""
    start, end = max(0.0, supervision.start), min(loaded.duration, supervision.end)
    if not start < end:
        raise Unusable(
            f"from {supervision.start:g} to {supervision.end:g} s is not in its cut of {loaded.duration:g} s"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on its speed, one for each supervision
            samples = loaded.truncate(offset=start, duration=end - start).load_audio()
    except Exception as error:
        raise Unusable(f"lhotse cannot make its audio: {_short(error)}") from None
    found = np.atleast_2d(np.asarray(samples, np.float32))
    if not found.size or not np.isfinite(found).all():
        raise Unusable("lhotse makes no samples of it, or some that are not finite")
    return found


def _short(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said[:_SAID] + " ..." * (len(said) > _SAID)
