"""Speakers: shared by splits, alone in one, much or little heard, women and men."""

from collections import Counter
from collections.abc import Mapping, Sequence

from roundelay_speech.corpus.checks import shared_speakers
from roundelay_speech.corpus.inspection.findings import Finding
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted
from roundelay_speech.prepared import TRAIN

_MOST_OF_IT = 0.5  # of the speech of a split of three speakers or more, by one of them
_FEW = 0.35  # of the speech, by women or by men
_FEW_SPEAKERS = 20  # to train on, for a model that is to understand others
_NAMES = {"f": "women", "m": "men"}
_MEASURE = "`roundelay evaluate RECIPE --folds 5` measures word errors of people whom the model has never heard."


def people_findings(splits: Mapping[str, Sequence[Utterance]]) -> list[Finding]:
    """Return findings on speakers of all splits."""
    found: list[Finding] = []
    if TRAIN in splits:
        move = "Give all utterances of a speaker to one split; `roundelay prepare ... --on-overlap error` stops at it."
        found += [Finding("speakers", "warning", "", what, move) for what in shared_speakers(splits)]
    for split, utterances in splits.items():
        seconds: Counter[str] = Counter()
        for u in utterances:
            seconds[u.speaker] += u.duration  # type: ignore[assignment]
        found += _few_speakers(split, seconds)
    return found + _women_and_men(splits)


def _few_speakers(split: str, seconds: Mapping[str, float]) -> list[Finding]:
    if len(seconds) == 1:
        (name,) = seconds
        if split == TRAIN:
            what = f"train: all of it is by one speaker, {name}: the model will know this voice alone"
            mend = "Add speakers; or know that it is a model of one voice. If `utt2spk` is wrong, mend it."
        else:
            what = f"{split}: all of it is by one speaker, {name}: error rates say little of others"
            mend = "Choose utterances of several speakers who are not in train. If `utt2spk` is wrong, mend it."
        return [Finding("speakers", "warning", split, what, mend)]
    total = sum(seconds.values())
    name, most = max(seconds.items(), key=lambda item: item[1])
    if len(seconds) >= 3 and most > _MOST_OF_IT * total:
        what = f"{split}: {most / total:.0%} of the speech is by {name}, one of {counted(len(seconds), 'speaker')}"
        mend = "Take less of it, or more of the others; error rates by speaker are in `roundelay score --per-speaker`."
        return [Finding("balance", "warning", split, what, mend)]
    if split == TRAIN and 1 < len(seconds) < _FEW_SPEAKERS:
        what = f"train: only {len(seconds)} speakers: a model that knows few voices makes more errors with others"
        return [Finding("speakers", "note", split, what, f"Record more people, a little of each. {_MEASURE}")]
    return []


def _women_and_men(splits: Mapping[str, Sequence[Utterance]]) -> list[Finding]:
    found: list[Finding] = []
    shares = {split: known for split, some in splits.items() if (known := _by_gender(some))}
    for split, share in shares.items():
        few = min(share, key=lambda gender: share[gender])
        if split == TRAIN and share[few] < _FEW:
            people = f"{_speakers(splits[split], few)} of {len({u.speaker for u in splits[split]})} speakers"
            what = f"train: {share[few]:.0%} of the speech is by {_NAMES[few]} ({people}): expect more errors with them"
            found.append(Finding("balance", "warning", split, what, _more_of(few, some=share[few] > 0)))
        elif split != TRAIN and share[few] == 0:
            what = f"{split}: none of the speech is by {_NAMES[few]}: its error rates say nothing of them"
            found.append(Finding("balance", "warning", split, what, "Add speakers to it."))
    if not shares and splits:
        what = "whether speakers are women or men is not said (no `spk2gender`), so their balance was not looked at"
        found.append(
            Finding("balance", "note", "", what, "Write `spk2gender`, a line `SPEAKER f` or `SPEAKER m` each.")
        )
    return found


def _more_of(few: str, *, some: bool) -> str:
    factor = {"f": 1.12, "m": 0.9}[few]  # of the others' frequencies, towards theirs
    others = _NAMES["m" if few == "f" else "f"]
    warped = f"--warp {factor} --warp-of {others}` adds copies of {others} turned towards them"
    if some:
        warped = "--warp 0.94 1.06 --warp-of few` adds copies of theirs with longer and shorter vocal tracts"
    return f"Record more of them. `roundelay prepare ... {warped} (docs/features.md). {_MEASURE}"


def _speakers(utterances: Sequence[Utterance], gender: str) -> int:
    """Count speakers of a gender."""
    return len({u.speaker for u in utterances if (u.gender or "").lower()[:1] == gender})


def _by_gender(utterances: Sequence[Utterance]) -> dict[str, float]:
    """Return shares of women and men in the seconds whose speaker's gender is known; empty where none is."""
    seconds = dict.fromkeys(_NAMES, 0.0)
    for u in utterances:
        gender = (u.gender or "").lower()[:1]
        if gender in seconds:
            seconds[gender] += u.duration
    total = sum(seconds.values())
    return {gender: s / total for gender, s in seconds.items()} if total else {}
