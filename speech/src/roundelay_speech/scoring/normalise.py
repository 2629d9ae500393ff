"""References and hypotheses of one split, from a run directory or from files, made ready to be scored."""

import dataclasses
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay_speech.scoring.alignment.align import FEWEST, SCLITE
from roundelay_speech.scoring.alignment.counts import Score, Texts, score
from roundelay_speech.scoring.alignment.groups import Group, Groups
from roundelay_speech.scoring.formats.ctm import read_ctm
from roundelay_speech.scoring.formats.glm import Purpose, read_glm
from roundelay_speech.scoring.formats.stm import GAP_SPEAKER, cut_at_segments, read_stm
from roundelay_speech.scoring.formats.trn import read_trn

GROUPS_FILE = "groups.json"
"""File beside the trn files of a decoding, with speaker, subset and gender by name."""


@dataclass(frozen=True)
class Rules:
    """The rules of comparing words: mappings, marks, case, costs."""

    # mapping rules for both sides. They imply `marked`, and hyphenated words are split unless `keep_hyphens`.
    glm: Path | None = None
    keep_hyphens: bool = False
    marked: bool = False  # whether `{ a / b }`, `(word)` and `word-` have the meanings of `marks`
    ignore_case: bool = False  # whether upper and lower case are the same, and characters that look the same (NFC)
    sclite_costs: bool = False  # align as sclite does, instead of with the fewest errors
    missing: Literal["error", "empty"] = "error"  # what an utterance, or a channel, without a hypothesis means


@dataclass(frozen=True)
class Case:
    """A case to score: references and hypotheses of one split, or of one pair of files."""

    name: str
    refs: Texts
    hyps: Texts
    groups: Groups
    marked: bool = False  # whether the reference is in a format whose marks always have a meaning

    def score(self, rules: Rules) -> Score:
        """Score the hypotheses against the references by these rules.

        Raises:
            UserError: as `counts.score` and `glm.read_glm`.
        """
        refs, hyps = _rewritten(self.refs, "ref", rules), _rewritten(self.hyps, "hyp", rules)
        marked = self.marked or rules.marked or rules.glm is not None
        costs = SCLITE if rules.sclite_costs else FEWEST
        return score(refs, hyps, rules.missing, marked=marked, costs=costs)


def _rewritten(texts: Texts, purpose: Purpose, rules: Rules) -> Texts:
    if rules.glm is not None:
        texts = read_glm(rules.glm, purpose).apply_to_all(texts, split_hyphens=not rules.keep_hyphens)
    if rules.ignore_case:
        texts = {name: [unicodedata.normalize("NFC", word.upper()) for word in words] for name, words in texts.items()}
    return texts


def cases_of_run(exp: Path) -> list[Case]:
    """Return every decoded split of a run directory.

    Raises:
        UserError: nothing is decoded in the run, or a file is damaged.
    """
    found = sorted((exp / "decode").glob("*/hyp.trn"))
    if not found:
        raise UserError(f"{exp}: nothing decoded here. Run `roundelay decode {exp}` first.")
    return [case_of_trn(hyp.with_name("ref.trn"), hyp) for hyp in found]


def case_of_trn(ref: Path, hyp: Path) -> Case:
    """Read a case from a pair of trn files. Speakers and subsets come from `groups.json` beside the hypotheses, or from
    the names."""
    groups_file = hyp.with_name(GROUPS_FILE)
    groups = read_groups(groups_file) if groups_file.is_file() else {}
    return Case(str(hyp), read_trn(ref), read_trn(hyp), groups)


def case_of_times(stm: Path, ctm: Path, missing: Literal["error", "empty"] = "error") -> Case:
    """Read a case from reference segments and recognised words with times; each word belongs to the segment of its
    midpoint."""
    cut = cut_at_segments(read_stm(stm), read_ctm(ctm), silent=missing == "empty")
    if not cut.segments:
        raise UserError(f"{stm}: there is no segment to score.")
    groups = {name: Group(segment.speaker, segment.subset) for name, segment in cut.segments.items()}
    # A gap that collected nothing is no utterance without an error: it would dilute the sentence errors.
    quiet = {
        name for name, s in cut.segments.items() if s.speaker == GAP_SPEAKER and not cut.hyps[name] and not s.words
    }
    refs, hyps = ({name: w for name, w in side.items() if name not in quiet} for side in (cut.refs, cut.hyps))
    return Case(str(ctm), refs, hyps, groups, marked=True)


def write_groups(path: Path, groups: Groups) -> None:
    """Write speaker, subset and gender of each utterance as JSON."""
    write_json(path, {name: dataclasses.asdict(group) for name, group in groups.items()})


def read_groups(path: Path) -> dict[str, Group]:
    """Read the groups of utterances that `write_groups` wrote.

    Raises:
        UserError: the file is not in the form of `write_groups`; names the utterance.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected speakers by utterance. Run `roundelay decode` again to rewrite it.")
    return {name: _group(f"{path}: {name}", item) for name, item in value.items()}


def _group(where: str, value: object) -> Group:
    if isinstance(value, Mapping):
        speaker, subset, gender = value.get("speaker"), value.get("subset"), value.get("gender")
        if isinstance(speaker, str) and isinstance(subset, str | None) and isinstance(gender, str | None):
            return Group(speaker, subset, gender)
    raise UserError(f"{where}: expected a speaker and a subset. Run `roundelay decode` again to rewrite it.")
