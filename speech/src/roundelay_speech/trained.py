"""Trained networks on disk: parameters by name, and a JSON on their network and its input.

EXP/model.safetensors   parameters, the front end's buffers, the prior
EXP/model.json          sizes of the network, its input, the digest of its tied states, its units; checksums
EXP/units.txt           names of the columns of a model whose columns are units

Legend: S columns: tied states, or units and a blank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from roundelay.core.checksums import read_checked
from roundelay.core.configure import build
from roundelay.core.errors import UserError
from roundelay_speech.features.store import FeatureStore, StoredPart
from roundelay_speech.model_input import ModelInput, features_for, mismatches, refuse
from roundelay_speech.models import AcousticNetwork, AnyModel
from roundelay_speech.prepared import Corpus
from roundelay_speech.units.base import UnitSet

MODEL, MODEL_META, UNITS = "model.safetensors", "model.json", "units.txt"
PACKED_NETWORK = "acoustic-"
"""Prefix of the names of networks' folders in a packed model (see packed/folder.py)."""


@dataclass(frozen=True)
class AcousticModel:
    """A trained network, the prior by which its posteriors are divided, and facts of its input."""

    module: AcousticNetwork
    prior: NDArray[np.float32]  # (S,) log
    input: ModelInput | None = None  # None: saved by a version that did not keep it
    units: UnitSet | None = None  # None: columns are tied states

    def features(self, corpus: Corpus, exp: Path, splits: Sequence[str] = ()) -> FeatureStore:
        """Return the features of a corpus that fit this model, of the run `exp`; all of `splits` (empty: all splits)
        must have them.

        Raises:
            UserError: the features differ from those the model was trained on, in sampling rate, frames or columns.
        """
        return features_for(corpus, self.module.frontend.parts, self.input, str(exp), splits)

    def check(self, corpus: Corpus, exp: Path) -> None:
        """Raise a UserError unless the features in use in a corpus are those this model, of `exp`, was trained on."""
        parts = self.module.frontend.parts
        refuse(mismatches(corpus.features(), parts, self.input), parts, corpus, self.input, str(exp))


@dataclass(frozen=True)
class TrainedSizes:
    """The sizes stored beside the tensors, enough to build the network."""

    model: AnyModel
    features: int
    states: int
    parts: tuple[StoredPart, ...] = ()  # of the features; none: all alike, as earlier versions had them
    input: ModelInput | None = None  # None: saved by an earlier version
    targets: str = ""  # digest of the tied states, or of the units
    units: UnitSet | None = None  # None: tied states


def check_trained(exp: Path) -> None:
    """Raise a UserError unless a finished training left its model in `exp`."""
    if not (exp / MODEL).is_file() or not (exp / MODEL_META).is_file():
        raise UserError(
            f"{exp}: no trained model here ({MODEL}). Run or resume `roundelay train` with --exp {exp} first."
        )


def load_model(exp: Path) -> AcousticModel:
    """Load the model that a run has left in its directory.

    Raises:
        UserError: training has not finished, or the files do not belong together.
    """
    check_trained(exp)
    path, meta_path = exp / MODEL, exp / MODEL_META
    told = read_checked(meta_path, f"Restore it, or train again with another --exp than {exp}.")
    sizes = build(TrainedSizes, told, str(meta_path))
    try:
        tensors = load(path.read_bytes())
        _check_sizes(sizes, tensors)
        network = sizes.model.network(sizes.parts or sizes.features, sizes.states)
        prior = tensors.pop("prior").numpy()
        network.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError, MemoryError, SafetensorError) as error:
        raise UserError(f"{path}: not the model {meta_path.name} describes ({error}). Train again.") from error
    network.eval()
    return AcousticModel(network, prior, sizes.input, sizes.units)


_USUAL_SIZE = 4096  # of sizes a network may have without a tensor of them: neighbours of a frame, frames of a chunk


def _check_sizes(sizes: TrainedSizes, tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if a network of these sizes would be larger than its tensors, before it is made."""
    largest = max([_USUAL_SIZE, *(length for tensor in tensors.values() for length in tensor.shape)])
    told = {one.name: getattr(sizes.model, one.name) for one in fields(sizes.model)}
    for name, value in (told | {"features": sizes.features, "states": sizes.states}).items():
        most = len(tensors) if "layers" in name else largest
        if isinstance(value, int) and value > most:
            raise ValueError(f"{name} is {value}, more than its tensors have")
