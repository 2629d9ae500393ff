"""Inspection of a corpus before hours of training, faults included: all checks, each finding with what mends it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.corpus.checks import WITHOUT_SOUND, one_rate, shared_speakers, spelling_remark, unknown_genders
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir
from roundelay_speech.corpus.inspection.findings import Finding, Inspection, SplitNumbers, in_order
from roundelay_speech.corpus.inspection.sound import SoundFacts, measure_all, sound_findings
from roundelay_speech.corpus.words import cleaned
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import NAMES_SHOWN, LeftOut, counted, listing, named
from roundelay_speech.hmm.align import shortest
from roundelay_speech.hmm.alignment import require_summary
from roundelay_speech.hmm.fit import warnings
from roundelay_speech.lexicon.lexicon import Lexicon, bare, case_of, read_lexicon
from roundelay_speech.lexicon.marks import is_mark, parted
from roundelay_speech.prepared import CORPUS, TRAIN, load_corpus

_TABLES = ("text", "utt2spk")
_HELD_OUT = ("dev", "test")


@dataclass(frozen=True)
class InspectedCorpus:
    """A corpus as its files have it, to be inspected."""

    splits: Mapping[str, list[Utterance]]  # utterances by split, copies at other speeds left out
    root: Path  # the folder that relative paths of audio begin at
    audio: bool  # False where features were given instead
    lexicon: Lexicon | None  # None where no dictionary is known
    findings: tuple[Finding, ...]  # on parts that could not be read, and remarks of reading the others


def open_corpus(
    folder: Path, splits: Mapping[str, str], root: Path | None, lexicon: Path | None, progress: Progress
) -> InspectedCorpus:
    """Read a prepared corpus or Kaldi data directories.

    Args:
        folder: a prepared corpus; a data directory; or a folder of data directories.
        splits: name -> data directory inside `folder`; empty: all in the folder.
        root: the folder where paths of `wav.scp` begin; None: `folder`.
        lexicon: a dictionary in CMU's format; None: that of a prepared corpus.

    Raises:
        UserError: there is no corpus, or a prepared one is damaged.
    """
    if (folder / CORPUS).is_file():
        if splits or root is not None:
            raise UserError(f"{folder} is a prepared corpus: --split and --root are for Kaldi data directories.")
        corpus = load_corpus(folder)
        found = [
            Finding("prepare", "note", "", remark, "As said there; a new `roundelay prepare` takes other options.")
            for remark in corpus.remarks
            if not (corpus.audio and WITHOUT_SOUND in remark)  # the audio is listened to again, below
        ]
        for split, gone in corpus.left_out.items():
            found += _unusable(split, gone, len(gone) + len(corpus.splits.get(split, ())), None)
        kept = {name: [u for u in some if not u.copied] for name, some in corpus.splits.items()}
        own = None if corpus.unlabelled else corpus.alignment_lexicon
        words = own if lexicon is None else _dictionary(lexicon, kept)
        return InspectedCorpus(kept, folder, corpus.audio, words, tuple(found))
    return _kaldi(folder, splits, folder if root is None else root, lexicon, progress)


def _dictionary(path: Path, splits: Mapping[str, list[Utterance]]) -> Lexicon:
    """Read a dictionary in the case of the transcripts, as `prepare` does."""
    return read_lexicon(path, case=case_of(word for some in splits.values() for u in some for word in u.words))


def _kaldi(
    folder: Path, wanted: Mapping[str, str], root: Path, lexicon: Path | None, progress: Progress
) -> InspectedCorpus:
    """Read the data directories of a folder; faults of their files are findings."""
    chosen = dict(wanted) or _directories(folder)
    splits: dict[str, list[Utterance]] = {}
    found: list[Finding] = []
    audio = True
    for split, directory in chosen.items():
        progress.start(f"reading {split}")
        try:
            read = read_data_dir(folder / directory, root, KaldiOptions(on_bad="skip"), progress)
        except UserError as error:
            found.append(Finding("files", "error", split, str(error).rstrip("."), "Mend the lines that are named."))
            continue
        finally:
            progress.finish()
        splits[split] = read.utterances
        audio = audio and read.matrices is None
        found += _unusable(split, read.left_out, len(read.utterances) + len(read.left_out), root)
        found += [
            Finding("channels", "warning", split, remark, "Name a channel, by the option or in `segments`.")
            for remark in read.remarks
        ]
    words = None if lexicon is None else _dictionary(lexicon, splits)
    return InspectedCorpus(splits, Path(), audio, words, (*found, *_absent(chosen, whole=wanted or len(chosen) > 1)))


def _directories(folder: Path) -> dict[str, str]:
    """Return the data directories of a folder, by the split that each seems to be; the folder itself if it is one.

    Raises:
        UserError: there is no data directory.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give a prepared corpus or a folder of Kaldi data directories.")
    if _is_data(folder):
        return {folder.resolve().name: "."}
    inside = [path for below in (folder, folder / "data") if below.is_dir() for path in sorted(below.iterdir())]
    names = [str(path.relative_to(folder)) for path in inside if path.is_dir() and _is_data(path)]
    if not names:
        raise UserError(
            f"{folder}: neither a prepared corpus (no {CORPUS}) nor Kaldi data directories (text, utt2spk and wav.scp "
            "or feats.scp), nor is one in it. Say which with `--split NAME=FOLDER`."
        )
    found = {Path(name).name: name for name in names}
    for split in (TRAIN, *_HELD_OUT):  # train_clean_5 is train, if there is no other
        like = [name for name in found if name.startswith(split)]
        if split not in found and len(like) == 1:
            found[split] = found.pop(like[0])
    return {name: found[name] for name in sorted(found, key=lambda name: (name != TRAIN, name))}


