"""LibriSpeech (Panayotov et al. 2015): read audio books, 16 kHz; and mini LibriSpeech, the same in small.

    ROOT/SPEAKERS.TXT                               reader | sex | part | minutes | name
    ROOT/PART/READER/CHAPTER/READER-CHAPTER.trans.txt   READER-CHAPTER-NUMBER WORDS...
    ROOT/PART/READER/CHAPTER/READER-CHAPTER-NUMBER.flac

ROOT is the source folder or `LibriSpeech` in it. Parts are joined into splits. Mini LibriSpeech is taken in that layout
(OpenSLR 31: train-clean-5, dev-clean-2) or as Kaldi data directories train, dev and test with audio beside them.
"""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, tracked
from roundelay_speech.audio.reading import AudioError, bad_audio, whole_recording
from roundelay_speech.corpus.build import ReadUtterances, prepare_utterances
from roundelay_speech.corpus.download import OPENSLR, Remote, Wanted, parts_of
from roundelay_speech.corpus.options import Preparation
from roundelay_speech.corpus.readers.base import Reader, Request, checked_folder, read_data_dirs
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy, LeftOut, counted, listing
from roundelay_speech.kaldi_io.tables import read_table
from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.prepared import TRAIN, Corpus

Splits = Mapping[str, Sequence[str]]
"""The parts of LibriSpeech that make each split."""

TRAIN_PARTS = ("train-clean-100", "train-clean-360", "train-other-500")
PARTS = (*TRAIN_PARTS, "dev-clean", "dev-other", "test-clean", "test-other")
MINI_TRAIN, MINI_DEV = "train-clean-5", "dev-clean-2"
DIGESTS: Mapping[str, str] = {
    "train-clean-100": "sha256:d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "sha256:146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "sha256:ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
    "dev-clean": "sha256:76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "sha256:12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "sha256:39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "sha256:d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
}
"""The sha256 sums that torchaudio's loader carries."""
MINI_DIGESTS: Mapping[str, str] = {
    "train-clean-5": "md5:5df7d4e78065366204ca6845bb08f490",
    "dev-clean-2": "md5:6d7ab67ac6a1d2c993d050e16d61080d",
}
"""The md5 sums that OpenSLR publishes."""
DOWNLOADED_PARTS = ("train-clean-100", "dev-clean", "test-clean", "test-other")
"""Parts of LibriSpeech that are downloaded by default: 7.3 GB, of 60 GB in all."""
LEXICON = Remote(f"{OPENSLR}/11/librispeech-lexicon.txt")
CMUDICT = Remote(
    "https://raw.githubusercontent.com/cmusphinx/cmudict/0f8072f814306c5ee4fbf992ed853601b12c01f9/cmudict.dict",
    "sha256:81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22",
)
"""The CMU dictionary, at a fixed commit."""
LICENCE = "LibriSpeech (c) 2014 by Vassil Panayotov, Creative Commons Attribution 4.0 International."


def prepare_librispeech(request: Request, progress: Progress) -> Corpus:
    """Prepare the parts of LibriSpeech that are in the source; audio stays where it is. If the user names no splits,
    `train` is made of all existing training parts, `dev` of dev-clean, and dev-other, test-clean and test-other are
    under their own names, each if it is there.

    Raises:
        UserError: a part is missing; transcripts and audio do not belong together; all that `prepare_utterances` finds.
    """
    root = _root(request.folder, PARTS)
    preparation = Preparation(request.data, "librispeech", LICENCE, request.options)
    return _prepare(root, request.dictionary, request.splits or _splits_found(root), preparation, progress)


def prepare_mini_librispeech(request: Request, progress: Progress) -> Corpus:
    """Prepare mini LibriSpeech. Where the user names no splits, they are as the data directories say; in the layout of
    OpenSLR 31, which has no test set, `dev` is every second reader of dev-clean-2 in the order of their numbers, `test`
    the others.

    Raises:
        UserError: as `prepare_librispeech`.
    """
    source, lexicon, splits = request.folder, request.dictionary, request.splits
    preparation = Preparation(request.data, "mini-librispeech", LICENCE, request.options)
    if not (source / "train" / "wav.scp").is_file():
        root = _root(source, (MINI_TRAIN, MINI_DEV))
        wanted = splits or {TRAIN: [MINI_TRAIN], "dev": [MINI_DEV]}
        return _prepare(root, lexicon, wanted, preparation, progress, halve=not splits)
    if splits:
        raise UserError(f"{source}: data directories train, dev and test are here, so --split has no meaning.")
    read = read_data_dirs(source, request.options.on_bad)
    genders = _genders_of_table(source / "manifest.tsv")
    found = {split: ([_with_gender(u, genders) for u in some], left_out) for split, (some, left_out) in read.items()}
    dictionary = read_lexicon(lexicon, strip_stress=True, case="upper")
    return prepare_utterances(ReadUtterances.of(found), dictionary, preparation, progress)


def read_part(root: Path, part: str, on_bad: BadPolicy, progress: Progress) -> tuple[list[Utterance], list[LeftOut]]:
    """Return the utterances of one part, sorted by id, with absolute paths; under `skip`, those left out with the
    reason.

    Raises:
        UserError: a faulty transcript file (all faults are listed); under `error`, audio or a transcript is missing.
    """
    genders = _genders(root / "SPEAKERS.TXT")
    problems: list[str] = []
    utterances: list[Utterance] = []
    left_out: list[LeftOut] = []
    files = sorted((root / part).glob("*/*/*.trans.txt"))
    if not files:
        raise UserError(f"{root / part}: no transcripts here; expected READER/CHAPTER/READER-CHAPTER.trans.txt.")
    for file in tracked(progress, f"reading {part}", files):
        transcripts = _transcripts(file, problems)
        untold = {path.stem for path in file.parent.glob("*.flac")} - transcripts.keys()
        left_out += [LeftOut(name, f"{name}: {file}: its audio is here, but no line") for name in sorted(untold)]
        for name, text in transcripts.items():
            path = file.with_name(f"{name}.flac")
            speaker = name.split("-", maxsplit=1)[0]
            try:
                utterances.append(whole_recording(name, path, speaker, text, genders.get(speaker), part))
            except AudioError as error:
                left_out.append(LeftOut(name, f"{name}: {error}"))
    if problems:
        raise UserError(f"{root / part}: {counted(len(problems), 'fault')} in the transcripts:\n{listing(problems)}")
    if left_out and on_bad == "error":
        raise bad_audio(left_out, len(utterances) + len(left_out))
    return sorted(utterances, key=lambda u: u.id), left_out


