"""Roundelay: distributed training of acoustic models, from recorded speech to word error rate."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundelay.attached import Session, attach
    from roundelay.runtime.launch.world import learners, local_rank, rank

__version__ = "0.1.0"
__all__ = ["Session", "__version__", "attach", "learners", "local_rank", "rank"]


def __getattr__(name: str) -> object:
    """`roundelay.attach` loads torch; `import roundelay` alone must not."""
    if name in ("learners", "local_rank", "rank"):
        return getattr(import_module("roundelay.runtime.launch.world"), name)
    if name in ("Session", "attach"):
        return getattr(import_module("roundelay.attached"), name)
    raise AttributeError(f"module 'roundelay' has no attribute {name!r}")