def _is_data(folder: Path) -> bool:
    there = [(folder / name).is_file() for name in (*_TABLES, "wav.scp", "feats.scp")]
    return sum(there) >= 2  # one that lacks a file is to be told so


def _absent(chosen: Mapping[str, str], *, whole: object) -> list[Finding]:
    """Return findings on missing splits, and on folders taken for splits of another name."""
    if not whole:
        return []
    found = [
        Finding(
            "splits",
            "error" if split == TRAIN else "warning",
            "",
            f"There is no split named {split} (there are {', '.join(chosen)})",
            f"Say which folder it is with `--split {split}=FOLDER`, here and to `roundelay prepare`."
            + ("" if split == TRAIN else " Without held-out speech nothing can be tuned or measured."),
        )
        for split in (TRAIN, *_HELD_OUT)
        if split not in chosen
    ]
    if renamed := {name: path for name, path in chosen.items() if name != path}:
        options = " ".join(f"--split {name}={path}" for name, path in chosen.items())
        said = ", ".join(f"{path} as {name}" for name, path in renamed.items())
        found.append(Finding("splits", "note", "", f"Taken: {said}", f"`roundelay prepare kaldi` needs `{options}`."))
    return found


def _unusable(split: str, gone: list[LeftOut], of: int, root: Path | None) -> list[Finding]:
    """Return a finding on utterances that cannot be used; `root`: see `open_corpus`, None for a prepared corpus."""
    if not gone:
        return []
    reasons = listing([one.reason for one in gone])
    ids = tuple(one.id for one in gone)
    if root is None:
        what = f"{split}: `prepare` left out {len(gone)} of {counted(of, 'utterance')}:\n{reasons}"
        return [Finding("unusable", "note", split, what, "Mend these and prepare it again, or do without them.", ids)]
    what = f"{split}: {len(gone)} of {counted(of, 'utterance')} cannot be used:\n{reasons}"
    proposal = "Mend these entries, or leave them out: `roundelay prepare ... --on-bad-audio skip`."
    if any("no such file" in one.reason for one in gone):
        proposal += f" Relative paths of wav.scp begin at {root}, or at `--root DIR` (in `prepare` `--source DIR`)."
    return [Finding("unusable", "error", split, what, proposal, ids)]


@dataclass(frozen=True)
class InspectOptions:
    """Options of an inspection.

    Attributes:
        splits: name -> data directory inside the corpus; empty: all.
        root: the folder where paths of `wav.scp` begin; None: the corpus.
        lexicon: dictionary in CMU's format; None: that of a prepared corpus, if it is one.
        alignment: folder of an existing alignment, for its comparison of transcripts.
        workers: number of processes that read audio; None: chosen by the amount of work.
    """

    splits: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    lexicon: Path | None = None
    alignment: Path | None = None
    workers: int | None = None


