"""Models that come with the package, by name: the first transcript after an installation needs nothing else.

Each is the folder of a packed model in `given/`, with the licence of the corpus it was trained on. `make models` makes
them (recipes/an4/packed.sh).
"""

from collections.abc import Sequence
from pathlib import Path

from roundelay.core.files import read_json
from roundelay.core.folders import PACKED

_GIVEN = Path(__file__).with_name("given")


def given_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in _GIVEN.glob(f"*/{PACKED}"))


def told() -> list[Sequence[str]]:
    """Return, for each model of the package, its name, words, sampling rate in Hz, corpus, word errors, size in MB and
    licence, as text."""
    rows: list[Sequence[str]] = []
    for name in given_models():
        card = read_json(_GIVEN / name / "card.json")
        errors = ", ".join(
            f"{split} {one['wer']:.2f} % of {one['words']}" for split, one in card["word_errors"].items()
        )
        words, rate, size = card["vocabulary"]["words"], card["sampling_rate"], card["size"] / 1e6
        rows.append((name, str(words), str(rate), card["corpus"]["name"], errors, f"{size:.2f}", card["licence"]))
    return rows


def model_folder(name: Path | str) -> Path:
    """Return the folder of a packed model: the path `name`, or, if there is no such folder, that of the package's model
    of this name."""
    path = Path(name)
    return _GIVEN / path if not (path / PACKED).is_file() and str(path) in given_models() else path