def _prepare(
    root: Path,
    lexicon: Path,
    splits: Splits,
    preparation: Preparation,
    progress: Progress,
    *,
    halve: bool = False,
) -> Corpus:
    wanted = [part for parts in splits.values() for part in parts]
    if absent := [part for part in dict.fromkeys(wanted) if not (root / part).is_dir()]:
        there = [path.name for path in sorted(root.iterdir()) if path.is_dir()]
        raise UserError(
            f"{root}: no folder {', '.join(absent)}; there are {', '.join(there) or 'none'}. Get the missing ones "
            "(`--download`), or choose with `--split NAME=PART`, for example `--split train=train-clean-100`."
        )
    if TRAIN not in splits:
        raise UserError(f"{root}: no training part here, or none chosen; name one: `--split train=train-clean-100`.")
    dictionary = read_lexicon(lexicon, strip_stress=True, case="upper")
    utterances: dict[str, list[Utterance]] = {}
    left_out: dict[str, list[LeftOut]] = {}
    for split, parts in splits.items():
        read = [read_part(root, part, preparation.options.on_bad, progress) for part in parts]
        utterances[split] = [u for found, _ in read for u in found]
        left_out[split] = [one for _, gone in read for one in gone]
    if halve:
        utterances["dev"], utterances["test"] = _halves(utterances["dev"])
    return prepare_utterances(ReadUtterances(utterances, left_out), dictionary, preparation, progress)


def _root(source: Path, parts: Sequence[str]) -> Path:
    for root in (checked_folder(source), source / "LibriSpeech"):
        if any((root / part).is_dir() for part in parts):
            return root
    raise UserError(
        f"{source}: none of {', '.join(parts)} is here or in LibriSpeech/. Name the folder that holds them, or add "
        "`--download`."
    )


def _splits_found(root: Path) -> dict[str, list[str]]:
    there = [part for part in PARTS if (root / part).is_dir()]
    train = [part for part in there if part in TRAIN_PARTS]
    others = {"dev" if part == "dev-clean" else part: [part] for part in there if part not in TRAIN_PARTS}
    return ({TRAIN: train} if train else {}) | others


def _halves(utterances: Sequence[Utterance]) -> tuple[list[Utterance], list[Utterance]]:
    """Divide utterances by reader: those of every second reader, and the others."""
    readers = sorted({u.speaker for u in utterances}, key=lambda name: (len(name), name))
    first = set(readers[::2])
    return [u for u in utterances if u.speaker in first], [u for u in utterances if u.speaker not in first]


def _transcripts(path: Path, problems: list[str]) -> dict[str, str]:
    """Read the words of a chapter's utterances, by id; faults are added to `problems`."""
    table, prefix = read_table(path, problems), path.name.removesuffix(".trans.txt")
    others = (name for name in table.values if not name.startswith(f"{prefix}-"))
    problems += [f"{table.at(name)}: {name} is not an utterance of {prefix}" for name in others]
    return {name: " ".join(text.split()) for name, text in table.values.items()}


def _genders(path: Path) -> dict[str, str]:
    """Return the readers' genders, m or f, as far as SPEAKERS.TXT has them; the file may be missing."""
    if not path.is_file():
        return {}
    rows = [line.split("|") for line in path.read_text(encoding="utf-8", errors="replace").split("\n")]
    found = {row[0].strip(): row[1].strip().lower() for row in rows if len(row) > 2 and not row[0].startswith(";")}
    return {reader: sex for reader, sex in found.items() if sex in ("m", "f")}


def _genders_of_table(path: Path) -> dict[str, str]:
    """Return the speakers' genders, m or f, from a table with the columns `speaker` and `gender`."""
    if not path.is_file():
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {row["speaker"]: row["gender"].lower() for row in rows if row.get("speaker") and row.get("gender")}


def _with_gender(utterance: Utterance, genders: Mapping[str, str]) -> Utterance:
    gender = utterance.gender or genders.get(utterance.speaker)
    return dataclasses.replace(utterance, gender=gender)


LIBRISPEECH = Reader(
    name="librispeech",
    about="Read audio books, 16 kHz, up to 960 hours to train on.",
    prepare=prepare_librispeech,
    takes=frozenset({"--source", "--lexicon", "--split", "--vocabulary"}),
    needs_lexicon=True,
    free=lambda parts: Wanted(parts_of(12, DIGESTS, parts or DOWNLOADED_PARTS), LEXICON),
    vocabulary="open",
    licence=LICENCE,
)
MINI_LIBRISPEECH = Reader(
    name="mini-librispeech",
    about="LibriSpeech in small: five hours to train on.",
    prepare=prepare_mini_librispeech,
    takes=LIBRISPEECH.takes,
    needs_lexicon=True,
    free=lambda parts: Wanted(parts_of(31, MINI_DIGESTS, parts or tuple(MINI_DIGESTS)), CMUDICT),
    vocabulary="transcripts",
    licence=LICENCE,
)
