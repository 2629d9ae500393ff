"""Switchboard-1 release 2 (Godfrey et al. 1992; LDC97S62), with Fisher to train on and Hub5-2000 to test, where given.

    .../sw02001.sph (or sw2001.sph)     both sides of a call, 8 kHz mu-law
    .../sw2001A-ms98-a-trans.text       sw2001A-ms98-a-0001 START END words (Mississippi State, 1998)
    .../sw-ms98-dict.text               the pronunciation dictionary that goes with them
    .../call_con_tab.csv, caller_tab.csv    who called, and the callers' sex; they do no harm when they are missing

The LDC's own nesting of discs and folders does not matter: files are found by their names.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.corpus.build import ReadUtterances, prepare_utterances
from roundelay_speech.corpus.options import Preparation
from roundelay_speech.corpus.readers.base import Reader, Request
from roundelay_speech.corpus.readers.calls import Segment, Told, find_files, read_lines, times, to_utterances
from roundelay_speech.corpus.readers.fisher import KINDS as FISHER
from roundelay_speech.corpus.readers.fisher import read_fisher
from roundelay_speech.corpus.readers.hub5 import KINDS as HUB5
from roundelay_speech.corpus.readers.hub5 import read_hub5
from roundelay_speech.corpus.readers.transcript_rules import lexicon_of, words_of
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.lexicon.lexicon import Lexicon, parse_lexicon, read_lexicon
from roundelay_speech.prepared import TRAIN, Corpus

KINDS: Mapping[str, re.Pattern[str]] = {
    "audio": re.compile(r"sw0?\d{4}\.sph"),
    "text": re.compile(r"sw\d{4}[ab]-ms98-a-trans\.text"),
    "dictionary": re.compile(r"sw-ms98-dict\.text"),
    "sides": re.compile(r"call_con_tab\.csv"),
    "callers": re.compile(r"caller_tab\.csv"),
}
SUBSET = "swb"
DEV_UTTERANCES = 4000
"""Number of utterances held out of Switchboard-1, from the first calls on; of a smaller corpus, one in fifty."""
DEV_SHARE = 50
LICENCE = "Linguistic Data Consortium, for members and licensees only (LDC97S62 and those beside it)."
REFERENCE, RULES = "test.stm", "test.glm"
AUDIO = "audio"


def prepare_switchboard(request: Request, progress: Progress) -> Corpus:
    """Prepare Switchboard-1: `train` (with Fisher), `dev` (calls of Switchboard-1 held out), `test` (Hub5-2000). A
    lexicon that the user names replaces the dictionary that comes with the transcripts.

    Raises:
        UserError: no transcripts, dictionary or audio; faults in them (all are listed).
    """
    sources, data, on_bad = (request.folder, *request.also), request.data, request.options.on_bad
    found = find_files(sources, {**KINDS, **FISHER, **HUB5})
    where = ", ".join(map(str, sources))
    if not found["text"]:
        raise UserError(f"{where}: no transcripts named like sw2001A-ms98-a-trans.text; name their folder with --also.")
    dictionary = _dictionary(found["dictionary"], request.lexicon, where)
    audio = {_call(name): path for name, path in found["audio"].items()}
    told = read_switchboard(found["text"], _genders(found), dictionary, progress)
    folder = data / AUDIO
    switchboard, gone = to_utterances(told, audio, folder, on_bad, progress, "Switchboard-1")
    dev, train = _held_out(switchboard, where)
    splits = {TRAIN: train, "dev": dev}
    left_out: dict[str, list[LeftOut]] = {TRAIN: gone}
    if found["fisher_text"]:
        fisher = read_fisher(found["fisher_text"], found["fisher_table"], progress)
        more, gone = to_utterances(fisher, _stems(found["fisher_audio"]), folder, on_bad, progress, "Fisher")
        train += more
        left_out[TRAIN] += gone
    if found["hub5_reference"]:
        reference = next(iter(found["hub5_reference"].values()))
        hub5 = read_hub5(reference, progress)
        splits["test"], left_out["test"] = to_utterances(
            hub5, _stems(found["hub5_audio"]), folder, on_bad, progress, "Hub5-2000"
        )
        _copy(reference, data / REFERENCE)
        if found["hub5_rules"]:
            _copy(next(iter(found["hub5_rules"].values())), data / RULES)
    found_utterances = ReadUtterances(splits, left_out)
    preparation = Preparation(data, "switchboard", LICENCE, request.options)
    return prepare_utterances(found_utterances, lexicon_of(dictionary), preparation, progress)


def read_switchboard(
    texts: Mapping[str, Path], genders: Mapping[tuple[str, str], str], dictionary: Lexicon, progress: Progress
) -> Told:
    """Return the segments of all Mississippi State transcripts; `genders` by call number and side."""
    told = Told()
    progress.start("reading Switchboard-1 transcripts", len(texts))
    for name in sorted(texts):
        number, side = name[2:6], name[6].upper()
        call = f"sw0{number}"
        for line_number, line in read_lines(texts[name]):
            where, fields = f"{texts[name]}:{line_number}", line.split(maxsplit=3)
            span = times(fields[1], fields[2]) if len(fields) >= 3 else None
            if span is None or not fields[0].lower().startswith(f"sw{number}{side.lower()}-"):
                told.problems.append(f"{where}: not `sw{number}{side}-ms98-a-NNNN START END words` but `{line[:60]}`")
                continue
            words = tuple(words_of(fields[3] if len(fields) > 3 else "", dictionary))
            told.add(Segment(call, side, *span, words, where, call, genders.get((number, side)), SUBSET))
        progress.advance()
    progress.advance(0, told.note())
    progress.finish()
    return told


def _dictionary(found: Mapping[str, Path], given: Path | None, where: str) -> Lexicon:
    if given is not None:
        return read_lexicon(given, strip_stress=True)
    if not found:
        raise UserError(f"{where}: no sw-ms98-dict.text; name its folder with --also, or a dictionary with --lexicon.")
    path = next(iter(found.values()))
    # A word without phones in it is passed over: if a transcript needs the word, that is said there.
    lines = [line for _, line in read_lines(path) if len(line.split()) > 1]
    return parse_lexicon("\n".join(lines), str(path))


def _genders(found: Mapping[str, Mapping[str, Path]]) -> dict[tuple[str, str], str]:
    """Return the gender, m or f, by (call number, side), from the tables of callers."""
    rows = {
        kind: [
            [one.strip(' "') for one in line.split(",")]
            for path in found[kind].values()
            for _, line in read_lines(path)
        ]
        for kind in ("sides", "callers")
    }
    sexes = {row[0]: row[3][:1].lower() for row in rows["callers"] if len(row) > 3}
    named = {(row[0], row[1].upper()): sexes.get(row[2], "") for row in rows["sides"] if len(row) > 2}
    return {side: sex for side, sex in named.items() if sex in ("m", "f")}


def _held_out(utterances: Sequence[Utterance], where: str) -> tuple[list[Utterance], list[Utterance]]:
    """Divide utterances into those of the first calls, which are held out, and the others."""
    wanted = min(DEV_UTTERANCES, len(utterances) / DEV_SHARE)
    calls: dict[str, list[Utterance]] = {}
    for utterance in utterances:
        calls.setdefault(utterance.recording_id, []).append(utterance)
    if len(calls) < 2:
        raise UserError(
            f"{where}: {len(calls)} call(s) of Switchboard-1 with audio; one to hold out and more are needed."
        )
    dev: list[Utterance] = []
    train: list[Utterance] = []
    for call in sorted(calls):
        (dev if len(dev) < wanted else train).extend(calls[call])
    return dev, train


def _call(name: str) -> str:
    """Return the name of a call, the same for sw02001.sph and sw2001.sph."""
    return f"sw0{name.removesuffix('.sph')[-4:]}"


def _stems(files: Mapping[str, Path]) -> dict[str, Path]:
    return {name.removesuffix(".sph"): path for name, path in files.items()}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


SWITCHBOARD = Reader(
    name="switchboard",
    about="Telephone conversations, 8 kHz, with Fisher to train on and Hub5-2000 to test.",
    prepare=prepare_switchboard,
    takes=frozenset({"--source", "--also", "--lexicon", "--vocabulary"}),
    vocabulary="open",
    licence=LICENCE,
)
