"""Transcripts: how they are written, and whether they can be what is said in so many seconds."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from roundelay_speech.corpus.checks import spelling_remark
from roundelay_speech.corpus.cleaned import cleaned
from roundelay_speech.corpus.inspection.findings import SHOWN, Finding, named
from roundelay_speech.corpus.inspection.sound import SoundFacts
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted
from roundelay_speech.hmm.align import shortest
from roundelay_speech.hmm.alignment import require_summary
from roundelay_speech.hmm.fit import warnings
from roundelay_speech.lexicon.lexicon import Lexicon, bare
from roundelay_speech.lexicon.marks import is_mark, parted

_FASTEST = 40.0  # characters a second: twice as fast as anybody speaks
_SLOWEST, _LONG_S = 1.0, 8.0  # characters a second, over so many seconds of speech
_ENOUGH = 20  # utterances whose median says something
_FACTOR, _DEVIATIONS = 2.5, 5.0  # away from the median of the logarithm
_LEAST_SPREAD = 0.1
_FRAME_S = 0.01


def spelling_findings(splits: Mapping[str, Sequence[Utterance]], lexicon: Lexicon | None) -> list[Finding]:
    """Return findings on punctuation, case, digits and marks of events, of all splits together."""
    parts = [parted(u.text) for some in splits.values() for u in some]
    words = Counter(word for spoken, _ in parts for word in spoken)
    found: list[Finding] = []
    marks = [*dict.fromkeys(mark for _, some in parts for mark in some), *(word for word in words if "_" in word)]
    words = Counter({word: number for word, number in words.items() if "_" not in word})
    if lexicon is not None:
        missing = lexicon.missing_words(u for some in splits.values() for u in some)
        missing = [m for m in missing if not is_mark(m.word)]
        clean = "`roundelay prepare ... --clean-transcripts`."
        found += [Finding("spelling", "warning", "", what, clean) for what in spelling_remark(missing, lexicon)]
        written_so = lexicon.missing_words(u for some in cleaned(splits, lexicon).splits.values() for u in some)
        if absent := [m.word for m in written_so]:
            what = f"{counted(len(absent), 'word')} of the transcripts not in the dictionary ({named(absent)})"
            mend = "Add them to it, or `roundelay prepare ... --on-missing-words guess` (or skip, or map)."
            found.append(Finding("dictionary", "warning", "", what, mend))
    elif marked := [word for word in words if bare(word, "'") != word]:
        total = sum(words[word] for word in marked)
        what = f"{counted(total, 'word')} of the transcripts with punctuation ({named(marked)}): `no,` is not `no`"
        mend = "`roundelay prepare ... --clean-transcripts` writes words as the dictionary has them."
        found.append(Finding("punctuation", "warning", "", what, mend))
    found += _case(words)
    if digits := [word for word in words if any(c.isdigit() for c in word) and not _named_so(word, lexicon)]:
        what = f"{counted(len(digits), 'word')} with digits ({named(digits)}): a dictionary does not say how 12 is said"
        found.append(Finding("digits", "warning", "", what, "Write numbers out as they are spoken."))
    if marks and any(lexicon is None or mark not in lexicon for mark in marks):
        what = f"marks of noises or of doubt among the words ({named(marks)})"
        mend = (
            "`roundelay prepare ... --clean-transcripts` takes them out; or add them to the dictionary with a phone of "
            "their own."
        )
        found.append(Finding("marks", "warning", "", what, mend))
    return found


def _named_so(word: str, lexicon: Lexicon | None) -> bool:
    return lexicon is not None and word in lexicon


def _case(words: Mapping[str, int]) -> list[Finding]:
    """Return a finding on words that are there in several cases."""
    forms: dict[str, list[str]] = defaultdict(list)
    for word in words:
        forms[bare(word).casefold()].append(bare(word))
    several = {folded: sorted(set(some)) for folded, some in forms.items() if len(set(some)) > 1}
    if not several:
        return []
    shown = named(["/".join(some) for some in several.values()])
    what = f"{counted(len(several), 'word')} written in several cases ({shown}): each form is a word of its own"
    mend = "`roundelay prepare ... --clean-transcripts` takes the dictionary's case; or write all in one."
    return [Finding("case", "warning", "", what, mend)]


def length_findings(
    splits: Mapping[str, Sequence[Utterance]],
    sounds: Mapping[str, Mapping[str, SoundFacts]] | None,
    lexicon: Lexicon | None,
) -> list[Finding]:
    """Return findings on transcripts that cannot be what is said: too many characters, or too few, for the seconds."""
    listen = "Listen to these, and mend `text`: words of another utterance, missing words, or a wrong `segments` line."
    found = []
    # A word in another case than the dictionary's has the same phones.
    written_so = splits if lexicon is None else cleaned(splits, lexicon).splits
    for split, utterances in written_so.items():
        odd = _odd_rates(utterances, (sounds or {}).get(split, {}))
        if lexicon is not None:
            for u in utterances:
                known = all(word in lexicon for word in u.words)
                if known and shortest(u.words, lexicon) * _FRAME_S > u.duration:
                    odd[u.id] = f"{u.duration:.2g} s are too short for its {counted(len(u.words), 'word')}"
        if odd:
            told = "; ".join(f"{name}: {why}" for name, why in list(odd.items())[:SHOWN])
            more = "; ..." if len(odd) > SHOWN else ""
            what = (
                f"{split}: {counted(len(odd), 'transcript')} of {len(utterances)} cannot fit the speech ({told}{more})"
            )
            found.append(Finding("fit", "warning", split, what, listen, tuple(odd)))
    return found


def _odd_rates(utterances: Sequence[Utterance], sounds: Mapping[str, SoundFacts]) -> dict[str, str]:
    rates = {}
    for u in utterances:
        seconds = sounds[u.id].speech_s if u.id in sounds else 0.0
        if seconds > 0 and (length := _characters(u)):
            rates[u.id] = length / seconds
    if not rates:
        return {}
    logs = np.log(list(rates.values()))
    middle = float(np.median(logs))
    spread = max(_LEAST_SPREAD, 1.4826 * float(np.median(np.abs(logs - middle))))
    far = max(np.log(_FACTOR), _DEVIATIONS * spread) if len(rates) >= _ENOUGH else np.inf
    usual = f"{np.exp(middle):.2g} are usual"
    return {
        name: f"{rate:.2g} characters a second of speech, {usual}"
        for name, rate in rates.items()
        if rate > _FASTEST or (rate < _SLOWEST and sounds[name].speech_s > _LONG_S) or abs(np.log(rate) - middle) > far
    }


def _characters(utterance: Utterance) -> int:
    return sum(c.isalnum() for word in parted(utterance.text)[0] if "_" not in word for c in word)


def alignment_findings(folder: Path) -> list[Finding]:
    """Return findings of `roundelay align`, which compared every training utterance with transcripts of others.

    Raises:
        UserError: the folder holds no alignment.
    """
    mend = "Listen to them, and mend `text`; or leave them out."
    return [Finding("fit", "warning", "train", what, mend) for what in warnings(require_summary(folder).fit, folder)]
