"""Base of all acoustic networks: a front end, scores of tied states, and how they want their frames.

A network that sees a bounded number of frames after each one needs no end of the utterance. It is given frames as they
come, in parts of any size, and gives the scores that it gives for all of them at once, to rounding.

Legend: T frames that come, B rows of scores, F stored features, S tied states or units, R frames of features that the
network's first layer looks at on each side.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.core.configure import check_values
from roundelay.core.errors import UserError
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.models.frames import FrameExamples, OrderName, Split, cut_windows
from roundelay_speech.models.frontend import Columns, Frontend, FrontendConfig
from roundelay_speech.models.sequences import (
    LabelledUtterances,
    Pieces,
    SequenceExamples,
    UtteranceExamples,
    whole_utterance,
    whole_utterances,
)


class Streamed(ABC):
    """An evaluation of one utterance as its frames come; for a single use.

    Args:
        reach: R, frames of features needed on each side.
        chunk: frames that are evaluated together; scores of the first of them wait for the last.
        columns: S.
        least: frames of a chunk at least, where chunks may be of any size; None: all are of that size.
    """

    def __init__(self, reach: int, chunk: int, columns: int, least: int | None = None) -> None:
        self._reach, self._chunk, self._columns, self._least = reach, chunk, columns, least
        self._held: Tensor | None = None  # (R + frames that wait + R that are known, F)

    @property
    def delay(self) -> int:
        """Number of frames that must have come before the first frame of a chunk has scores: the chunk and its right
        context."""
        return self._chunk + self._reach

    def push(self, features: Tensor, *, last: bool = False, together: bool = False) -> Tensor:
        """Return scores (B, S) that frames (T, F), after all that came before, decide.

        Args:
            last: nothing follows: frames that wait for others are evaluated without them.
            together: evaluate all frames that wait as one chunk, where chunks may be of any size.
        """
        if self._held is None:
            if not len(features):
                return torch.zeros((0, self._columns))
            self._held = features[:1].expand(self._reach, -1)
        held = torch.cat([self._held, features])
        if last:
            held = torch.cat([held, held[-1:].expand(self._reach, -1)])
        waiting = len(held) - 2 * self._reach
        least = self._least if together else None
        step = self._chunk if least is None else least
        ready = max(0, waiting if last else waiting // step * step)
        self._held = held[ready:]
        if not ready:
            return torch.zeros((0, self._columns))
        with torch.inference_mode():
            return self._scores(held[: ready + 2 * self._reach], self._chunk if least is None else ready)

    @abstractmethod
    def _scores(self, features: Tensor, chunk: int) -> Tensor:
        """Return scores (B, S) of the frames in the middle of these (R + T + R, F), in chunks of so many frames: whole
        ones, the very last one excepted."""


class AcousticNetwork(nn.Module, ABC):
    """The base of acoustic networks: from the inputs of B frames to their scores (B, S). Nothing is kept from call to
    call."""

    frontend: Frontend
    subsampling: int = 1
    """Number of frames of features for one row of scores."""
    same_operations: bool = False
    """True if the network does the same operations for all inputs of a shape: see `roundelay.learner.gradient_graphs`.
    """

    @property
    def output_layer(self) -> str:
        """Name of the linear layer whose outputs are the scores."""
        return "output"

    @property
    def columns(self) -> int:
        """S, the scores of a row."""
        layer = self.get_submodule(self.output_layer)
        assert isinstance(layer, nn.Linear)
        return layer.out_features

    def reset(self) -> None:
        """Draw new parameters: torch's own for each layer; the output layer small, so that training starts near the
        uniform distribution."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LSTM | nn.Conv1d | nn.LayerNorm):
                part.reset_parameters()
        output = self.get_submodule(self.output_layer)
        assert isinstance(output, nn.Linear)
        small_output(output)

    @abstractmethod
    def examples(
        self, store: FeatureStore, labels: NDArray[np.int32], splits: Mapping[str, Split], order: OrderName = "shuffle"
    ) -> FrameExamples | SequenceExamples:
        """Return the labelled frames of all splits as examples that this network can train on, in an `order`."""

    def utterances(self, store: FeatureStore, splits: Mapping[str, LabelledUtterances]) -> UtteranceExamples:
        """Return the labelled utterances of all splits as examples, each whole.

        Raises:
            UserError: the network does not train on whole utterances.
        """
        raise UserError(
            "training.objective needs whole utterances, which this model does not train on: choose model.name=blstm, "
            "conformer or tdnnf, with model.chunk=null."
        )

    @abstractmethod
    def whole(self, store: FeatureStore, utterance: str) -> tuple[Tensor, ...]:
        """Return the inputs for all rows of scores of an utterance, in order."""

    def streamed(self, mean: Tensor, std: Tensor) -> Streamed | None:
        """Return an evaluation of one utterance as its frames come, of a speaker of this mean (F,) and standard
        deviation (F,); None: the network needs the whole utterance."""
        del mean, std
        return None

    def in_chunks(self, frames: int) -> "AcousticNetwork":
        """Return the network with the same parameters, evaluated in chunks of so many frames.

        Raises:
            UserError: the network was not trained for that.
        """
        raise UserError(
            f"Chunks of {frames} frames: this {type(self).__name__.lower()} was not trained for them. A conformer that "
            "was trained with model.dynamic_chunks=true can be evaluated in chunks of any size."
        )


