"""The columns of a packed model's log-likelihoods: tied states, units and a blank, or states of phones."""

from pathlib import Path

from roundelay.core.files import read_json
from roundelay.packed.folder import PackedModel
from roundelay.speech.decode.graphs.base import Columns
from roundelay.speech.decode.graphs.chain import StatesOfPhones
from roundelay.speech.decode.graphs.ctc import UnitsAndBlank
from roundelay.speech.decode.graphs.hmm import TiedStates
from roundelay.speech.hmm.alignment import TREE
from roundelay.speech.hmm.tree import DecisionTree
from roundelay.speech.units.base import BLANK, UnitSet


def packed_columns(folder: Path, packed: PackedModel, units: UnitSet | None) -> Columns:
    """The columns.

    Args:
        units: of the networks; None: they give tied states, which the folder says.
    """
    if units is None:
        return TiedStates(DecisionTree.from_json(read_json(folder / TREE)).tying())
    if units.hmm is not None:
        return StatesOfPhones(units)
    return UnitsAndBlank(units.columns, BLANK, packed.silence, pieces=units, blank_cost=packed.search.blank_cost)
