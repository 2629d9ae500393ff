"""`roundelay simulate`: strategies on virtual clusters, a check against published figures, costs from recorded runs."""
