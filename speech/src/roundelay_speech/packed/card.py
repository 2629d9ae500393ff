"""The card of a packed model: what it was trained on and how many errors it makes, for programs and for people; and
word errors of its runs, as a decoding left them, or by decoding now."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from roundelay import __version__
from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json, write_text
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.reports.charts import reliability_picture
from roundelay.reports.markup import render
from roundelay.run_directory import commit
from roundelay_speech.packed.folder import CARD, README, PackedModel, write_packed
from roundelay_speech.prepared import TRAIN, Corpus, numbers
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.recognition.recognise import recognise
from roundelay_speech.scoring.formats.trn import read_trn
from roundelay_speech.scoring.reliability import Reliability
from roundelay_speech.scoring.score import score
from roundelay_speech.scoring.summary import Summary, summarise

Run = tuple[Path, Recipe, float]
"""A run directory, its recipe, and the weight of its log-likelihoods."""

_PATHS = ("text", "arpa", "rescore", "lexicon")  # which may be written in other ways, seen from elsewhere
_FREE = ("workers", "nbest", "lattice", "ctm", "splits")  # options that change neither words nor settings


@dataclass(frozen=True)
class DecodedRuns:
    """Settings of the search, and the word errors of every split that was decoded with them."""

    scale: float
    word_cost: float
    beam: float
    max_active: int
    word_errors: Mapping[str, Summary]
    blank_cost: float = 0.0


def decoded_for(runs: Sequence[Run], given: Path | None, out: Path, progress: Progress) -> DecodedRuns:
    """Return the settings and word errors of several runs decoded together, from a folder or by decoding now.

    Args:
        runs: all with the same section `decode`, the first of weight 1.
        given: a folder of `roundelay decode --out` with the results; None: that of a single run, if it fits.
        out: a folder to decode into if there are no results.

    Raises:
        UserError: the given folder is of other runs, weights or options.
    """
    place = given if given is not None else runs[0][0] if len(runs) == 1 else None
    if place is not None:
        found, why = _read(place, runs)
        if found is not None:
            return found
        if given is not None:
            raise UserError(f"{given}: {why}. Decode these runs with these options, or leave --decoded out.")
    (exp, recipe, _), *others = runs
    recognise(exp, recipe, progress, others=others, out=out)
    found, why = _read(out, runs)
    assert found is not None, why
    return found


def _read(place: Path, runs: Sequence[Run]) -> tuple[DecodedRuns | None, str]:
    """Read the results in a folder; return None, and the reason, if they are not those of the runs."""
    recipe, told, found = runs[0][1], {}, {}
    for split in recipe.decode.splits:
        folder = place / "decode" / split
        if not (folder / "decode.json").is_file():
            return None, f"no results of the split {split} in {folder}"
        told = read_json(folder / "decode.json")
        if why := _other(told, runs):
            return None, f"{folder} has results {why}"
        found[split] = summarise(score(read_trn(folder / "ref.trn"), read_trn(folder / "hyp.trn")))
    if not told:
        return None, "decode.splits names no split"
    settings = (told["acoustic_scale"], told["word_cost"], told["beam"], told["max_active"])
    return DecodedRuns(*settings, found, told.get("blank_cost", 0.0)), ""


def _other(told: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """Return words on how decode.json's results differ from those of `runs`; "" if no difference is recorded."""
    total = sum(weight for *_, weight in runs)
    asked = Counter((exp.resolve().name, round(weight / total, 6)) for exp, _, weight in runs)
    there = Counter((Path(name).resolve().name, round(weight, 6)) for name, weight in told.get("runs", {}).items())
    if asked != there:
        return f"of other runs or weights ({', '.join(f'{name}:{weight:g}' for name, weight in sorted(there))})"
    wanted, used = _options(plain(runs[0][1].decode)), _options(told.get("options", {}))
    changed = [key for key in wanted if wanted[key] != used.get(key)]
    return f"made with other options (decode.{', decode.'.join(changed)})" if changed else ""


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of decoding that decide words and settings; paths as names of files."""
    return {
        key: [Path(str(one)).name for one in (value if isinstance(value, list | tuple) else [value])]
        if key in _PATHS
        else list(value)
        if isinstance(value, tuple)
        else value
        for key, value in options.items()
        if key not in _FREE
    }


PICTURE = "confidences.svg"


@dataclass(frozen=True)
class Vocabulary:
    """The words of a packed model."""

    words: int  # that can be recognised
    # grammar_order, grammar_ngrams: of the language model in the graph.
    grammar_order: int
    grammar_ngrams: int
    spells: bool  # whether pronunciations of further words can be guessed


@dataclass(frozen=True)
class Card:
    """The card of a packed model, content of card.json."""

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
    # gaussians by which transforms of speakers are estimated, and bytes they take; empty where networks hear none.
    adaptation: Mapping[str, int] = field(default_factory=dict)
    size: int = 0  # of the folder's files but the card's own, in bytes; 0 of a card of an earlier version

    def to_json(self) -> dict[str, Any]:
        """Return the card as a plain mapping."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the card as a page of Markdown."""
        told = {split: str(build(Reliability, dict(one), CARD)) for split, one in self.confidences.items()}
        picture = PICTURE if self.picture() else ""
        return str(render("roundelay_speech.packed/card.md", card=self, confidences=told, picture=picture))

    def picture(self) -> str:
        """Return a chart (SVG) of the reliability of the first split's confidences; "" if it has none."""
        for split, one in self.confidences.items():
            if bins := [(part["confidence"], part["right"], part["words"]) for part in one["bins"]]:
                return reliability_picture(bins, f"Share of right words over confidence, {split} of {self.name}")
        return ""


def write_model(folder: Path, card: Card, packed: PackedModel) -> None:
    """Write the card of a packed model and, last, packed.json, with the checksums of all files in the folder."""
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
    """Make the card of runs, from their corpus, settings and word errors."""
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
    """Return the word errors of a split in the form of a card."""
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
