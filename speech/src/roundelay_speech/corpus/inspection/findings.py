"""Findings of an inspection: each with its fault, place and remedy."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from roundelay_speech.data.manifest import Utterance

Severity = Literal["error", "warning", "note"]
"""Severities: training stops or learns the wrong thing; results will be worse, or other than they look; good to know.
"""

INSPECTION_VERSION = 1


@dataclass(frozen=True)
class Finding:
    """An oddity of a corpus, and its remedy."""

    kind: str  # one word, for programs: rates, channels, silent, clipping, fit, speakers, audio, balance, ...
    severity: Severity
    split: str  # its split; "" for all of the corpus
    what: str  # a sentence, with numbers
    proposal: str  # a sentence: the option or the edit that mends it
    utterances: tuple[str, ...] = ()  # ids of all utterances concerned, if it is about some


@dataclass(frozen=True)
class SplitNumbers:
    """The size of a split; `women` and `men` are numbers of speakers, None if no gender is known."""

    utterances: int
    hours: float
    speakers: int
    women: int | None
    men: int | None
    words: int

    @classmethod
    def of(cls, utterances: Sequence[Utterance]) -> "SplitNumbers":
        """Count utterances, without copies at other speeds."""
        genders = {u.speaker: (u.gender or "").lower()[:1] for u in utterances}
        known = any(gender in ("f", "m") for gender in genders.values())
        return cls(
            utterances=len(utterances),
            hours=sum(u.duration for u in utterances) / 3600,
            speakers=len(genders),
            women=sum(gender == "f" for gender in genders.values()) if known else None,
            men=sum(gender == "m" for gender in genders.values()) if known else None,
            words=sum(len(u.words) for u in utterances),
        )


@dataclass(frozen=True)
class Inspection:
    """Result of inspecting a corpus: numbers of its splits, and findings, the gravest first."""

    corpus: str
    splits: dict[str, SplitNumbers]
    findings: tuple[Finding, ...] = ()
    unseen: tuple[str, ...] = field(default=())  # sentences: parts not looked at, and why

    @property
    def sound(self) -> bool:
        """True if nothing was found that stops training or spoils it."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def usable(self) -> bool:
        """True if nothing was found that stops training."""
        return all(finding.severity != "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the inspection for programs."""
        return {"version": INSPECTION_VERSION, "sound": self.sound, "usable": self.usable, **dataclasses.asdict(self)}


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings, the gravest first, else in the order given."""
    grave = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(findings, key=lambda finding: grave[finding.severity]))
