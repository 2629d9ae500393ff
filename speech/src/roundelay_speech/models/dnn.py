"""The feed-forward network of Li et al. 2017: spliced filterbanks with deltas, ReLU layers, softmax over tied states.

    (B, 11, 120) = (B, 1320) -> [Linear H, ReLU, dropout] x layers -> Linear S

Published size: 6 layers of 1024, 40 filterbanks with two deltas, 11 frames, 5,723 tied states: 12.5 million parameters
(the paper prints about 13.5).

Legend: B frames, W window, F features, S tied states, H hidden units.
"""

from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor, nn

from roundelay.core.bounds import Count, ShareBelowOne, Whole
from roundelay_speech.models.frontend import Columns, Frontend, FrontendConfig
from roundelay_speech.models.network import FrameNetwork, NetworkConfig


@dataclass(frozen=True)
class DnnConfig(NetworkConfig):
    """Feed-forward network over a window of frames (Li et al. 2017).

    The default suits two CPU cores and an hour of speech."""

    name: Literal["dnn"] = field(default="dnn", kw_only=True)
    layers: Count = 4
    """Hidden layers."""
    width: Count = 512
    """Units of a hidden layer."""
    dropout: ShareBelowOne = 0.2
    """Share of units dropped while training."""
    context: Whole = 5
    """Frames on each side that the network sees."""

    @classmethod
    def published(cls) -> Self:
        """Return the sizes of Li et al. 2017, who name no dropout."""
        return cls(layers=6, width=1024, dropout=0.0)

    def network(self, features: Columns, states: int) -> "Dnn":
        return Dnn(self, features, states)


class Dnn(FrameNetwork):
    """The network: scores (B, S) of tied states for windows of features; see `Frontend` for the inputs."""

    same_operations = True

    def __init__(self, config: DnnConfig, features: Columns, states: int) -> None:
        super().__init__()
        self.frontend = Frontend(FrontendConfig(context=config.context), features)
        layers: list[nn.Module] = []
        inputs = self.frontend.width
        for _ in range(config.layers):
            layers += [nn.Linear(inputs, config.width), nn.ReLU()]
            if config.dropout:
                layers.append(nn.Dropout(config.dropout))
            inputs = config.width
        layers.append(nn.Linear(inputs, states))
        self.net = nn.Sequential(*layers)
        self.reset()

    @property
    def output_layer(self) -> str:
        return f"net.{len(self.net) - 1}"

    def reset(self) -> None:
        """Draw new parameters: He et al. 2015 for ReLU; the output layer small, so that training starts near the
        uniform distribution."""
        linear = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        for layer in linear:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            linear[-1].weight.mul_(0.1)

    def forward(self, windows: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        scores: Tensor = self.net(self.frontend(windows, mean, std))
        return scores
