"""The learner behind `roundelay.attach`: driven by somebody else's training loop."""
