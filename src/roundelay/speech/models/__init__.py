"""Acoustic networks, chosen in a recipe by `model.name`."""

from roundelay.speech.models.blstm import Blstm, BlstmConfig
from roundelay.speech.models.cldnn import Cldnn, CldnnConfig
from roundelay.speech.models.conformer import Conformer, ConformerConfig
from roundelay.speech.models.dnn import Dnn, DnnConfig
from roundelay.speech.models.frontend import Columns
from roundelay.speech.models.network import AcousticNetwork

ModelConfig = DnnConfig | CldnnConfig | BlstmConfig | ConformerConfig


def make_network(config: ModelConfig, features: Columns, states: int) -> AcousticNetwork:
    """The network of `config` for these stored features, and so many tied states."""
    match config:
        case DnnConfig():
            return Dnn(config, features, states)
        case CldnnConfig():
            return Cldnn(config, features, states)
        case BlstmConfig():
            return Blstm(config, features, states)
        case ConformerConfig():
            return Conformer(config, features, states)


__all__ = [
    "AcousticNetwork",
    "Blstm",
    "BlstmConfig",
    "Cldnn",
    "CldnnConfig",
    "Conformer",
    "ConformerConfig",
    "Dnn",
    "DnnConfig",
    "ModelConfig",
    "make_network",
]