class NetworkConfig(ABC):
    """The section `model` of a recipe: a frozen dataclass of the options of one network, which makes it.

    The first field is `name`, whose single value chooses the network.
    """

    name: str
    """Name of the network (`roundelay list models`, docs/models.md)."""

    def __post_init__(self) -> None:
        check_values(self, "model")

    @abstractmethod
    def network(self, features: Columns, states: int) -> AcousticNetwork:
        """Make the network for these stored features, and `states` tied states.

        Raises:
            UserError: the network cannot be built for these features.
        """


class FrameNetwork(AcousticNetwork):
    """The base of networks with a window around each frame: windows (B, W, F), speaker mean (B, F) and standard
    deviation (B, F)."""

    def examples(
        self, store: FeatureStore, labels: NDArray[np.int32], splits: Mapping[str, Split], order: OrderName = "shuffle"
    ) -> FrameExamples:
        return FrameExamples(store, labels, splits, self.frontend.config, order)

    def whole(self, store: FeatureStore, utterance: str) -> tuple[Tensor, ...]:
        first, frames = store.span(utterance)
        reach = self.frontend.config.reach
        return cut_windows(store, np.arange(first, first + frames), np.arange(-reach, reach + 1))

    def streamed(self, mean: Tensor, std: Tensor) -> Streamed:
        return _StreamedWindows(self, mean, std)


@final
class _StreamedWindows(Streamed):
    """An evaluation of one utterance by windows, each as soon as it is whole."""

    def __init__(self, network: FrameNetwork, mean: Tensor, std: Tensor) -> None:
        super().__init__(network.frontend.config.reach, 1, network.columns)
        self._network, self._mean, self._std = network, mean, std

    def _scores(self, features: Tensor, chunk: int) -> Tensor:
        del chunk  # every frame is evaluated by itself
        windows = features.unfold(0, 2 * self._reach + 1, 1).transpose(1, 2)
        several = self._mean.expand(len(windows), -1), self._std.expand(len(windows), -1)
        scores: Tensor = self._network(windows, *several)
        return scores


class SequenceNetwork(AcousticNetwork):
    """The base of networks over sequences: features (N, T + 2 R, F), speaker mean (N, F), standard deviation (N, F),
    lengths (N,), and which of the N x T frames, rows first, are wanted (B,). Frames beyond a sequence's length have no
    influence.

    Args:
        deltas: orders of deltas beside the static features.
        context: further frames on each side that the network's first layer sees.
        pieces: how utterances are cut for training.
        subsampling: number of frames that `stacked` makes one before the first layer; `index` numbers the stacked ones.
            More than 1 is for whole utterances.
    """

    def __init__(self, features: Columns, deltas: int, context: int, pieces: Pieces, subsampling: int = 1) -> None:
        super().__init__()
        self.frontend = Frontend(FrontendConfig(context=0, order=deltas), features)
        self.pieces, self.reach = pieces, self.frontend.config.reach + context
        self.subsampling = subsampling

    def examples(
        self, store: FeatureStore, labels: NDArray[np.int32], splits: Mapping[str, Split], order: OrderName = "shuffle"
    ) -> SequenceExamples:
        return SequenceExamples(store, labels, splits, self.reach, self.pieces, order)

    def utterances(self, store: FeatureStore, splits: Mapping[str, LabelledUtterances]) -> UtteranceExamples:
        if self.pieces.chunk is not None:
            return super().utterances(store, splits)
        return UtteranceExamples(store, splits, self.reach, self.subsampling)

    def whole(self, store: FeatureStore, utterance: str) -> tuple[Tensor, ...]:
        if self.subsampling > 1:
            return whole_utterances(store, np.array([store.position(utterance)]), self.reach, self.subsampling)[0]
        return whole_utterance(store, utterance, self.pieces.at_test, self.reach)

    @abstractmethod
    def forward(self, features: Tensor, mean: Tensor, std: Tensor, lengths: Tensor, index: Tensor) -> Tensor:
        """Return the scores (B, S) of the wanted frames."""


def stacked(x: Tensor, lengths: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Stack `number` neighbouring frames of sequences (N, T, I) with these lengths (N,): return (N, T', number I), T' =
    T / number rounded up, and the new lengths (N,). Missing frames at an end are zero."""
    if number == 1:
        return x, lengths
    time = torch.arange(x.shape[1], device=x.device)
    x = x.masked_fill((time >= lengths[:, None])[:, :, None], 0.0)
    rows = (x.shape[1] + number - 1) // number  # in no other form can torch.export reason about any number of frames
    x = nn.functional.pad(x, (0, 0, 0, rows * number - x.shape[1]))
    return x.reshape(x.shape[0], rows, number * x.shape[2]), -(-lengths // number)


def small_output(layer: nn.Linear) -> None:
    """Draw the output layer small, so that training starts near the uniform distribution."""
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layer.weight.mul_(0.1)
