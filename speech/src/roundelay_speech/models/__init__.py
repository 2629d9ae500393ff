"""Acoustic networks by name, chosen in a recipe by `model.name`. The union is the registry: a new network is a file
beside these, and its configuration here; or one of another package, by an entry point of the group
`roundelay.models`."""

from typing import Annotated

from roundelay.core.plugins import OrPlugins
from roundelay_speech.models.blstm import BlstmConfig
from roundelay_speech.models.cldnn import CldnnConfig
from roundelay_speech.models.conformer import ConformerConfig
from roundelay_speech.models.dnn import DnnConfig
from roundelay_speech.models.network import AcousticNetwork, NetworkConfig
from roundelay_speech.models.tdnnf import TdnnfConfig

ModelConfig = DnnConfig | CldnnConfig | BlstmConfig | ConformerConfig | TdnnfConfig
AnyModel = Annotated[ModelConfig, OrPlugins("models")]

__all__ = [
    "AcousticNetwork",
    "AnyModel",
    "BlstmConfig",
    "CldnnConfig",
    "ConformerConfig",
    "DnnConfig",
    "ModelConfig",
    "NetworkConfig",
    "TdnnfConfig",
]
