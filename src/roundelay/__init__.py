"""Roundelay: distributed training of acoustic models, from recorded speech to word error rate."""

from importlib import import_module
from typing import TYPE_CHECKING

from roundelay.core.extras import load, uncollected

if TYPE_CHECKING:
    from roundelay.api.advising import advise
    from roundelay.api.runs import load_run, report
    from roundelay.api.scaling import scaling
    from roundelay.api.simulating import simulate
    from roundelay.attached import Session, attach
    from roundelay.core.errors import UserError
    from roundelay.core.progress import Silent
    from roundelay.grids.grid import Contenders
    from roundelay.runtime.launch.world import learners, local_rank, rank
    from roundelay_speech.api.comparing import compare, evaluate_folds
    from roundelay_speech.api.corpora import align, inspect, prepare
    from roundelay_speech.api.packing import evaluate, finetune, pack
    from roundelay_speech.api.recipes import load_recipe
    from roundelay_speech.api.recognition import decode
    from roundelay_speech.api.serving import serve
    from roundelay_speech.api.training import train
    from roundelay_speech.api.transcribing import transcribe
    from roundelay_speech.corpus.inspection.inspect import InspectOptions
    from roundelay_speech.corpus.options import PrepareOptions
    from roundelay_speech.exporting.writing import export
    from roundelay_speech.packed.model import load_model
    from roundelay_speech.recipes.recipe import Recipe

__version__ = "0.3.0.dev0"

_PLACES = {
    "Contenders": "roundelay.grids.grid",
    "InspectOptions": "roundelay_speech.corpus.inspection.inspect",
    "PrepareOptions": "roundelay_speech.corpus.options",
    "Recipe": "roundelay_speech.recipes.recipe",
    "Session": "roundelay.attached",
    "Silent": "roundelay.core.progress",
    "UserError": "roundelay.core.errors",
    "advise": "roundelay.api.advising",
    "align": "roundelay_speech.api.corpora",
    "attach": "roundelay.attached",
    "compare": "roundelay_speech.api.comparing",
    "decode": "roundelay_speech.api.recognition",
    "evaluate": "roundelay_speech.api.packing",
    "evaluate_folds": "roundelay_speech.api.comparing",
    "export": "roundelay_speech.exporting.writing",
    "finetune": "roundelay_speech.api.packing",
    "inspect": "roundelay_speech.api.corpora",
    "learners": "roundelay.runtime.launch.world",
    "load_model": "roundelay_speech.packed.model",
    "load_recipe": "roundelay_speech.api.recipes",
    "load_run": "roundelay.api.runs",
    "local_rank": "roundelay.runtime.launch.world",
    "pack": "roundelay_speech.api.packing",
    "prepare": "roundelay_speech.api.corpora",
    "rank": "roundelay.runtime.launch.world",
    "report": "roundelay.api.runs",
    "scaling": "roundelay.api.scaling",
    "serve": "roundelay_speech.api.serving",
    "simulate": "roundelay.api.simulating",
    "train": "roundelay_speech.api.training",
    "transcribe": "roundelay_speech.api.transcribing",
}
"""Modules of public names, loaded when a name is asked for: some load torch, and `import roundelay` must not."""

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
    """Return the public function or class `name`, loaded at its first use."""
    if name in _PLACES:
        with uncollected():
            module = _PLACES[name]
            of_speech = module.startswith("roundelay_speech.")
            return getattr(load(module, "speech", f"roundelay.{name}") if of_speech else import_module(module), name)
    raise AttributeError(f"module 'roundelay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
