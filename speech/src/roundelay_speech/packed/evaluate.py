"""Speech recognised by a packed model with its own words, grammar and settings, and scored where its words are known.

OUT/SPLIT/   as `roundelay decode` writes it: ref.trn, hyp.trn, groups.json, ref.stm, wer.txt, errors.txt, hyp.ctm; and
             evaluation.json. Of utterances without transcripts hyp.trn and hyp.ctm alone
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.files import write_json
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.corpus.words import CleanedSplits, by_kind
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.lexicon.cleaning import Kind
from roundelay_speech.lexicon.lexicon import NearWords, folded
from roundelay_speech.packed.card import errors_of
from roundelay_speech.packed.hearing import PieceFeatures, Statistics
from roundelay_speech.packed.model import Model, Transcript
from roundelay_speech.packed.speech_data import SpeechData
from roundelay_speech.packed.transcripts import in_words_of
from roundelay_speech.prepared import has_words
from roundelay_speech.scoring.alignment.groups import GENDERS, Group, by_gender, by_speaker
from roundelay_speech.scoring.formats.ctm import write_ctm
from roundelay_speech.scoring.reliability import Reliability, judged, reliability
from roundelay_speech.scoring.score import Score, score
from roundelay_speech.scoring.summary import (
    Summary,
    group_of_utterance,
    place_of,
    summarise,
    summarise_subsets,
    write_score,
    write_words,
)


@dataclass(frozen=True)
class Evaluating:
    """Options of `roundelay evaluate`."""

    out: Path | None = None  # where results go; None: nowhere
    workers: int = 0  # processes; 0: one a core
    ignore_case: bool = False  # whether words that differ by upper and lower case alone are the same
    times: bool = True  # whether to give words times and confidences, which takes as long as the search again
    # whether transcripts are written in the model's words, in their case, without punctuation and marks of noises;
    # None: as those of the model's own corpus were.
    clean_transcripts: bool | None = None


@dataclass(frozen=True)
class Evaluated:
    """The scores of one split."""

    split: str
    utterances: int
    summary: Summary | None  # of the score; None where no utterance has a transcript
    groups: Mapping[str, Summary]  # summaries of subsets, women and men, where there are several
    speakers: Mapping[str, Score]  # score of each
    unknown: int  # reference words that the model does not know
    other_case: int  # those of them that it knows in another case
    punctuated: int = 0  # those of them that it knows without punctuation at their ends, in any case
    # how often each of them is said, the most frequent first.
    unknown_words: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[Kind, int] = field(default_factory=dict)  # changes in transcripts, by kind
    left_out: Sequence[LeftOut] = ()  # utterances whose transcripts cannot be scored, with reasons
    confidences: Reliability | None = None  # how true they are; None where words have none
    unadapted: Sequence[str] = ()  # speakers of whom there is too little to adapt to


def evaluate(model: Model, data: SpeechData, options: Evaluating, progress: Progress) -> Iterator[Evaluated]:
    """Recognise all splits and score those with words. Speakers are normalised as `roundelay prepare` does: by all
    their speech in the corpus, however little it is.

    Raises:
        UserError: audio that cannot be used; some utterances of a split have words, and others not.
    """
    changed: Mapping[str, CleanedSplits] = {}
    if model.packed.cleaned if options.clean_transcripts is None else options.clean_transcripts:
        data, changed = in_words_of(model, data)
    for split, utterances in data.splits.items():
        said = has_words(split, utterances)
        progress.start(f"recognising {split}", len(utterances))
        found = _recognised(model, data, utterances, options, progress)
        progress.finish()
        if not said:
            if options.out is not None:
                _write_words(options.out / split, found, utterances)
            yield Evaluated(split, len(utterances), None, {}, {}, 0, 0, unadapted=_unadapted(found, utterances))
            continue
        yield _scored(model, (split, utterances), found, options, changed.get(split))


def _recognised(
    model: Model, data: SpeechData, utterances: Sequence[Utterance], options: Evaluating, progress: Progress
) -> dict[str, Transcript]:
    """Recognise utterances; return transcripts by id, in the order given."""
    speakers: dict[str, list[Utterance]] = {}
    for utterance in utterances:
        speakers.setdefault(utterance.speaker, []).append(utterance)
    chosen = {u.id for u in utterances}
    everybody = [u for some in data.splits.values() for u in some] + list(data.others)
    further: dict[str, list[Utterance]] = {}
    for utterance in everybody:
        if utterance.id not in chosen and utterance.speaker in speakers:
            further.setdefault(utterance.speaker, []).append(utterance)

    def heard(utterance: Utterance) -> PieceFeatures:
        return model.features(read_audio(utterance, data.folder, model.sample_rate))

    def features() -> Iterator[tuple[str, list[PieceFeatures], Statistics]]:
        for speaker, some in speakers.items():
            mine = [heard(u) for u in some]
            rest = [heard(u) for u in further.get(speaker, ())]
            yield speaker, mine, model.statistics([*mine, *rest], exact=True)

    done: dict[str, Transcript] = {}
    for speaker, transcripts in model.recognise_features(
        features(), options.workers, progress, times=options.times, believing="all"
    ):
        done |= dict(zip((u.id for u in speakers[speaker]), transcripts, strict=True))
    return {u.id: done[u.id] for u in utterances}


def _scored(
    model: Model,
    what: tuple[str, Sequence[Utterance]],
    found: Mapping[str, Transcript],
    options: Evaluating,
    clean: CleanedSplits | None,
) -> Evaluated:
    """Return the errors of a split's transcripts `found`, and write the scoring files if `options.out` is set."""
    split, utterances = what
    said = {u.id: u.words for u in utterances}
    heard = {name: list(transcript.words) for name, transcript in found.items()}
    near = NearWords(model.lexicon)
    if options.ignore_case:
        known = {folded(word): word for word in model.lexicon.words}
        said = {name: [known.get(folded(word), word) for word in words] for name, words in said.items()}
        utterances = [replace(u, text=" ".join(said[u.id])) for u in utterances]
    result = score(said, heard)
    unknown = [word for words in said.values() for word in words if word not in model.lexicon]
    folds = {folded(word) for word in model.lexicon.words} if unknown else set()
    summary, subsets = summarise(result), summarise_subsets(result, utterances)
    speakers = by_speaker(result, {u.id: Group(u.speaker) for u in utterances})
    evaluated = Evaluated(
        split,
        len(utterances),
        summary,
        {**subsets, **_by_gender(result, utterances)},
        speakers,
        len(unknown),
        sum(folded(word) in folds for word in unknown),
        sum(folded(word) not in folds and near.get(word) is not None for word in unknown),
        dict(Counter(unknown).most_common()),
        by_kind(clean.changes) if clean else {},
        clean.left_out if clean else (),
        _confidences(said, found),
        _unadapted(found, utterances),
    )
    if options.out is not None:
        folder = options.out / split
        write_score(folder, summary, subsets, utterances)
        _write_times(folder, found, utterances)
        write_json(folder / "evaluation.json", _told(model, evaluated))
    return evaluated


