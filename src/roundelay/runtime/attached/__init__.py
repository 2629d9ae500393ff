"""The learner behind `roundelay.attach`: driven by the user's training loop."""
