"""The fit of what `roundelay advise` knows of learning, and measurements beside its predictions."""