def inspect_corpus(folder: Path, options: InspectOptions, progress: Progress) -> Inspection:
    """Inspect a prepared corpus or Kaldi data directories; nothing is written.

    Raises:
        UserError: there is no corpus; faults of one are findings.
    """
    corpus = open_corpus(folder, options.splits, options.root, options.lexicon, progress)
    found = [*corpus.findings, *_rates(corpus), *people_findings(corpus.splits)]
    sounds: dict[str, dict[str, SoundFacts]] | None = None
    unseen = []
    if corpus.audio:
        sounds = measure_all(corpus.splits, corpus.root, progress, options.workers)
        found += sound_findings(corpus.splits, sounds)
    else:
        unseen.append("Features were given instead of audio: nothing was listened to.")
    found += spelling_findings(corpus.splits, corpus.lexicon) + length_findings(corpus.splits, sounds, corpus.lexicon)
    if options.alignment is not None:
        found += alignment_findings(options.alignment)
    else:
        unseen.append(
            "Exchanged transcripts of like length show only after `roundelay align`, which compares all (--alignment)."
        )
    if corpus.lexicon is None:
        unseen.append("Words were held against no dictionary (--lexicon).")
    said = {finding.what for finding in found if finding.kind != "prepare"}
    kept = [finding for finding in found if finding.kind != "prepare" or finding.what not in said]
    numbers = {split: SplitNumbers.of(some) for split, some in corpus.splits.items()}
    return Inspection(str(folder), numbers, in_order(kept), tuple(unseen))


def _rates(corpus: InspectedCorpus) -> list[Finding]:
    """Return a finding on several sampling rates, in the words of `prepare`."""
    splits = {name: some for name, some in corpus.splits.items() if some}
    if not corpus.audio or not splits:
        return []
    try:
        one_rate(splits if TRAIN in splits else {TRAIN: splits[next(iter(splits))], **splits}, None, "error")
    except UserError as error:
        mend = "`roundelay prepare ... --rate HZ` resamples all audio as it is read."
        return [Finding("rates", "error", "", str(error), mend)]
    return []


_SHORT_WORD = 0.3  # s of a recording that count as speech at least
_FASTEST = 40.0  # characters a second: twice as fast as people speak
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
    """Return a finding on words that occur in several cases."""
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
    """Return findings on transcripts with too many characters, or too few, for the seconds of speech."""
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
            told = "; ".join(f"{name}: {why}" for name, why in list(odd.items())[:NAMES_SHOWN])
            more = "; ..." if len(odd) > NAMES_SHOWN else ""
            what = (
                f"{split}: {counted(len(odd), 'transcript')} of {len(utterances)} cannot fit the speech ({told}{more})"
            )
            found.append(Finding("fit", "warning", split, what, listen, tuple(odd)))
    return found


def _odd_rates(utterances: Sequence[Utterance], sounds: Mapping[str, SoundFacts]) -> dict[str, str]:
    rates = {}
    for u in utterances:
        seconds = sounds[u.id].speech_s if u.id in sounds else 0.0
        if seconds > 0:  # of a short word the weak sounds are the larger part
            seconds = max(seconds, min(_SHORT_WORD, u.duration))
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


_MOST_OF_IT = 0.5  # of the speech of a split of three speakers or more, by one of them
_FEW = 0.35  # of the speech, by women or by men
_FEW_SPEAKERS = 20  # to train on, for a model that is to understand others
_NAMES = {"f": "women", "m": "men"}
_MEASURE = "`roundelay evaluate RECIPE --folds 5` measures word errors of people whom the model has never heard."


def people_findings(splits: Mapping[str, Sequence[Utterance]]) -> list[Finding]:
    """Return findings on speakers: in several splits, too few in one, women and men out of balance."""
    found: list[Finding] = []
    if TRAIN in splits:
        move = "Give all utterances of a speaker to one split; `roundelay prepare ... --on-overlap error` stops at it."
        found += [Finding("speakers", "warning", "", what, move) for what in shared_speakers(splits)]
    for split, utterances in splits.items():
        seconds: Counter[str] = Counter()
        for u in utterances:
            seconds[u.speaker] += u.duration  # type: ignore[assignment]
        if seconds:  # nothing of an unusable split is left
            found += _few_speakers(split, seconds)
    mend = "Mend these lines of `spk2gender`: error rates of women and men, and `--warp-of`, go by them."
    found += [Finding("balance", "warning", "", what, mend) for what in unknown_genders(splits)]
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
        what = "whether speakers are women or men is not said (by `spk2gender`), so their balance was not looked at"
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
