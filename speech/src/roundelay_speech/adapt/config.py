"""Options of speaker adaptation: the section `adapt` of a recipe."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from roundelay.core.errors import UserError

Unit = Literal["speaker", "utterance"]


@dataclass(frozen=True)
class AdaptConfig:
    """Speaker adaptation; the defaults suit an hour of speech, and give the widths of published systems.

    Attributes:
        dimension: features a frame of fMLLR, and of the mixtures behind it.
        context: frames on each side that these are projected from.
        sat_rounds: how often transforms and mixtures are estimated in turn (speaker adaptive training).
        em_rounds: rounds of EM for each transform.
        per: one transform for all utterances of a speaker, or one for each utterance, where speakers are not known.
        min_frames: of speech; of less than this the transform is the identity.
        silence_weight: of a frame of silence, where one of speech has 1.
        passes: how often held-out speech is decoded again with transforms that the words before gave.
        ivector_dimension: width of a speaker's vector; 0: no vectors.
        ivector_gaussians: components of the mixture that describes all speech.
        ivector_rounds: rounds of EM over training utterances.
        ivector_utterances: training utterances that these are drawn from, at most.
        ivector_train: what a training vector describes: an utterance, so that networks see many, or a speaker.
        workers: processes, 0 for as many as there are cores; changes no result.
    """

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