def _unadapted(found: Mapping[str, Transcript], utterances: Sequence[Utterance]) -> list[str]:
    return sorted({u.speaker for u in utterances if not found[u.id].adapted})


def _confidences(said: Mapping[str, Sequence[str]], found: Mapping[str, Transcript]) -> Reliability | None:
    """Return the reliability of all words' confidences; None if there are none."""
    held = reliability([judged(said[name], transcript.timed) for name, transcript in found.items()])
    return held if held.words else None


def _by_gender(result: Score, utterances: Sequence[Utterance]) -> dict[str, Summary]:
    """Return the summaries of women and of men, if there are both."""
    parts = by_gender(result, {u.id: group_of_utterance(u) for u in utterances})
    return {name: summarise(part) for name, part in parts.items()} if set(GENDERS.values()) <= set(parts) else {}


def _told(model: Model, evaluated: Evaluated) -> dict[str, Any]:
    assert evaluated.summary is not None
    return {
        "model": model.card["name"],
        "digest": model.digest,
        "search": model.card["search"],
        **errors_of(evaluated.summary),
        "unknown_words": evaluated.unknown,
        "cleaned": dict(evaluated.changes),
        "left_out": [one.reason for one in evaluated.left_out],
        "groups": {name: errors_of(part) for name, part in evaluated.groups.items()},
        "speakers": {name: errors_of(Summary(part, None)) for name, part in evaluated.speakers.items()},
        "unadapted": list(evaluated.unadapted),
        "confidences": None if evaluated.confidences is None else plain(evaluated.confidences),
    }


def _write_words(folder: Path, found: Mapping[str, Transcript], utterances: Sequence[Utterance]) -> None:
    write_words(folder, {u: t.words for u, t in found.items()}, utterances)
    _write_times(folder, found, utterances)


def _write_times(folder: Path, found: Mapping[str, Transcript], utterances: Sequence[Utterance]) -> None:
    if any(transcript.timed for transcript in found.values()):
        places = {u.id: place_of(u) for u in utterances}
        write_ctm(folder / "hyp.ctm", {u: t.timed for u, t in found.items()}, places)
