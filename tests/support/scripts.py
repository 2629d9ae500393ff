"""Scripts of this repository that are in no package."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_script(path: str) -> ModuleType:
    """Load the script at this path, which meanwhile can import the scripts beside it; return its module."""
    script = ROOT / path
    sys.path.insert(0, str(script.parent))
    try:
        return importlib.import_module(script.stem)
    finally:
        sys.path.remove(str(script.parent))
