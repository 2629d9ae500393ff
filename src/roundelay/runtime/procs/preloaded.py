"""Modules that the fork server imports before it forks learners: torch is imported once, not L times."""

from roundelay.core.extras import uncollected

with uncollected():
    import roundelay.runtime.procs.worker  # noqa: F401
