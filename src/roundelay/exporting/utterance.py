"""An acoustic model as other programs call it: features of an utterance in, log-likelihoods of its frames out.

Legend: T frames, F features, S tied states, or units and a blank, R frames that a network needs on each side.
"""

import torch
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.speech.models.network import AcousticNetwork, FrameNetwork, SequenceNetwork
from roundelay.speech.trained import AcousticModel

INPUTS, OUTPUT = ("features", "mean", "std"), "log_likelihoods"


class UtteranceScores(nn.Module):
    """Features as they are stored (T, F), with the mean and standard deviation (F,) of their speaker, to
    log p(state | frame) - log p(state), (T, S): what `roundelay decode` gives its search. Of a network with subsampling
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
        """Frames of the shortest utterance it takes: they make two rows of scores."""
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
    """An utterance goes on with its first and its last frame."""
    return torch.cat([features[:1].expand(before, -1), features, features[-1:].expand(after, -1)])


def utterance_scores(model: AcousticModel, name: str) -> UtteranceScores:
    """The model of the run or folder `name`, as others call it.

    Raises:
        UserError: it is decoded in overlapping windows, not in one pass.
    """
    network = model.module
    if isinstance(network, SequenceNetwork) and network.pieces.at_test.chunk is not None:
        raise UserError(
            f"{name}: it was trained on pieces of utterances (model.chunk) and is decoded in overlapping windows; "
            "an exported model reads whole utterances. Export one that was trained with model.chunk=null."
        )
    return UtteranceScores(network, torch.from_numpy(model.prior)).eval()
