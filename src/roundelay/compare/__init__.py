"""`roundelay compare`: a grid of trainings, each in a run directory of its own, and what they come to side by side."""

from roundelay.core.callable_package import make_callable

make_callable(__name__, "roundelay.api.comparing")
