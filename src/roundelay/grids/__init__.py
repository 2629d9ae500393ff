"""`roundelay compare`: a grid of trainings, each in a run directory of its own, and what they come to side by side."""
