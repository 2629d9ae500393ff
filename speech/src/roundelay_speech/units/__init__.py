"""Units of models that need no alignment, by name, chosen in a recipe by `units.name`. The union is the registry: a new
kind is a file beside these, and its class here."""

from roundelay_speech.units.bpe import Bpe
from roundelay_speech.units.chain import Chain
from roundelay_speech.units.characters import Characters
from roundelay_speech.units.phones import Phones

AnyUnits = Phones | Characters | Bpe | Chain

__all__ = ["AnyUnits", "Bpe", "Chain", "Characters", "Phones"]
