"""Several networks as one model: the weighted mean of their log-likelihoods, as a packed combination searches them.

Legend: T frames, K kinds of features, F features of a kind, S tied states, or units and a blank.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.exporting.utterance import INPUTS, UtteranceScores, utterance_scores
from roundelay.packed.folder import PackedModel
from roundelay.speech.trained import AcousticModel


class CombinedScores(nn.Module):
    """Features (T, F), mean and standard deviation (F,) of each of K kinds in turn, to the weighted mean of what the
    networks say of them, (T, S) as `UtteranceScores`.

    Args:
        members: the networks.
        weights: of each; they sum to 1.
        heard: the kind of features that each hears, from 0 to K - 1.
    """

    def __init__(self, members: Sequence[UtteranceScores], weights: Sequence[float], heard: Sequence[int]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.weights, self.heard = tuple(weights), tuple(heard)

    @property
    def kinds(self) -> tuple[UtteranceScores, ...]:
        """A network of each kind of features."""
        return tuple(self._all[self.heard.index(kind)] for kind in range(max(self.heard) + 1))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what it takes: as of one network; of several kinds with the number of the kind behind."""
        return tuple(name for kind in range(len(self.kinds)) for name in self.inputs_of(kind))

    def inputs_of(self, kind: int) -> tuple[str, ...]:
        """Names of features, mean and standard deviation of a kind."""
        return INPUTS if len(self.kinds) == 1 else tuple(f"{name}_{kind + 1}" for name in INPUTS)

    @property
    def shortest(self) -> int:
        """Frames of the shortest utterance it takes."""
        return max(one.shortest for one in self._all)

    def forward(self, *given: Tensor) -> Tensor:
        found: list[Tensor] = []
        for member, weight, kind in zip(self._all, self.weights, self.heard, strict=True):
            part: Tensor = member(*given[kind * len(INPUTS) : (kind + 1) * len(INPUTS)])
            found.append(weight * part)
        total = found[0]
        for part in found[1:]:
            total = total + part
        return total

    @property
    def _all(self) -> list[UtteranceScores]:
        return [one for one in self.members if isinstance(one, UtteranceScores)]


def combined_scores(models: Sequence[AcousticModel], packed: PackedModel, folder: Path) -> CombinedScores:
    """The networks of the packed model in `folder`, as others call them.

    Raises:
        UserError: a network cannot be exported; they have rows for different frames.
    """
    members = [
        utterance_scores(model, str(folder / one.folder)) for model, one in zip(models, packed.networks, strict=True)
    ]
    rows = {one.network.subsampling for one in members}
    if len(rows) > 1:
        raise UserError(f"{folder}: its networks give a row for {' and '.join(map(str, sorted(rows)))} frames each.")
    kinds = [one.features for one in packed.networks]
    different = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    weights = [one.weight for one in packed.networks]
    return CombinedScores(members, weights, [different.index(kind) for kind in kinds]).eval()
