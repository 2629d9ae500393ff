"""The corpus that is inspected: Kaldi data directories or a prepared corpus, faults included."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.corpus.checks import WITHOUT_SOUND
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir_with
from roundelay_speech.corpus.inspection.findings import Finding
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut, counted, listing
from roundelay_speech.lexicon.lexicon import Lexicon, case_of, read_lexicon
from roundelay_speech.prepared import CORPUS, TRAIN, load_corpus

_TABLES = ("text", "utt2spk")
_HELD_OUT = ("dev", "test")


@dataclass(frozen=True)
class InspectedCorpus:
    """Utterances as the files have them."""

    splits: Mapping[str, list[Utterance]]  # utterances by split, copies at other speeds left out
    root: Path  # what relative paths of audio are relative to
    audio: bool  # False where features were given instead
    lexicon: Lexicon | None  # None where no dictionary is known
    findings: tuple[Finding, ...]  # on what could not be read, and what reading it was remarked


def open_corpus(
    folder: Path, splits: Mapping[str, str], root: Path | None, lexicon: Path | None, progress: Progress
) -> InspectedCorpus:
    """Read a prepared corpus or Kaldi data directories.

    Args:
        folder: a prepared corpus; a data directory; or a folder of data directories.
        splits: name -> data directory inside `folder`; empty: all that are in it.
        root: what paths of `wav.scp` are relative to; None: `folder`.
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
            found += _unusable(split, gone, len(gone) + len(corpus.splits.get(split, ())), prepared=True)
        kept = {name: [u for u in some if not u.copied] for name, some in corpus.splits.items()}
        own = None if corpus.unlabelled else corpus.lexicon
        words = own if lexicon is None else _dictionary(lexicon, kept)
        return InspectedCorpus(kept, folder, corpus.audio, words, tuple(found))
    return _kaldi(folder, splits, folder if root is None else root, lexicon, progress)


def _dictionary(path: Path, splits: Mapping[str, list[Utterance]]) -> Lexicon:
    """Return the dictionary in the case of the transcripts, as `prepare` reads it."""
    return read_lexicon(path, case=case_of(word for some in splits.values() for u in some for word in u.words))


def _kaldi(
    folder: Path, wanted: Mapping[str, str], root: Path, lexicon: Path | None, progress: Progress
) -> InspectedCorpus:
    chosen = dict(wanted) or _directories(folder)
    splits: dict[str, list[Utterance]] = {}
    found: list[Finding] = []
    audio = True
    for split, directory in chosen.items():
        progress.start(f"reading {split}")
        try:
            read = read_data_dir_with(folder / directory, root, KaldiOptions(on_bad="skip"), progress)
        except UserError as error:
            found.append(Finding("files", "error", split, str(error).rstrip("."), "Mend the lines that are named."))
            continue
        finally:
            progress.finish()
        splits[split] = read.utterances
        audio = audio and read.matrices is None
        found += _unusable(split, read.left_out, len(read.utterances) + len(read.left_out), prepared=False)
        found += [
            Finding("channels", "warning", split, remark, "Name a channel, by the option or in `segments`.")
            for remark in read.remarks
        ]
    words = None if lexicon is None else _dictionary(lexicon, splits)
    return InspectedCorpus(splits, Path(), audio, words, (*found, *_absent(chosen, whole=wanted or len(chosen) > 1)))


def _directories(folder: Path) -> dict[str, str]:
    """Return data directories of a folder by the split they seem to be; the folder itself if it is one.

    Raises:
        UserError: there is none.
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


def _unusable(split: str, gone: list[LeftOut], of: int, *, prepared: bool) -> list[Finding]:
    if not gone:
        return []
    reasons = listing([one.reason for one in gone])
    ids = tuple(one.id for one in gone)
    if prepared:
        what = f"{split}: `prepare` left out {len(gone)} of {counted(of, 'utterance')}:\n{reasons}"
        return [Finding("unusable", "note", split, what, "Mend these and prepare it again, or do without them.", ids)]
    what = f"{split}: {len(gone)} of {counted(of, 'utterance')} cannot be used:\n{reasons}"
    proposal = "Mend these entries, or leave them out: `roundelay prepare ... --on-bad-audio skip`."
    return [Finding("unusable", "error", split, what, proposal, ids)]
