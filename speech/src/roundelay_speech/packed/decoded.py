"""Word errors of runs and the settings they were made with: as a decoding left them, or by decoding now."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Progress
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.recognition.recognise import recognise
from roundelay_speech.scoring.formats.trn import read_trn
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
    """Return the results of these runs together.

    Args:
        runs: all with the same section `decode`, the first of weight 1.
        given: a folder of `roundelay decode --out` to take them from; None: that of a run alone, if it fits.
        out: a folder to decode into where there are none.

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
    """Return the results in a folder; or None, and the reason why they are not those of the runs."""
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
    """Return the ways in which results are not those of these runs; empty: none that is written down."""
    total = sum(weight for *_, weight in runs)
    asked = Counter((exp.resolve().name, round(weight / total, 6)) for exp, _, weight in runs)
    there = Counter((Path(name).resolve().name, round(weight, 6)) for name, weight in told.get("runs", {}).items())
    if asked != there:
        return f"of other runs or weights ({', '.join(f'{name}:{weight:g}' for name, weight in sorted(there))})"
    wanted, used = _options(plain(runs[0][1].decode)), _options(told.get("options", {}))
    changed = [key for key in wanted if wanted[key] != used.get(key)]
    return f"made with other options (decode.{', decode.'.join(changed)})" if changed else ""


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide words and settings; paths by the names of their files."""
    return {
        key: [Path(str(one)).name for one in (value if isinstance(value, list | tuple) else [value])]
        if key in _PATHS
        else list(value)
        if isinstance(value, tuple)
        else value
        for key, value in options.items()
        if key not in _FREE
    }
