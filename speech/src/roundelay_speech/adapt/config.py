"""Options of speaker adaptation: the section `adapt` of a recipe."""

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from roundelay.core.bounds import Bounds, Count, NonNegative, Share, Whole
from roundelay.core.configure import check_values

Unit = Literal["speaker", "utterance"]


@dataclass(frozen=True)
class AdaptConfig:
    """Speaker adaptation; the defaults suit an hour of speech, and give the widths of published systems."""

    dimension: Count = 40
    """Features a frame of fMLLR, and of the mixtures behind it (docs/adaptation.md)."""
    context: Whole = 4
    """Frames on each side that these features are projected from."""
    sat_rounds: Count = 2
    """Times that speakers' transforms and mixtures are estimated in turn."""
    em_rounds: Count = 4
    """Rounds of EM for each transform."""
    per: Unit = "speaker"
    """One transform, and one vector of held-out speech, for all utterances of a speaker or, where speakers are not
    known, for each utterance by itself."""
    min_frames: NonNegative = 200.0
    """Frames of speech below which a speaker keeps the identity for a transform."""
    silence_weight: Share = 0.01
    """Weight of a frame of silence in a transform, where one of speech has 1."""
    passes: Count = 2
    """Times that held-out speech is decoded again with transforms that the words before gave."""
    ivector_dimension: Whole = 100
    """Width of a speaker's vector (i-vector); 0 for none."""
    ivector_gaussians: Count = 128
    """Components of the mixture that describes all speech."""
    ivector_rounds: Count = 8
    """Rounds of EM of the extractor."""
    ivector_utterances: Annotated[int, Bounds(least=2)] = 10_000
    """Training utterances that the extractor is trained on, at most."""
    ivector_train: Unit = "utterance"
    """Vector of a training utterance, its own or its speaker's."""
    seed: int = 0
    """Seed of random draws."""
    workers: Whole = field(default=0, compare=False)
    """Processes; 0 for one a core; changes no result."""

    def __post_init__(self) -> None:
        check_values(self, "adapt")

    def deciding(self) -> dict[str, Any]:
        """Return the fields that decide the result."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del fields["workers"]
        return fields
