"""A decoding that is not finished yet: settings that were tried and splits that are done, so that the same command goes
on from there.

OUT/decode/unfinished.json   what is decoded and how, errors by setting, names of splits; gone when all is done
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundelay import __version__
from roundelay.core.checksums import file_checksum, read_checked, write_checked
from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay_speech.decode.parallel import Search
from roundelay_speech.decode.tuning import Tried
from roundelay_speech.hmm.alignment import TREE
from roundelay_speech.prepared import CORPUS, Corpus
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.recognition.loglikelihoods import Models, Source
from roundelay_speech.scoring.formats.trn import read_trn, trn_name
from roundelay_speech.scoring.score import ErrorCounts
from roundelay_speech.trained import MODEL, UNITS

UNFINISHED = "unfinished.json"


@dataclass
class UnfinishedDecoding:
    """Results that are kept while a decoding is under way."""

    path: Path  # of its file
    identity: str  # of what is decoded, with which models and options
    # a row for each setting that was tried on held-out speech: the cost of a blank, its errors, its speed.
    tried: list[dict[str, Any]] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)  # those that are done, all of whose files are written

    @classmethod
    def of(cls, folder: Path, identity: str) -> "UnfinishedDecoding":
        """Return results that are kept in a folder, if it is of this very decoding; else nothing."""
        path = folder / UNFINISHED
        try:
            told = read_checked(path, "") if path.is_file() else {}
        except UserError:
            told = {}  # damaged: it is decoded anew
        if told.get("identity") != identity:
            return cls(path, identity)
        return cls(path, identity, list(told["tried"]), list(told["splits"]))

    def known(self, blank_cost: float) -> dict[Search, Tried]:
        """Return the settings that were tried with a cost of a blank, in their order."""
        return {
            build(Search, row["search"]): Tried(ErrorCounts(**row["errors"]), row["real_time_factor"])
            for row in self.tried
            if row["blank_cost"] == blank_cost
        }

    def keep_tried(self, blank_cost: float, search: Search, found: Tried) -> None:
        """Keep one more setting."""
        row = {"search": dataclasses.asdict(search), "errors": dataclasses.asdict(found.errors)}
        self.tried.append({"blank_cost": blank_cost, **row, "real_time_factor": found.real_time_factor})
        self._write()

    def keep_split(self, split: str) -> None:
        """Keep one more split, whose files are written."""
        self.splits.append(split)
        self._write()

    def done(self) -> None:
        """Remove the file: everything is decoded."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        told = {"identity": self.identity, "tried": self.tried, "splits": self.splits}
        write_checked(self.path, told, one_line=True)


def identity_of(recipe: Recipe, source: Source, corpora: Sequence[Corpus]) -> str:
    """Return a checksum of everything that decides the words of a decoding."""
    config = recipe.decode
    named = [path for path in (config.arpa, config.rescore, config.lexicon, *config.text) if path is not None]
    made_of = [corpus.folder / CORPUS for corpus in corpora]
    made_of += [member.exp / MODEL for member in source.members] if isinstance(source, Models) else []
    made_of += [] if recipe.unaligned else [recipe.aligned / TREE]
    told = [
        __version__,
        plain(config),
        source.told(),
        [file_checksum(path) for path in made_of],
        [[path.stat().st_size, path.stat().st_mtime_ns] for path in named],
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class WrittenSplit:
    """A split as its files tell: words and units by utterance, and decode.json."""

    words: dict[str, list[str]]
    units: dict[str, tuple[str, ...]]
    told: dict[str, Any]


def written_split(folder: Path, corpus: Corpus, split: str) -> WrittenSplit | None:
    """Return the results of a split that is done; None where its files are not whole."""
    try:
        heard, told = read_trn(folder / "hyp.trn"), read_json(folder / "decode.json")
        words = {u.id: list(heard[trn_name(u.id, u.speaker)]) for u in corpus.splits[split]}
        units = {}
        if (folder / UNITS).is_file():
            lines = (folder / UNITS).read_text(encoding="utf-8").split("\n")
            units = {line.split(" ")[0]: tuple(line.split(" ")[1:]) for line in lines if line}
        return WrittenSplit(words, units, told)
    except (UserError, KeyError, OSError, UnicodeDecodeError):
        return None


def kept_of(folder: Path) -> str:
    """Return results that an interrupted decoding has kept in its folder of results, in words; empty: nothing."""
    try:
        told = read_checked(folder / UNFINISHED, "")
    except UserError:
        return ""
    parts = [f"{len(told['tried'])} settings tried"] if told["tried"] else []
    parts += [f"the words of {', '.join(told['splits'])}"] if told["splits"] else []
    return " and ".join(parts)
