"""`roundelay.attach`: a session for any training loop. Speech is not needed, nor is anything of a run's files."""

from roundelay.attached.session import Session, attach
from roundelay.attached.sharing import SharedSampler

__all__ = ["Session", "SharedSampler", "attach"]
