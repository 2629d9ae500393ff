"""Models that come with the package, by name: the first transcript after an installation needs nothing else.

Each is the folder of a packed model in `given/`, with the licence of the corpus it was trained on. `make models` makes
them (recipes/an4/packed.sh).
"""

from pathlib import Path

from roundelay.core.folders import PACKED

_GIVEN = Path(__file__).with_name("given")


def given_models() -> list[str]:
    """Return their names."""
    return sorted(path.parent.name for path in _GIVEN.glob(f"*/{PACKED}"))


def model_folder(name: Path | str) -> Path:
    """Return the folder of a packed model: where the name leads, or, if there is none, that of the model of this name
    that comes with the package."""
    path = Path(name)
    return _GIVEN / path if not (path / PACKED).is_file() and str(path) in given_models() else path
