"""Files of scores that a decoding writes beside the hypotheses, confused phones among them, and the record for
`results.json`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from roundelay.core.files import write_json, write_text
from roundelay.core.records import PHONES_FILE, UTTERANCES_FILE, WordErrors
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.lexicon.lexicon import Lexicon, base_phone
from roundelay_speech.scoring.alignment.align import Pair, align_words
from roundelay_speech.scoring.alignment.counts import Score, UtteranceScore
from roundelay_speech.scoring.alignment.groups import Group, Groups, by_subset
from roundelay_speech.scoring.formats.ctm import UtterancePosition
from roundelay_speech.scoring.formats.stm import EVERYTHING, StmSegment, write_stm
from roundelay_speech.scoring.formats.trn import trn_name, write_trn
from roundelay_speech.scoring.normalise import GROUPS_FILE, write_groups
from roundelay_speech.scoring.output import alignment_text
from roundelay_speech.scoring.resample import ConfidenceInterval, Unit, bootstrap, unit_counts


@dataclass(frozen=True)
class Summary:
    """A score with the interval of its word error rate, by bootstrap over utterances or speakers; None for fewer than
    two."""

    score: Score
    interval: ConfidenceInterval | None

    def __str__(self) -> str:
        """Return `%WER 5.95 [ 46 / 773, 5 ins, 9 del, 32 sub ]  95 % interval 4.4 to 7.6 (bootstrap ...)`."""
        return f"{self.score.errors}" if self.interval is None else f"{self.score.errors}  {self.interval}"


def summarise(result: Score, groups: Groups | None = None, unit: Unit = "utterances") -> Summary:
    """Return the score with its interval."""
    several = len(unit_counts(result, groups or {}, unit)) > 1
    return Summary(result, bootstrap(result, groups, unit) if several else None)


def summarise_subsets(result: Score, utterances: Sequence[Utterance]) -> dict[str, Summary]:
    """Return the summary of each part of a split; empty if it has no parts, or a single one that is all of it."""
    parts = by_subset(result, {u.id: group_of_utterance(u) for u in utterances})
    return {name: summarise(part) for name, part in parts.items()} if len(parts) > 1 else {}


def group_of_utterance(utterance: Utterance) -> Group:
    """Return the group of an utterance: its speaker and, if the manifest has them, subset and gender."""
    return Group(utterance.speaker, getattr(utterance, "subset", None), getattr(utterance, "gender", None))


def word_errors(whole: Summary, parts: Mapping[str, Summary], acoustic_scale: float) -> WordErrors:
    """Return the word errors of a split in the form of `results.json`."""
    e = whole.score.errors
    return WordErrors(
        wer=e.wer,
        ins=e.ins,
        del_=e.del_,
        sub=e.sub,
        ref=e.ref,
        utterances=len(whole.score.utterances),
        acoustic_scale=acoustic_scale,
        interval=None if whole.interval is None else [whole.interval.low, whole.interval.high],
        subsets={name: word_errors(part, {}, acoustic_scale) for name, part in parts.items()},
    )


def write_score(folder: Path, whole: Summary, parts: Mapping[str, Summary], utterances: Sequence[Utterance]) -> None:
    """Write the files that `roundelay score` and sclite read, and those for people.

    ref.trn, hyp.trn; groups.json (speakers and subsets by name in them); ref.stm (the reference with times in the
    recordings); wer.txt (the `%WER` line, its interval, the subsets); errors.txt (every error in its place);
    utterances.jsonl (errors for programs: words against words, utterance by utterance).
    """
    result, speakers = whole.score, {u.id: u.speaker for u in utterances}
    refs = {u.id: [r for r, _ in u.pairs if r is not None] for u in result.utterances}
    hyps = {u.id: [h for _, h in u.pairs if h is not None] for u in result.utterances}
    write_trn(folder / "ref.trn", refs, speakers)
    write_trn(folder / "hyp.trn", hyps, speakers)
    write_groups(folder / GROUPS_FILE, {trn_name(u.id, u.speaker): group_of_utterance(u) for u in utterances})
    write_stm(folder / "ref.stm", [_segment(u) for u in utterances])
    lines = [str(whole), *(f"{name}: {part}" for name, part in parts.items())]
    write_text(folder / "wer.txt", "".join(f"{line}\n" for line in lines))
    write_text(folder / "errors.txt", alignment_text(result))
    told = {u.id: u for u in utterances}
    write_text(folder / UTTERANCES_FILE, "".join(_line(told[u.id], u) for u in result.utterances if u.id in told))


def write_words(folder: Path, hypotheses: Mapping[str, Sequence[str]], utterances: Sequence[Utterance]) -> None:
    """Write hyp.trn of utterances without transcripts; files of an earlier score are removed."""
    for name in ("ref.trn", GROUPS_FILE, "ref.stm", "wer.txt", "errors.txt", UTTERANCES_FILE):
        (folder / name).unlink(missing_ok=True)
    write_trn(folder / "hyp.trn", hypotheses, {u.id: u.speaker for u in utterances})


def _line(utterance: Utterance, scored: UtteranceScore) -> str:
    """Return a line of UTTERANCES_FILE: pairs of words (null: inserted or deleted), and the positions of pairs that
    differ but are right."""
    group = group_of_utterance(utterance)
    fields = {
        "id": utterance.id,
        "speaker": group.speaker,
        "gender": utterance.gender,
        "subset": group.subset,
        "pairs": [list(pair) for pair in scored.pairs],
        "forgiven": sorted(scored.forgiven),
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"


def _segment(u: Utterance) -> StmSegment:
    subset = group_of_utterance(u).subset
    labels = (EVERYTHING, subset) if subset else (EVERYTHING,)
    place = place_of(u)
    return StmSegment(place.file, place.channel, u.speaker, u.start, u.start + u.duration, tuple(u.words), labels)


def place_of(utterance: Utterance) -> UtterancePosition:
    """Return the position of an utterance for `write_ctm`: the same file and channel as in ref.stm. Channels count from
    1."""
    return UtterancePosition(utterance.recording_id, str(utterance.channel + 1), utterance.start)


def confused_phones(result: Score, lexicon: Lexicon) -> Counter[Pair]:
    """Count the confused phones of a score, (reference, hypothesis); None: nothing in its place.

    Words that stand wrong beside each other are compared together, by their first pronunciations: `TO DAY` for `TODAY`
    confuses nothing. A stretch with a word that the lexicon lacks is left out.
    """
    found: Counter[Pair] = Counter()
    for u in result.utterances:
        marked = [(r != h and place not in u.forgiven, (r, h)) for place, (r, h) in enumerate(u.pairs)]
        for wrong, stretch in groupby(marked, lambda item: item[0]):
            pairs = [pair for _, pair in stretch]
            words = [[pair[side] for pair in pairs if pair[side] is not None] for side in (0, 1)]
            if not wrong or any(word not in lexicon for side in words for word in side if word is not None):
                continue
            ref, hyp = ([base_phone(p) for w in side if w for p in lexicon.pronunciations[w][0]] for side in words)
            found.update(pair for pair in align_words(ref, hyp) if pair[0] != pair[1])
    return found


def write_phones(folder: Path, result: Score, lexicon: Lexicon) -> None:
    """Write the confused phones to PHONES_FILE, the most frequent first: [reference, hypothesis, times] each."""
    counts = sorted(confused_phones(result, lexicon).items(), key=lambda item: (-item[1], str(item[0])))
    write_json(folder / PHONES_FILE, {"confused": [[ref, hyp, times] for (ref, hyp), times in counts]})
