"""`roundelay simulate`: strategies on virtual clusters, a check against published figures, costs from recorded runs."""

from roundelay.core.callable_package import make_callable

make_callable(__name__, "roundelay.api.comparing")
