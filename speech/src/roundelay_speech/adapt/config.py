"""Options of speaker adaptation: the section `adapt` of a recipe."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from roundelay.core.errors import UserError

Unit = Literal["speaker", "utterance"]


@dataclass(frozen=True)
class AdaptConfig:
    """Speaker adaptation; the defaults suit an hour of speech, and give the widths of published systems."""

    dimension: int = 40
    context: int = 4
    sat_rounds: int = 2
    em_rounds: int = 4
    per: Unit = "speaker"
    min_frames: float = 200.0
    silence_weight: float = 0.01
    passes: int = 2
    ivector_dimension: int = 100
    ivector_gaussians: int = 128
    ivector_rounds: int = 8
    ivector_utterances: int = 10_000
    ivector_train: Unit = "utterance"
    seed: int = 0
    workers: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        problems = [
            f"adapt.{name} is {getattr(self, name)}: give {least} or more"
            for name, least in (
                ("dimension", 1),
                ("context", 0),
                ("sat_rounds", 1),
                ("em_rounds", 1),
                ("min_frames", 0),
                ("passes", 1),
                ("ivector_dimension", 0),
                ("ivector_gaussians", 1),
                ("ivector_rounds", 1),
                ("ivector_utterances", 2),
                ("workers", 0),
            )
            if not getattr(self, name) >= least
        ]
        if not 0 <= self.silence_weight <= 1:
            problems.append(f"adapt.silence_weight is {self.silence_weight}: give a number from 0 to 1")
        if problems:
            raise UserError(f"{'; '.join(problems)}.")

    def deciding(self) -> dict[str, Any]:
        """Return the fields that decide the result."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del fields["workers"]
        return fields
