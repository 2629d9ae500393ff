"""The fit behind the predictions of `roundelay advise` on learning, and measurements beside them."""
