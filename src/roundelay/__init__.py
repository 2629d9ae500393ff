"""Roundelay: distributed training of acoustic models, from recorded speech to word error rate."""

from importlib import import_module
from typing import TYPE_CHECKING

from roundelay.core.importing import uncollected

if TYPE_CHECKING:
    from roundelay.api.advising import advise
    from roundelay.api.comparing import compare, evaluate_folds, simulate
    from roundelay.api.corpora import align, inspect, prepare
    from roundelay.api.packing import evaluate, finetune, pack
    from roundelay.api.recipes import load_recipe
    from roundelay.api.recognition import decode
    from roundelay.api.runs import load_run, report
    from roundelay.api.scaling import scaling
    from roundelay.api.serving import serve
    from roundelay.api.training import train
    from roundelay.api.transcribing import transcribe
    from roundelay.attached import Session, attach
    from roundelay.core.errors import UserError
    from roundelay.core.progress import Silent
    from roundelay.exporting.writing import export
    from roundelay.grids.grid import Contenders
    from roundelay.packed.model import load_model
    from roundelay.recipes.recipe import Recipe
    from roundelay.runtime.launch.world import learners, local_rank, rank
    from roundelay.speech.corpus.inspection.inspect import InspectOptions
    from roundelay.speech.corpus.options import PrepareOptions

__version__ = "0.3.0.dev0"

_PLACES = {
    "Contenders": "roundelay.grids.grid",
    "InspectOptions": "roundelay.speech.corpus.inspection.inspect",
    "PrepareOptions": "roundelay.speech.corpus.options",
    "Recipe": "roundelay.recipes.recipe",
    "Session": "roundelay.attached",
    "Silent": "roundelay.core.progress",
    "UserError": "roundelay.core.errors",
    "advise": "roundelay.api.advising",
    "align": "roundelay.api.corpora",
    "attach": "roundelay.attached",
    "compare": "roundelay.api.comparing",
    "decode": "roundelay.api.recognition",
    "evaluate": "roundelay.api.packing",
    "evaluate_folds": "roundelay.api.comparing",
    "export": "roundelay.exporting.writing",
    "finetune": "roundelay.api.packing",
    "inspect": "roundelay.api.corpora",
    "learners": "roundelay.runtime.launch.world",
    "load_model": "roundelay.packed.model",
    "load_recipe": "roundelay.api.recipes",
    "load_run": "roundelay.api.runs",
    "local_rank": "roundelay.runtime.launch.world",
    "pack": "roundelay.api.packing",
    "prepare": "roundelay.api.corpora",
    "rank": "roundelay.runtime.launch.world",
    "report": "roundelay.api.runs",
    "scaling": "roundelay.api.scaling",
    "serve": "roundelay.api.serving",
    "simulate": "roundelay.api.comparing",
    "train": "roundelay.api.training",
    "transcribe": "roundelay.api.transcribing",
}
"""Modules of what is public, loaded when it is asked for: some load torch, and `import roundelay` must not."""

__all__ = [
    "Contenders",
    "InspectOptions",
    "PrepareOptions",
    "Recipe",
    "Session",
    "Silent",
    "UserError",
    "__version__",
    "advise",
    "align",
    "attach",
    "compare",
    "decode",
    "evaluate",
    "evaluate_folds",
    "export",
    "finetune",
    "inspect",
    "learners",
    "load_model",
    "load_recipe",
    "load_run",
    "local_rank",
    "pack",
    "prepare",
    "rank",
    "report",
    "scaling",
    "serve",
    "simulate",
    "train",
    "transcribe",
]


def __getattr__(name: str) -> object:
    """The function or class of this name, loaded now."""
    if name in _PLACES:
        with uncollected():
            return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'roundelay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
