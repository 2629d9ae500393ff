"""Warnings about a corpus in which nothing is broken: rates, channels, leaks, spelling.

Utterances left out of a corpus, by split, and the share of a split that may be.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.audio.reading import AudioError, channel_levels
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import NAMES_SHOWN, BadPolicy, LeftOut, counted, listing, named
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.lexicon.lexicon import STRESSED, Lexicon, MissingWord, NearWords, bare
from roundelay_speech.lexicon.marks import is_mark
from roundelay_speech.prepared import TRAIN


def note_left_out(
    problems: Sequence[LeftOut], gone: dict[str, list[LeftOut]], splits: Mapping[str, Sequence[Utterance]]
) -> None:
    """Note each utterance left out under its split, in `gone`."""
    split_of = {u.id: name for name, utterances in splits.items() for u in utterances} if problems else {}
    for one in problems:
        gone[split_of[one.id]].append(one)


def check_shares(gone: Mapping[str, Sequence[LeftOut]], kept: Mapping[str, Sequence[Utterance]], most: float) -> None:
    """Raise a UserError if more than the share `most` of a split is left out."""
    if not 0 <= most <= 1:
        raise UserError(f"--max-bad-share {most:g}: a share is between 0 and 1; 0.1 is a tenth.")
    for split, problems in gone.items():
        total = len(problems) + len(kept[split])
        if len(problems) > most * total:
            raise UserError(
                f"{len(problems)} of {counted(total, 'utterance')} of `{split}` would be left out, more than the share "
                f"of {most:g} that may be (`--max-bad-share`). Is something wrong with all of them?\n"
                f"{listing([one.reason for one in problems])}"
            )


_SILENT_DB = 30.0  # a channel this much below another is taken to be empty; across a table it is 10 to 20
_SHOWN = 8
_BEYOND_SPEECH = 32_000  # Hz; a fifth and more of the bands of such audio lie above 8,000 Hz, where speech has little
_STRESSED_PHONES = 20  # of CMU's 45; with fewer they were chosen by hand


# sampling rates -------------------------------------------------------------------------------------------------------


def one_rate(
    splits: Mapping[str, Sequence[Utterance]], wanted: int | None, on_bad: BadPolicy
) -> tuple[int, dict[str, list[Utterance]], list[LeftOut], list[str]]:
    """Choose the sampling rate of a corpus: the one that is wanted, or that of most training utterances.

    Returns:
        The rate in Hz, the utterances of this rate or to be resampled to it, those left out (under `skip`, unless a
        rate is wanted), and remarks on resampled ones.

    Raises:
        UserError: there are several rates, under `error`; says how many utterances of which split have which.
    """
    rates = {split: Counter(u.sampling_rate for u in some) for split, some in splits.items()}
    kept = {split: list(some) for split, some in splits.items()}
    if wanted is not None:
        if not 1000 <= wanted <= 1_000_000:
            raise UserError(f"--rate {wanted}: give a sampling rate in Hz, 16000 for example.")
        return wanted, kept, [], _resampling(rates, wanted)
    # Of several rates equally frequent the lowest: nothing has to be invented then.
    most = "train" if TRAIN in rates else "the others"
    deciding = rates[TRAIN] if TRAIN in rates else sum(rates.values(), Counter[int]())
    rate = min(deciding.items(), key=lambda item: (-item[1], item[0]))[0]
    off = [u for some in splits.values() for u in some if u.sampling_rate != rate]
    beyond = []
    if rate >= _BEYOND_SPEECH:
        beyond.append(
            f"audio at {rate:,} Hz: a model hears bands up to {rate // 2:,} Hz, which other recordings may lack; "
            "`--rate 16000` leaves out what is above 8,000 Hz"
        )
    if not off:
        return rate, kept, [], beyond
    told = "; ".join(
        f"{split}: " + ", ".join(f"{counted(n, 'utterance')} at {r:,} Hz" for r, n in found.most_common())
        for split, found in rates.items()
    )
    if on_bad == "error":
        first = [f"{u.id}: {u.path}: {u.sampling_rate:,} Hz" for u in off]
        raise UserError(
            f"The audio of a corpus must be at one sampling rate, and there are several ({told}). Have it resampled as "
            f"it is read with `--rate {rate}`, or leave out what is not at {rate:,} Hz (`--on-bad-audio skip`):\n"
            f"{listing(first, shown=NAMES_SHOWN)}"
        )
    left_out = [
        LeftOut(
            u.id,
            f"{u.id}: {u.path}: sampled at {u.sampling_rate} Hz, most of {most} at {rate} Hz; see `--rate`",
        )
        for u in off
    ]
    return rate, {split: [u for u in us if u.sampling_rate == rate] for split, us in kept.items()}, left_out, beyond


def _resampling(rates: Mapping[str, Counter[int]], wanted: int) -> list[str]:
    together: Counter[int] = Counter()
    for found in rates.values():
        together.update(found)
    remarks = []
    for rate, number in sorted(together.items()):
        if rate < wanted:
            remarks.append(
                f"{counted(number, 'utterance')} at {rate:,} Hz brought up to {wanted:,} Hz: nothing is in them above "
                f"{rate // 2:,} Hz, which a model hears"
            )
    if mixed := [split for split, found in rates.items() if len({rate < wanted for rate in found}) > 1]:
        remarks.append(f"{', '.join(mixed)}: some audio was brought up to {wanted:,} Hz and some was not")
    return remarks


# channels -------------------------------------------------------------------------------------------------------------


def channel_remarks(utterances: Sequence[Utterance], channels: Mapping[str, int], root: Path, name: str) -> list[str]:
    """Return remarks on utterances whose recording has several channels, if no option chose one.

    Args:
        channels: utterance id -> number of channels of its recording.
        root: the folder where relative paths begin.
        name: name of the data directory.
    """
    several = [u for u in utterances if channels.get(u.id, 1) > 1]
    if not several:
        return []
    taken = several[0].channel
    remarks = [
        f"{name}: {counted(len(several), 'utterance')} in recordings of {max(channels[u.id] for u in several)} "
        f"channels (first {several[0].id}): channel {taken} of each is taken, counted from 0; "
        "`--channel N` takes another, and `segments` may name one for each"
    ]
    silent: dict[int, list[str]] = {}
    for u in several:
        try:
            levels = channel_levels(u, root)
        except AudioError:
            continue  # said with all other audio that cannot be read
        loudest = int(np.argmax(levels))
        if levels[u.channel] < levels[loudest] * 10 ** (-_SILENT_DB / 20):
            silent.setdefault(loudest, []).append(u.id)
    remarks += [
        f"{name}: channel {taken} of {counted(len(found), 'utterance')} is silent, or {_SILENT_DB:g} dB and more below "
        f"channel {loudest} (first {found[0]}). Is the speech on the other? `--channel {loudest}` takes it"
        for loudest, found in silent.items()
    ]
    return remarks


# overlap of training and test sets ------------------------------------------------------------------------------------


def overlaps(splits: Mapping[str, Sequence[Utterance]], store: FeatureStore) -> list[str]:
    """Return remarks on speakers, and recordings (by features), that are in the training split and in another."""
    remarks = shared_speakers(splits)
    heard = _sketches([u for u in splits[TRAIN] if not u.copied], store)
    for split, utterances in splits.items():
        if split == TRAIN:
            continue
        twice = [(u.id, other) for u in utterances if (other := _same(u.id, heard, store)) is not None]
        remarks += shared_audio(split, twice)
    return remarks


def shared_speakers(splits: Mapping[str, Sequence[Utterance]]) -> list[str]:
    """Return remarks on speakers of the training split who are in another split."""
    remarks = []
    speakers = {u.speaker for u in splits[TRAIN] if not u.copied}
    for split, utterances in splits.items():
        if split != TRAIN and (both := sorted(speakers & {u.speaker for u in utterances})):
            of = len({u.speaker for u in utterances})
            remarks.append(
                f"{len(both)} of {counted(of, 'speaker')} of {split} {'is' if len(both) == 1 else 'are'} in train too "
                f"({named(both)}): its error rates are not those of people who were never heard"
            )
    return remarks


def unknown_genders(splits: Mapping[str, Sequence[Utterance]]) -> list[str]:
    """Return a remark on speakers whose gender is unknown while that of others is known, or is neither f nor m."""
    genders = {u.speaker: u.gender for some in splits.values() for u in some if not u.copied}
    unknown = [speaker for speaker, gender in genders.items() if (gender or "")[:1].lower() not in ("f", "m")]
    if not unknown or not any(genders.values()):
        return []
    return [
        f"whether {len(unknown)} of {counted(len(genders), 'speaker')} are women or men is not known "
        f"({named(unknown)}): `spk2gender` says it by a line `SPEAKER f` or `SPEAKER m`"
    ]


def shared_audio(split: str, twice: Sequence[tuple[str, str]]) -> list[str]:
    """Return a remark on utterances of a split that are in the training split too: pairs of ids, here and there."""
    if not twice:
        return []
    pairs = named([f"{one} is {other}" for one, other in twice])
    return [
        f"{counted(len(twice), 'utterance')} of {split} {'is' if len(twice) == 1 else 'are'} also in train, "
        f"the same audio under {'another id' if len(twice) == 1 else 'other ids'} ({pairs}): "
        "it is tested on its training speech"
    ]


def _sketch(name: str, store: FeatureStore) -> tuple[int, bytes]:
    """Return the length and middle frame of an utterance: equal for equal audio, and seldom otherwise."""
    features = store.get(name)
    return len(features), features[len(features) // 2].tobytes()


def _sketches(utterances: Sequence[Utterance], store: FeatureStore) -> dict[tuple[int, bytes], list[str]]:
    found: dict[tuple[int, bytes], list[str]] = {}
    for u in utterances:
        found.setdefault(_sketch(u.id, store), []).append(u.id)
    return found


def _same(name: str, heard: Mapping[tuple[int, bytes], Sequence[str]], store: FeatureStore) -> str | None:
    own = store.get(name)
    return next((other for other in heard.get(_sketch(name, store), ()) if np.array_equal(own, store.get(other))), None)


# silence --------------------------------------------------------------------------------------------------------------


WITHOUT_SOUND = "without any sound, every sample is the same"


def silent_remarks(splits: Mapping[str, Sequence[Utterance]], store: FeatureStore) -> list[str]:
    """Return remarks on utterances without any sound: all of their frames are equal, as for samples that are all 0."""
    remarks = []
    for split, utterances in splits.items():
        silent = [u for u in utterances if not u.copied and _is_constant(store.get(u.id))]
        if silent:
            shown = named([f"{u.id} ({u.path})" for u in silent])
            remarks.append(f"{counted(len(silent), 'utterance')} of {split} {WITHOUT_SOUND}: {shown}")
    return remarks


def _is_constant(features: npt.NDArray[np.float32]) -> bool:
    ends = features[[0, len(features) // 2, -1]]
    return len(features) > 1 and bool((ends == ends[0]).all()) and bool((features == features[0]).all())


# transcripts and dictionary -------------------------------------------------------------------------------------------


def stress_remark(lexicon: Lexicon) -> list[str]:
    """Return a remark on a dictionary that distinguishes vowels by stress, as CMU's does: a small corpus has too little
    speech for each of its 69 phones."""
    stressed = sorted(phone for phone in lexicon.phones if STRESSED.match(phone))
    if len(stressed) < _STRESSED_PHONES:
        return []
    return [
        f"{len(stressed)} of the dictionary's {len(lexicon.phones)} phones are vowels with marks of stress "
        f"({', '.join(stressed[:3])}, ...): `--strip-stress` makes one phone of each vowel, with more speech"
    ]


def spelling_remark(missing: Sequence[MissingWord], lexicon: Lexicon) -> list[str]:
    """Return remarks on missing words that the lexicon has with other case or punctuation, and on marks of noises."""
    near = NearWords(lexicon)
    marks = [m.word for m in missing if is_mark(m.word)]
    missing = [m for m in missing if not is_mark(m.word)]
    pairs = [(m, other) for m in missing if (other := near.get(m.word)) is not None]
    marked = sum(bare(m.word) != m.word and near.get(m.word) is None for m in missing)
    if not pairs and not marked and not marks:
        return []
    told = []
    if marks:
        told.append(f"marks of noises among the words ({named(marks)})")
    if pairs:
        shown = named([f"{m.word} ({other})" for m, other in pairs])
        told.append(
            f"{counted(len(pairs), 'word')} of the transcripts {'differs' if len(pairs) == 1 else 'differ'} from words "
            f"of the dictionary by case, punctuation or characters that look alike alone: {shown}"
        )
    if marked:
        told.append(f"{counted(marked, 'further word' if pairs else 'word')} of the transcripts with punctuation")
    what = "takes out marks, and writes words as the dictionary does" if marks else "writes them as the dictionary does"
    return [f"{'; '.join(told)}; `--clean-transcripts` {what}"]
