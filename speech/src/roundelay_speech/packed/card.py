"""The card of a packed model: what it was trained on and how many errors it makes, for programs and for people."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from roundelay import __version__
from roundelay.core.configure import build
from roundelay.core.files import write_json, write_text
from roundelay.core.records import Results
from roundelay.reports.markup import render
from roundelay.reports.reliability import reliability_picture
from roundelay.run_directory import commit
from roundelay_speech.packed.decoded import DecodedRuns, Run
from roundelay_speech.packed.folder import CARD, README, PackedModel, write_packed
from roundelay_speech.prepared import TRAIN, Corpus, numbers
from roundelay_speech.scoring.reliability import Reliability
from roundelay_speech.scoring.summary import Summary

PICTURE = "confidences.svg"


@dataclass(frozen=True)
class Vocabulary:
    """The words of a packed model.

    Attributes:
        grammar_order, grammar_ngrams: of the language model in the graph.
    """

    words: int  # that can be recognised
    grammar_order: int
    grammar_ngrams: int
    spells: bool  # whether pronunciations of further words can be guessed


@dataclass(frozen=True)
class Card:
    """Content of card.json."""

    name: str  # of the folder
    made_by: str
    commit: str
    licence: str
    sampling_rate: int
    corpus: Mapping[str, Any]  # name, and hours, speakers, utterances and words of its training split
    # of each, name, weight, network, strategy, learners, epochs and the commit it was trained by.
    runs: Sequence[Mapping[str, Any]]
    vocabulary: Vocabulary
    search: Mapping[str, float]  # settings, and the split they were chosen on
    word_errors: Mapping[str, Mapping[str, Any]]  # by split; counts, and percent
    finetuned: Sequence[Mapping[str, Any]] = ()  # of each training on, utterances, seconds, epochs and rate
    # by split, how true they are there (scoring/reliability.py); of splits that they were not fitted to.
    confidences: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    size: int = 0  # of the folder's files but the card's own, in bytes; 0 of a card of an earlier version

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping."""
        return asdict(self)

    def to_text(self) -> str:
        """Return a page of Markdown."""
        told = {split: str(build(Reliability, dict(one), CARD)) for split, one in self.confidences.items()}
        picture = PICTURE if self.picture() else ""
        return str(render("roundelay_speech.packed/card.md", card=self, confidences=told, picture=picture))

    def picture(self) -> str:
        """Return an SVG of how true the confidences of the first split are; empty where it has none."""
        for split, one in self.confidences.items():
            if bins := [(part["confidence"], part["right"], part["words"]) for part in one["bins"]]:
                return reliability_picture(bins, f"Share of right words over confidence, {split} of {self.name}")
        return ""


def write_model(folder: Path, card: Card, packed: PackedModel) -> None:
    """Write the card and, last, packed.json, with the checksums of all that is in the folder."""
    _write_card(folder, card)
    write_packed(folder, packed)  # as long as it will be: checksums are of one length
    own = (CARD, README, PICTURE)
    files = [path for path in folder.rglob("*") if path.is_file() and str(path.relative_to(folder)) not in own]
    _write_card(folder, replace(card, size=sum(path.stat().st_size for path in files)))
    write_packed(folder, packed)


def _write_card(folder: Path, card: Card) -> None:
    """Write the card for programs and for people, with its picture."""
    write_json(folder / CARD, card.to_json())
    write_text(folder / README, card.to_text())
    if picture := card.picture():
        write_text(folder / PICTURE, picture)
    else:
        (folder / PICTURE).unlink(missing_ok=True)  # of the model that this one was made of


def card_of(runs: Sequence[Run], own: Corpus, found: DecodedRuns, words: Vocabulary, licence: str, name: str) -> Card:
    """Return the card of runs with a corpus and word errors."""
    total = sum(weight for *_, weight in runs)
    return Card(
        name,
        f"roundelay {__version__}",
        commit(),
        licence or own.licence,
        own.sampling_rate,
        {"name": own.name, **numbers([u for u in own.splits[TRAIN] if not u.copied])},
        [_run(exp, recipe.model.name, weight / total) for exp, recipe, weight in runs],
        words,
        {
            "acoustic_scale": found.scale,
            "word_cost": found.word_cost,
            "beam": found.beam,
            "max_active": found.max_active,
            **({"blank_cost": found.blank_cost} if found.blank_cost else {}),
        },
        {split: errors_of(summary) for split, summary in found.word_errors.items()},
    )


def errors_of(summary: Summary) -> dict[str, Any]:
    """Return word errors of a split as a card has them."""
    e, interval = summary.score.errors, summary.interval
    return {
        "wer": e.wer,
        "errors": e.total,
        "words": e.ref,
        "insertions": e.ins,
        "deletions": e.del_,
        "substitutions": e.sub,
        "utterances": len(summary.score.utterances),
        "interval": None if interval is None else [interval.low, interval.high],
    }


def _run(exp: Path, network: str, weight: float) -> dict[str, Any]:
    told: dict[str, Any] = {"name": exp.resolve().name, "weight": weight, "network": network}
    results = Results.read(exp) if (exp / Results.FILE).is_file() else None
    return told | {
        "strategy": results.label if results else "unknown",
        "learners": results.learners if results else 0,
        "epochs": results.epochs if results else 0,
        "parameters": results.parameters if results else 0,
        "commit": results.commit if results else "unknown",
    }
