"""An acoustic model as other programs call it: features of an utterance in, log-likelihoods of its frames out.

Several networks are one model by the weighted mean of their log-likelihoods, as a packed combination searches them.

Legend: T frames, K kinds of features, F features of a kind, S tied states, or units and a blank, R frames that a
network needs on each side.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay_speech.models.network import AcousticNetwork, FrameNetwork, SequenceNetwork
from roundelay_speech.packed.folder import PackedModel
from roundelay_speech.trained import AcousticModel

INPUTS, OUTPUT = ("features", "mean", "std"), "log_likelihoods"


class UtteranceScores(nn.Module):
    """A module from stored features (T, F), with the mean and standard deviation (F,) of their speaker, to log p(state
    | frame) - log p(state), (T, S): the scores that `roundelay decode` gives its search. Of a network with subsampling
    there are T / subsampling rows, rounded up.

    Args:
        prior: log p(state), (S,).
    """

    prior: Tensor

    def __init__(self, network: AcousticNetwork, prior: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("prior", prior)

    @property
    def shortest(self) -> int:
        """Frames of the shortest utterance that the module takes: they make two rows of scores."""
        return self.network.subsampling + 1

    def forward(self, features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        network = self.network
        if isinstance(network, FrameNetwork):
            scores = self._windows(network, features, mean, std)
        else:
            assert isinstance(network, SequenceNetwork)
            scores = self._sequence(network, features, mean, std)
        found: Tensor = scores.log_softmax(-1) - self.prior
        return found

    def _windows(self, network: FrameNetwork, features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        frames, reach = features.shape[0], network.frontend.config.reach
        at = torch.arange(frames)[:, None] + torch.arange(2 * reach + 1)
        windows = _longer(features, reach, reach)[at]
        scores: Tensor = network(windows, mean.expand(frames, -1), std.expand(frames, -1))
        return scores

    def _sequence(self, network: SequenceNetwork, features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        frames, whole = features.shape[0], network.pieces.at_test
        before = whole.left if whole.fill else 0
        sequence = _longer(features, network.reach + before, network.reach)[None]
        length = torch.full((1,), frames + before, dtype=torch.int64)
        rows = (frames + network.subsampling - 1) // network.subsampling
        scores: Tensor = network(sequence, mean[None], std[None], length, torch.arange(rows) + before)
        return scores


def _longer(features: Tensor, before: int, after: int) -> Tensor:
    """Extend an utterance by repeating its first and its last frame."""
    return torch.cat([features[:1].expand(before, -1), features, features[-1:].expand(after, -1)])


def utterance_scores(model: AcousticModel, name: str) -> UtteranceScores:
    """Return the model of the run or folder `name` in the form that other programs call.

    Raises:
        UserError: the model is decoded in overlapping windows, not in one pass.
    """
    network = model.module
    if isinstance(network, SequenceNetwork) and network.pieces.at_test.chunk is not None:
        raise UserError(
            f"{name}: it was trained on pieces of utterances (model.chunk) and is decoded in overlapping windows; "
            "an exported model reads whole utterances. Export one that was trained with model.chunk=null."
        )
    return UtteranceScores(network, torch.from_numpy(model.prior)).eval()


class CombinedScores(nn.Module):
    """A module from features (T, F), mean and standard deviation (F,) of each of K kinds in turn, to the weighted mean
    of the networks' scores of them, (T, S) as `UtteranceScores`.

    Args:
        members: the networks.
        weights: weight of each network; they sum to 1.
        heard: number of each network's kind of features, from 0 to K - 1.
    """

    def __init__(self, members: Sequence[UtteranceScores], weights: Sequence[float], heard: Sequence[int]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.weights, self.heard = tuple(weights), tuple(heard)

    @property
    def kinds(self) -> tuple[UtteranceScores, ...]:
        """One network for each kind of features."""
        return tuple(self._all[self.heard.index(kind)] for kind in range(max(self.heard) + 1))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs: as for one network; with several kinds, followed by the number of the kind."""
        return tuple(name for kind in range(len(self.kinds)) for name in self.inputs_of(kind))

    def inputs_of(self, kind: int) -> tuple[str, ...]:
        """Return the names of the inputs of a kind: features, mean and standard deviation."""
        return INPUTS if len(self.kinds) == 1 else tuple(f"{name}_{kind + 1}" for name in INPUTS)

    @property
    def shortest(self) -> int:
        """Frames of the shortest utterance that the module takes."""
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
    """Return the networks of the packed model in `folder`, combined in the form that other programs call.

    Raises:
        UserError: a network cannot be exported; or networks have rows for different frames.
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
